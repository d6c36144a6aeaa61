"""Training schemes of captioners by name, as the papers compare them.

monolingual       one language, captions written for these photographs
mixed             all captions at once, whoever wrote them
artificial-token  several languages, one decoder that is told the language by its first token
alternate         several languages, a decoder for each, batches in turn (Miyazaki 2016)
transfer          English first; then a new decoder for the other languages keeps the embedding
                  of the image (Miyazaki 2016)
sequential        all captions first; then those written for these photographs, at a tenth of the
                  learning rate (COCO-CN)
self-training     a trained captioner writes captions for the training images; those that agree most
                  with people's, in any language, are learned from, too (Zhu 2016)
self-critical     samples of a trained captioner are rewarded for CIDEr-D (Rennie 2017)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from capsearch.engine.errors import TrainingProblem

ALL = "all"  # the decoder of all languages


@dataclass(frozen=True, slots=True)
class Stage:
    """One part of a scheme.

    `main`: only captions of the main sources. `keep`: what it takes from the stage before.
    `separate`: a decoder for each language, in alternating batches. `rewarded`: captions are
    sampled and rewarded, instead of learned word by word. `picked`: captions that the initial
    captioner writes are learned from, too.
    """

    languages: tuple[str, ...]
    main: bool = True
    keep: Literal["nothing", "image", "everything"] = "nothing"
    separate: bool = False
    lr: float = 1.0  # factors of the run's learning rate and epochs
    epochs: float = 1.0
    rewarded: bool = False
    picked: bool = False

    @property
    def needs_captioner(self) -> bool:
        """Whether it starts from a trained captioner."""
        return self.rewarded or self.picked

    @property
    def groups(self) -> Mapping[str, tuple[str, ...]]:
        """The languages of each decoder."""
        return {one: (one,) for one in self.languages} if self.separate else {ALL: self.languages}


def _monolingual(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    if len(languages) > 1:
        raise TrainingProblem("monolingual training has one language; give one --lang")
    return (Stage(languages),)


def _transfer(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    others = tuple(one for one in languages if one != "en")
    if not others or "en" not in languages:
        raise TrainingProblem("transfer goes from English to other languages; add their --lang")
    return Stage(("en",)), Stage(others, keep="image")


def _several(languages: Sequence[str], scheme: str) -> None:
    if len(languages) < 2:
        raise TrainingProblem(f"{scheme} training has several languages; give more than one --lang")


def _artificial_token(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    _several(languages, "artificial-token")
    return (Stage(languages),)


def _alternate(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    _several(languages, "alternate")
    return (Stage(languages, separate=True),)


def _mixed(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    return (Stage(languages, main=False),)


def _sequential(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    last = Stage(languages, keep="everything", lr=0.1, epochs=0.4)
    return Stage(languages, main=False), last


def _self_training(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    return (Stage(languages, keep="everything", picked=True),)


def _self_critical(languages: tuple[str, ...]) -> tuple[Stage, ...]:
    return (Stage(languages, keep="everything", rewarded=True),)


SCHEMES: Mapping[str, Callable[[tuple[str, ...]], tuple[Stage, ...]]] = {
    "sequential": _sequential,
    "mixed": _mixed,
    "artificial-token": _artificial_token,
    "transfer": _transfer,
    "alternate": _alternate,
    "monolingual": _monolingual,
    "self-training": _self_training,
    "self-critical": _self_critical,
}


def stages_of(scheme: str, languages: tuple[str, ...]) -> tuple[Stage, ...]:
    """The stages of a scheme; TrainingProblem for one that these languages cannot have."""
    if scheme not in SCHEMES:
        raise TrainingProblem(f"no scheme called '{scheme}'; there is {', '.join(SCHEMES)}")
    return SCHEMES[scheme](languages)
