"""The run that trains a captioner on a fixed backbone's feature maps.

What the stages of a captioner's training share: the run, its data, its captions, its search.

Training schemes of captioners by name, as the papers compare them.

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

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.caption_search import Beam, CaptionVocabulary
from capsearch.encoders.models.captioner import PART as MATCH
from capsearch.encoders.models.captioner import (
    WEIGHTS_FILE,
    WHITENING,
    BuiltInCaptioner,
    CaptionMatch,
    with_tags,
)
from capsearch.encoders.models.image import ImageNetwork, check_backbone
from capsearch.encoders.models.tagger import BuiltInTagger
from capsearch.encoders.train.caption_match import fit_match, with_match
from capsearch.encoders.train.caption_metrics import references_of
from capsearch.encoders.train.caption_rewards import SelfCriticalTrainer, pick
from capsearch.encoders.train.captions import (
    CaptionSet,
    CaptionTrainer,
    EncodedCaptions,
    ReferenceSet,
    TokenisedCaptions,
    ciders,
    encode,
    first_images,
    fit_confidence,
    main_captions,
    tokenise,
    vocabulary_of,
)
from capsearch.encoders.train.decoders import CaptionConfig, CaptionNetwork
from capsearch.encoders.train.feature_maps import EncodedImages, load_feature_maps
from capsearch.encoders.train.loop import Epoch, interpolate_weights
from capsearch.encoders.train.run import (
    Listener,
    TrainingRun,
    fit,
    head_card,
    used_part,
    whole_split,
)
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import ImageFeatures

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


_CANDIDATES = 10  # captions of each image that the match chooses from


@dataclass(frozen=True, slots=True)
class CaptionRun:
    """A training run of a captioner. `tagger`: the model whose tags are an input; "" for none.

    `initial`: a captioner that is trained on; "" for a new one. It has its own words and decoder.
    """

    run: TrainingRun
    config: CaptionConfig
    scheme: str = "sequential"
    tagger: str = ""
    beam: int = 3
    initial: str = ""


@dataclass(frozen=True, slots=True)
class CaptionJob:
    """A run with its data."""

    captioner: CaptionRun
    backbone: ImageNetwork
    tagger: BuiltInTagger | None
    train: EncodedImages
    validation: EncodedImages
    captions: Mapping[str, TokenisedCaptions]
    vocabulary: CaptionVocabulary
    listener: Listener


def encoded(job: CaptionJob, stage: Stage) -> Mapping[str, EncodedCaptions]:
    """A stage's captions by language, without those that have an unknown word."""
    return {
        language: encode(
            captions_of(job, stage, language), job.vocabulary, language, len(job.train)
        )
        for language in stage.languages
    }


def captions_of(job: CaptionJob, stage: Stage, language: str) -> TokenisedCaptions:
    """The captions that a stage learns from."""
    captions = job.captions[language]
    return main_captions(captions) if stage.main else captions


def beam_of(captioner: CaptionRun) -> Beam:
    """The search of the finished model, which also writes the captions that are picked."""
    return Beam(captioner.beam, captioner.config.max_words, candidates=_CANDIDATES)


_REWARDED_EMA = 0.2  # epochs: rewards change a trained network quickly


def train_caption(captioner: CaptionRun, listener: Listener | None = None) -> Path:
    """Train a captioner by a scheme; the new model's folder."""
    run = captioner.run
    stages = stages_of(captioner.scheme, run.languages)
    if stages[0].needs_captioner and not captioner.initial:
        raise TrainingProblem(f"{captioner.scheme} training starts from a captioner: give --from")
    initial = registry.load_captioner(captioner.initial) if captioner.initial else None
    if initial is not None:
        captioner = _like(captioner, initial)
        stages = (replace(stages[0], keep="everything"), *stages[1:])
    job = _prepare(captioner, initial, listener or Listener())
    if not run.resume:
        _remove_checkpoints(run, len(stages))
    network = None if initial is None else _loaded(job, stages[0], initial)
    if network is not None and stages[0].picked:
        job = replace(job, captions=_with_picked(job, stages[0], network))
    best, before = None, copy.deepcopy(network.state_dict()) if network is not None else None
    for number, stage in enumerate(stages):
        network = _network(job, stage, network)
        best = _train(job, stage, number, network)
    assert network is not None and best is not None  # a scheme has stages
    if before is not None:
        best = _interpolated(job, network, before, best)
    run = replace(run, languages=stages[-1].languages)
    _export(replace(job, captioner=replace(captioner, run=run)), stages[-1], network, best)
    _remove_checkpoints(run, len(stages))
    return run.output


def _like(captioner: CaptionRun, initial: BuiltInCaptioner) -> CaptionRun:
    """The run with the backbone, decoder, languages and tags of the model it starts from."""
    if set(captioner.run.languages) != set(initial.languages):
        raise TrainingProblem(
            f"{captioner.initial} writes {', '.join(initial.languages)}: give these --lang"
        )
    config = CaptionConfig(**initial.card["training"]["config"])
    backbone = str(initial.card["backbone"])
    run = replace(captioner.run, languages=initial.languages, backbone=backbone)
    tagger = str(initial.card.get("tagger", ""))
    return replace(captioner, run=run, config=config, tagger=tagger)


def _loaded(job: CaptionJob, stage: Stage, initial: BuiltInCaptioner) -> CaptionNetwork:
    network = _network(job, replace(stage, keep="nothing"), None)
    if set(network.groups) != set(initial.decoders.groups):
        raise TrainingProblem(
            f"{initial.name} has other decoders than the scheme '{job.captioner.scheme}' trains"
        )
    network.load(initial.decoders.arrays)
    return network


def _prepare(
    captioner: CaptionRun, initial: BuiltInCaptioner | None, listener: Listener
) -> CaptionJob:
    run = captioner.run
    backbone = registry.load_backbone(run.backbone)
    tagger = registry.load_tagger(captioner.tagger) if captioner.tagger else None
    if captioner.tagger:
        card = model_folder.read_card(registry.find(captioner.tagger, "tagger"))
        check_backbone(card, backbone)
    if initial is not None:  # of that name there may be another one now
        check_backbone(initial.card, backbone)
    train, validation = (
        _with_tags(
            load_feature_maps(
                backbone,
                used_part(run, whole, split),
                run.cache,
                listener.report(f"maps of {split}"),
                whole,
            ),
            tagger,
        )
        for split in (run.train_split, run.validation_split)
        for whole in [whole_split(run, split)]
    )
    captions = tokenise(train.data, run.languages, captioner.config.max_words)
    vocabulary = initial.vocabulary if initial else vocabulary_of(captions, run.min_count)
    return CaptionJob(
        captioner, backbone, tagger, train, validation, captions, vocabulary, listener
    )


def _with_tags(images: EncodedImages, tagger: BuiltInTagger | None) -> EncodedImages:
    if tagger is None:
        return images
    return replace(images, pooled=with_tags(ImageFeatures(images.pooled), tagger).pooled)


def _network(job: CaptionJob, stage: Stage, before: CaptionNetwork | None) -> CaptionNetwork:
    """A new network, with what the stage takes from the one before."""
    groups = {name: job.vocabulary.only(*found) for name, found in stage.groups.items()}
    config, seed = job.captioner.config, job.captioner.run.options.seed
    cells = (int(job.train.grid.shape[1]), int(job.train.grid.shape[2]))
    network = CaptionNetwork(job.train.pooled.shape[1], cells, groups, config, seed)
    if before is not None and stage.keep == "everything":
        network.load_state_dict(before.state_dict())
        return network
    if before is not None and stage.keep == "image":
        network.image.load_state_dict(before.image.state_dict())
    for name, found in stage.groups.items():
        counts = {language: _counts(job, stage, language) for language in found}
        network.decoder(name).set_frequencies(counts)
    return network


def _train(job: CaptionJob, stage: Stage, number: int, network: CaptionNetwork) -> Epoch:
    run = job.captioner.run
    options = replace(
        run.options,
        lr=run.options.lr * stage.lr,
        epochs=max(1, round(run.options.epochs * stage.epochs)),
        ema_epochs=_REWARDED_EMA if stage.rewarded else run.options.ema_epochs,
    )
    captions = encoded(job, stage)
    references = references_of(job.validation.data, stage.languages)
    if not any(references.values()):
        raise TrainingProblem(f"no captions to validate with in split '{run.validation_split}'")
    trainer = (SelfCriticalTrainer if stage.rewarded else CaptionTrainer)(
        network,
        CaptionSet(job.train, captions),
        ReferenceSet(job.validation, references),
        options,
        _checkpoint(run, number),
        alternate=stage.separate,
    )
    return fit(run, trainer, job.listener, first=number == 0)


def _interpolated(
    job: CaptionJob, network: CaptionNetwork, initial: Mapping[str, Tensor], best: Epoch
) -> Epoch:
    """With the weights between old and new that write the best captions by beam search."""
    languages = job.captioner.run.languages
    validation = ReferenceSet(job.validation, references_of(job.validation.data, languages))
    beam = beam_of(job.captioner)

    def scores() -> Mapping[str, float]:
        return ciders(network.served(), first_images(validation), beam)

    return interpolate_weights(network, initial, replace(best, validation=scores()), scores)


def _with_picked(
    job: CaptionJob, stage: Stage, network: CaptionNetwork
) -> Mapping[str, TokenisedCaptions]:
    """The captions, and those that the captioner itself writes of the same images.

    They are written anew when a run is resumed: the same, since the captioner is.
    """
    everything = encoded(job, replace(stage, main=False))
    arrays = fit_match(job.train.pooled, everything, job.vocabulary)
    picked = pick(
        network.served(),
        CaptionMatch(arrays, 0.0),
        job.train,
        everything,
        beam_of(job.captioner),
        job.listener.report("captions of train"),
    )
    return {one: found + picked[one] for one, found in job.captions.items()}


def _counts(job: CaptionJob, stage: Stage, language: str) -> NDArray[np.int64]:
    """(W + 1,) how often each output occurs in the stage's captions."""
    counts = np.zeros(len(job.vocabulary.words[language]) + 1, np.int64)
    for words in captions_of(job, stage, language).words:
        ids = job.vocabulary.encode(words, language)
        if ids is not None:
            np.add.at(counts, ids, 1)
    return counts


def _remove_checkpoints(run: TrainingRun, stages: int) -> None:
    for number in range(stages):
        _checkpoint(run, number).unlink(missing_ok=True)


def _checkpoint(run: TrainingRun, stage: int) -> Path:
    return run.output.parent / f"{run.output.name}.{stage + 1}.checkpoint.safetensors"


def _export(job: CaptionJob, stage: Stage, network: CaptionNetwork, best: Epoch) -> None:
    """Write the model's folder: weights, words, and a card with the confidence of captions.

    The match of captions and images is fitted on the captions of the last stage.
    """
    captioner, run, folder = job.captioner, job.captioner.run, job.captioner.run.output
    beam = beam_of(captioner)
    validation = ReferenceSet(job.validation, references_of(job.validation.data, run.languages))
    match = fit_match(job.train.pooled, encoded(job, stage), job.vocabulary)
    decoders = with_match(network.served(), match, validation, beam)
    confidence = fit_confidence(decoders, validation, beam)
    arrays = {**network.arrays(), **{f"{MATCH}.{name}": one for name, one in match.items()}}
    model_folder.save_arrays(folder / WEIGHTS_FILE, arrays, exact=[f"{MATCH}.{WHITENING}"])
    job.vocabulary.only(*run.languages).save(folder)
    card: dict[str, Any] = {
        **head_card(run, job.backbone, best, _training(job)),
        "description": f"captions in {', '.join(run.languages)} on {job.backbone.name}",
        "architecture": captioner.config.architecture,
        "groups": {name: list(found.languages) for name, found in network.groups.items()},
        "beam": asdict(beam),
        "match_weight": 0.0 if decoders.match is None else decoders.match.weight,
        "validation_beam": {k: round(v, 4) for k, v in ciders(decoders, validation, beam).items()},
        "confidence": {language: asdict(found) for language, found in confidence.items()},
    }
    if job.tagger is not None:
        card |= {
            "tagger": registry.reference(captioner.tagger),
            "tagger_digest": job.tagger.name.rpartition("@")[2],
        }
    digest = model_folder.digest(folder, str(card["backbone_digest"]), str(card["beam"]))
    model_folder.write_card(folder, {"kind": "captioner", **card, "digest": digest})


def _training(job: CaptionJob) -> Mapping[str, Any]:
    return {
        "images": len(job.train),
        "captions": {one: len(found.image_rows) for one, found in job.captions.items()},
        "scheme": job.captioner.scheme,
        **({"initial": registry.reference(job.captioner.initial)} if job.captioner.initial else {}),
        "config": asdict(job.captioner.config),
    }
