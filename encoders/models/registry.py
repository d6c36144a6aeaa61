"""Models by name: the built-in ones, those the user trained, and how to open them.

A model is a folder with a `model.json` that names its kind. KINDS is the table of kinds; a kind
may build on models of other kinds:

    sentence   a multilingual sentence encoder (use3)
    backbone   an image network: pixels to features
    text       text encoders and an image projection, trained on one backbone's features, or only
               a projection into the space of another text model
    tagger, captioner   heads that describe images from the features of one backbone, which their
               cards name (`backbone`, `backbone_digest`)
    clip       an image tower and a text tower of a CLIP-like model, exported from open_clip

`load` opens a model that can search, together with the models it builds on. Built-in models are
in data packages (built_in.py), those of `capsearch train` and of `capsearch models install` in the
user's models folder. What has a path
separator (./x, ~/x, /x, x/) is the path of a model's folder instead; a plain name is never looked
up in the working directory. SCHEMES are models of other libraries: `open_clip:...`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.encoders.models import built_in, model_folder
from capsearch.engine.errors import TrainingProblem, UnknownModel
from capsearch.engine.protocols import Enricher, ImageEncoder, TextEncoder

if TYPE_CHECKING:
    from capsearch.encoders.models.captioner import BuiltInCaptioner
    from capsearch.encoders.models.image import ImageNetwork
    from capsearch.encoders.models.sentence import SentenceEncoder
    from capsearch.encoders.models.tagger import BuiltInTagger


DEFAULT_MODEL = "trio"
_HEADS = ("tagger", "captioner")  # kinds, and fields of Enricher


@dataclass(frozen=True, slots=True)
class Kind:
    """How models of one kind are opened.

    `loader` is "module:function", imported when the first model of the kind is opened. The
    function takes the model's folder. For kinds that can search it returns a Model. `backbone`
    is the function that returns only its image network, for kinds that have one to train on.
    """

    loader: str
    searches: bool = False
    backbone: str | None = None

    def open(self, folder: Path | str) -> Any:
        """The model in the folder, as the kind's loader returns it."""
        return _call(self.loader, folder)

    def open_backbone(self, folder: Path | str) -> ImageNetwork:
        """The image network of the model in the folder."""
        assert self.backbone is not None
        network: ImageNetwork = _call(self.backbone, folder)
        return network


def _call(function: str, *arguments: object) -> Any:
    module, name = function.split(":")
    return getattr(import_module(module), name)(*arguments)


_BACKBONE = "capsearch.encoders.models.loaders:load_backbone"
KINDS: Mapping[str, Kind] = {
    "sentence": Kind("capsearch.encoders.models.loaders:load_sentence"),
    "backbone": Kind(_BACKBONE, backbone=_BACKBONE),
    "text": Kind("capsearch.encoders.models.loaders:load_text", searches=True),
    "tagger": Kind("capsearch.encoders.models.tagger:load"),
    "captioner": Kind("capsearch.encoders.models.captioner:load"),
    "clip": Kind(
        "capsearch.encoders.models.loaders:load_clip",
        searches=True,
        backbone="capsearch.encoders.models.loaders:load_image_tower",
    ),
}

# Their loaders take what follows the colon.
SCHEMES: Mapping[str, Kind] = {
    "open_clip": Kind(
        "capsearch.encoders.models.open_clip:load",
        searches=True,
        backbone="capsearch.encoders.models.open_clip:load_image_tower",
    ),
}


@dataclass(frozen=True, slots=True)
class Model:
    """Everything a search needs from the encoders, under one name and digest.

    `digest` covers backbone, projection and text encoders: vectors are comparable only if it is
    equal. `image.digest` covers the backbone alone: features are comparable only if that is.
    `path` is the model's folder if its name does not find it, e.g. because it was opened by path.
    `enricher` opens what describes images from its backbone's features, see `find_enricher`.
    """

    name: str
    digest: str
    image: ImageEncoder
    text: TextEncoder
    card: Mapping[str, object] = field(default_factory=dict)
    path: Path | None = None
    enricher: Callable[[], Enricher] = Enricher


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One line of `capsearch models`."""

    name: str
    kind: str
    languages: tuple[str, ...]
    size_bytes: int
    digest: str
    path: Path
    built_in: bool
    description: str


def user_models_dir() -> Path:
    """Where training and `models install` write: $CAPSEARCH_MODELS, or in the user data folder."""
    from platformdirs import user_data_path

    chosen = os.environ.get("CAPSEARCH_MODELS")
    return Path(chosen) if chosen else user_data_path("capsearch") / "models"


def searching_kinds() -> tuple[str, ...]:
    """The kinds of models that can search."""
    return tuple(name for name, kind in KINDS.items() if kind.searches)


def available() -> tuple[ModelSummary, ...]:
    """All models, the built-in ones first."""
    return tuple(_summary(folder) for folder in folders())


def load(name: str | None = None) -> Model:
    """Open a model that can search, by name or path, with the models it builds on.

    Cheap: arrays and the ONNX session open on first use. UnknownModel lists the models there are.
    """
    name = name or DEFAULT_MODEL
    scheme, rest = _scheme(name)
    if scheme is not None:
        other: Model = scheme.open(rest)
        return other
    folder = find(name, *searching_kinds())
    model: Model = _open(folder)
    return model if model.name == name else replace(model, path=folder)


def load_backbone(name: str) -> ImageNetwork:
    """Open a backbone by name or path, or the image tower of a CLIP-like model."""
    scheme, rest = _scheme(name)
    if scheme is not None:
        return scheme.open_backbone(rest)
    folder = find(name, *(kind for kind, one in KINDS.items() if one.backbone))
    return KINDS[model_folder.read_card(folder)["kind"]].open_backbone(folder)


def _scheme(name: str) -> tuple[Kind | None, str]:
    """The scheme of `open_clip:REST` and the rest; None for other names."""
    scheme, colon, rest = name.partition(":")
    return (SCHEMES.get(scheme), rest) if colon else (None, name)


def load_sentence(name: str) -> SentenceEncoder:
    """Open a sentence encoder by name or path."""
    encoder: SentenceEncoder = _open(find(name, "sentence"))
    return encoder


def load_tagger(name: str) -> BuiltInTagger:
    """Open a tagger by name or path."""
    tagger: BuiltInTagger = _open(find(name, "tagger"))
    return tagger


def load_captioner(name: str) -> BuiltInCaptioner:
    """Open a captioner by name or path."""
    captioner: BuiltInCaptioner = _open(find(name, "captioner"))
    return captioner


def find_enricher(backbone_digest: str) -> Enricher:
    """The tagger and the captioner trained on a backbone's features, by the digest on their cards.

    The user's own go before the built-in ones; among several, the last by name.
    """
    found: dict[str, Path] = {}
    for folder in folders():
        card = model_folder.read_card(folder)
        if card["kind"] in _HEADS and card.get("backbone_digest") == backbone_digest:
            built_in.check(folder)
            found[card["kind"]] = folder
    return Enricher(**{kind: _open(folder) for kind, folder in found.items()})


def find(name: str, *kinds: str) -> Path:
    """The absolute path of a model of one of these kinds, by name or path.

    UnknownModel if there is none, if it is of another kind, or if another model has the name of a
    built-in one.
    """
    folder = Path(reference(name)) if is_path(name) else _named(name, kinds)
    if not (folder / "model.json").is_file():
        raise UnknownModel(f"no model at {folder}; `capsearch models` lists those with a name")
    _check_kind(name, model_folder.read_card(folder)["kind"], kinds)
    return folder


def is_path(name: str) -> bool:
    """True for the path of a model's folder: it has a separator, which no name has."""
    scheme, _ = _scheme(name)
    separators = (os.sep, os.altsep, "/")
    return scheme is None and any(one in name for one in separators if one)


def reference(name: str) -> str:
    """A name unchanged, a path made absolute: what a card stores about a model it builds on."""
    scheme, colon, rest = name.partition(":")
    if scheme in SCHEMES and rest.startswith((".", "~")):
        return scheme + colon + str(Path(rest).expanduser().absolute())
    return str(Path(name).expanduser().absolute()) if is_path(name) else name


def check_new_name(name: str) -> None:
    """TrainingProblem unless a new model may have this name."""
    if is_path(name) or name in ("", ".", ".."):
        raise TrainingProblem(f"'{name}' cannot be a model's name; write a path as --output")
    if name in built_in.BUILT_IN:
        raise TrainingProblem(f"'{name}' is the name of a built-in model; choose another name")


def stored_digest(folder: Path, card: Mapping[str, Any]) -> str:
    """The digest of the card, computed once when the model was written; else of the files now."""
    return str(card.get("digest") or model_folder.digest(folder))


def _open(folder: Path) -> Any:
    return KINDS[model_folder.read_card(folder)["kind"]].open(folder)


def _check_kind(name: str, kind: str, expected: tuple[str, ...]) -> None:
    if kind not in KINDS:
        raise UnknownModel(
            f"{name} is a model of kind '{kind}'; this capsearch has {', '.join(KINDS)}: "
            "run `pip install -U capsearch`"
        )
    if kind not in expected:
        raise UnknownModel(f"{name} is a {kind} model, not a {' or '.join(expected)} model")


def _named(name: str, kinds: tuple[str, ...]) -> Path:
    found = [folder for folder in folders() if folder.name == name]
    if len(found) > 1:  # the built-in one goes first
        raise UnknownModel(
            f"'{name}' is a built-in model, and {found[1]} has the same name; rename that folder, "
            "or open it by its path"
        )
    if not found:
        raise _call("capsearch.encoders.models.install:missing", name, kinds)
    built_in.check(found[0])
    return found[0]


def folders() -> Iterator[Path]:
    """The built-in models, then the user's; without copies of built-in ones that are there."""
    shipped = {folder.name: folder for folder in built_in.folders()}
    yield from shipped.values()
    for card in sorted(user_models_dir().glob(f"*/{model_folder.CARD}")):
        folder = card.parent
        if not (folder.name in shipped and built_in.is_pinned(folder)):
            yield folder


def _summary(folder: Path) -> ModelSummary:
    card = model_folder.read_card(folder)
    return ModelSummary(
        name=str(card["name"]),
        kind=str(card["kind"]),
        languages=tuple(card.get("languages", ())),
        size_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        digest=stored_digest(folder, card),
        path=folder,
        built_in=built_in.is_pinned(folder),
        description=str(card.get("description", "")),
    )
