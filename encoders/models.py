"""Models by name: the built-in ones, those the user trained, and how to open them.

A model is a folder with a `model.json` that names its kind. KINDS is the table of kinds; a kind
may build on models of other kinds:

    sentence   a multilingual sentence encoder (use3)
    backbone   an image network: pixels to features
    text       text encoders and an image projection, trained on one backbone's features, or only
               a projection into the space of another text model

`load` opens a model that can search, together with the models it builds on. Built-in models are
part of the package, those of `capsearch train` are in the user's models folder; wherever a name
is expected, a path works as well.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.encoders import model_folder
from capsearch.engine.errors import UnknownModel
from capsearch.engine.protocols import ImageEncoder, TextEncoder

if TYPE_CHECKING:
    from capsearch.encoders.image import Backbone
    from capsearch.encoders.sentence import SentenceEncoder

DEFAULT_MODEL = "trio"
_BUILT_IN = Path(__file__).parent / "weights"


@dataclass(frozen=True, slots=True)
class Kind:
    """How models of one kind are opened.

    `loader` is "module:function", imported when the first model of the kind is opened. The
    function takes the model's folder. For kinds that can search it returns a Model.
    """

    loader: str
    searches: bool = False

    def open(self, folder: Path) -> Any:
        """The model in the folder, as the kind's loader returns it."""
        module, function = self.loader.split(":")
        return getattr(import_module(module), function)(folder)


KINDS: Mapping[str, Kind] = {
    "sentence": Kind("capsearch.encoders.loaders:load_sentence"),
    "backbone": Kind("capsearch.encoders.loaders:load_backbone"),
    "text": Kind("capsearch.encoders.loaders:load_text", searches=True),
}


@dataclass(frozen=True, slots=True)
class Model:
    """Everything a search needs from the encoders, under one name and digest.

    `digest` covers backbone, projection and text encoders: vectors are comparable only if it is
    equal. `image.digest` covers the backbone alone: features are comparable only if that is.
    """

    name: str
    digest: str
    image: ImageEncoder
    text: TextEncoder
    card: Mapping[str, object] = field(default_factory=dict)


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
    """The folder `capsearch train` writes to: $CAPSEARCH_MODELS or in the user's data folder."""
    from platformdirs import user_data_path

    chosen = os.environ.get("CAPSEARCH_MODELS")
    return Path(chosen) if chosen else user_data_path("capsearch") / "models"


def calibration_folder(folder: Path, card: Mapping[str, Any]) -> Path:
    """Where a model's evidence calibration lies: one made by this user first, or the model's."""
    own = user_models_dir() / "calibrations" / f"{card['name']}@{stored_digest(folder, card)}"
    return own if own.is_dir() else folder


def available() -> tuple[ModelSummary, ...]:
    """All models, the built-in ones first."""
    return tuple(_summary(folder) for folder in _folders())


def load(name: str | None = None) -> Model:
    """Open a model that can search, by name or path, with the models it builds on.

    Cheap: arrays and the ONNX session open on first use. UnknownModel lists the models there are.
    """
    searching = (kind for kind, how in KINDS.items() if how.searches)
    model: Model = _open(name or DEFAULT_MODEL, *searching)
    return model


def load_backbone(name: str) -> Backbone:
    """Open a backbone by name or path."""
    backbone: Backbone = _open(name, "backbone")
    return backbone


def load_sentence(name: str) -> SentenceEncoder:
    """Open a sentence encoder by name or path."""
    encoder: SentenceEncoder = _open(name, "sentence")
    return encoder


def find(name: str, *kinds: str) -> Path:
    """The folder of a model of one of these kinds, by name or path.

    A path goes first, then the user's models, then the built-in ones. UnknownModel if there is
    none, or if the first one found is of another kind.
    """
    for folder in (Path(name), user_models_dir() / name, _BUILT_IN / name):
        if (folder / "model.json").is_file():
            _check_kind(name, model_folder.read_card(folder)["kind"], kinds)
            return folder
    names = ", ".join(one.name for one in available() if one.kind in kinds) or "none"
    raise UnknownModel(f"no {' or '.join(kinds)} model called '{name}'; there is: {names}")


def stored_digest(folder: Path, card: Mapping[str, Any]) -> str:
    """The digest of the card, computed once when the model was written; else of the files now."""
    return str(card.get("digest") or model_folder.digest(folder))


def _open(name: str, *kinds: str) -> Any:
    folder = find(name, *kinds)
    return KINDS[model_folder.read_card(folder)["kind"]].open(folder)


def _check_kind(name: str, kind: str, expected: tuple[str, ...]) -> None:
    if kind not in KINDS:
        raise UnknownModel(
            f"{name} is a model of kind '{kind}'; this capsearch has {', '.join(KINDS)}: "
            "run `pip install -U capsearch`"
        )
    if kind not in expected:
        raise UnknownModel(f"{name} is a {kind} model, not a {' or '.join(expected)} model")


def _folders() -> Iterator[Path]:
    for root in (_BUILT_IN, user_models_dir()):
        if root.is_dir():
            yield from sorted(one for one in root.iterdir() if (one / "model.json").is_file())


def _summary(folder: Path) -> ModelSummary:
    card = model_folder.read_card(folder)
    return ModelSummary(
        name=str(card["name"]),
        kind=str(card["kind"]),
        languages=tuple(card.get("languages", ())),
        size_bytes=sum(path.stat().st_size for path in folder.iterdir()),
        digest=stored_digest(folder, card),
        path=folder,
        built_in=folder.parent == _BUILT_IN,
        description=str(card.get("description", "")),
    )
