"""Models by name: what is built in, what the user trained, and how to open them.

A model is a folder with a `model.json`. Three kinds build on each other:

    sentence   a sentence encoder            (use3)
    backbone   a network from pixels to features
    text       text encoders and an image projection, trained on one backbone's features,
               or only a projection into another text model's space

`load` opens a text model with what it stands on. Built-in models lie in the package, those
of `capsearch train` in the user's models folder; a path works as well as a name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsearch.encoders import model_folder
from capsearch.encoders.hubness import NO_PENALTY, Hubness, HubnessPenalty
from capsearch.encoders.image import Backbone, ProjectedImageEncoder
from capsearch.encoders.sentence import SentenceEncoder
from capsearch.encoders.text import LanguageEncoder, SharedTextEncoder, caption_vectors
from capsearch.engine.errors import UnknownModel
from capsearch.engine.protocols import ImageEncoder, TextEncoder

DEFAULT_MODEL = "trio"
_BUILT_IN = Path(__file__).parent / "weights"


@dataclass(frozen=True, slots=True)
class Model:
    """Everything a search needs from the encoders, under one name and digest.

    `digest` covers backbone, projection and text encoders: vectors are comparable only
    within it. `image.digest` covers the backbone alone: features are comparable within that.
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
    """Where `capsearch train` puts models: $CAPSEARCH_MODELS or the user's data folder."""
    from platformdirs import user_data_path

    chosen = os.environ.get("CAPSEARCH_MODELS")
    return Path(chosen) if chosen else user_data_path("capsearch") / "models"


def available() -> tuple[ModelSummary, ...]:
    """All models, the built-in ones first."""
    return tuple(_summary(folder) for folder in _folders())


def load(name: str | None = None) -> Model:
    """Open a text model by name or path, with its backbone and sentence encoder.

    Cheap: arrays and the ONNX session open on first use. UnknownModel lists what there is.
    """
    folder = find(name or DEFAULT_MODEL, "text")
    card = model_folder.read_card(folder)
    backbone = load_backbone(str(card["backbone"]))
    words = _words(folder, card)
    return Model(
        name=str(card["name"]),
        digest=_digest(folder, card),
        image=ProjectedImageEncoder(
            backbone=backbone,
            width=int(card["dimension"]),
            projection=folder / "image.safetensors",
            hubness=Hubness(_hubness_penalty(card, "image"), words, lambda bank: bank.visual),
        ),
        text=_text_encoder(folder, words, card),
        card=card,
    )


def load_backbone(name: str) -> Backbone:
    """Open a backbone by name or path."""
    folder = find(name, "backbone")
    card = model_folder.read_card(folder)
    return Backbone(
        name=str(card["name"]),
        digest=_digest(folder, card),
        input_size=int(card["input_size"]),
        dimension=int(card["dimension"]),
        path=folder / "backbone.onnx",
    )


def find(name: str, kind: str) -> Path:
    """The folder of a model of a kind, by name or path."""
    for folder in (Path(name), user_models_dir() / name, _BUILT_IN / name):
        if (folder / "model.json").is_file():
            found = model_folder.read_card(folder)["kind"]
            if found != kind:
                raise UnknownModel(f"{name} is a {found} model, not a {kind} model")
            return folder
    there = ", ".join(one.name for one in available() if one.kind == kind) or "none"
    raise UnknownModel(f"no {kind} model called '{name}'; there is: {there}")


def _digest(folder: Path, card: Mapping[str, Any]) -> str:
    """The stored digest; a model's files are hashed once, when it is written."""
    return str(card.get("digest") or model_folder.digest(folder))


def _words(folder: Path, card: Mapping[str, Any]) -> Path:
    """The folder with the text encoders: a model's own, or that of the model it borrows from.

    A backbone of its own may project into another model's space; its penalties and its weights
    for CLM are its own, since they depend on how well it sees.
    """
    return find(str(card["text"]), "text") if "text" in card else folder


def _text_encoder(folder: Path, words: Path, card: Mapping[str, Any]) -> SharedTextEncoder:
    share = float(card["sentence_weight"])
    return SharedTextEncoder(
        name=str(card["name"]),
        digest=_digest(folder, card),
        width=int(card["dimension"]),
        encoders={language: LanguageEncoder(language, words) for language in card["languages"]},
        sentences=SentenceEncoder(find(str(card["sentence"]), "sentence")),
        folder=words,
        clm_weights=card["clm_weights"],
        cl_floors=card["cl_floors"],
        sentence_weight=share,
        hubness=Hubness(
            _hubness_penalty(card, "caption"),
            words,
            lambda bank: caption_vectors(bank.visual, bank.sentence, share),
        ),
    )


def _hubness_penalty(card: Mapping[str, Any], side: str) -> HubnessPenalty:
    """Of a model's images or captions; models of older versions have none."""
    stored = card.get("hubness")
    return HubnessPenalty(**stored[side]) if stored else NO_PENALTY


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
        digest=_digest(folder, card),
        path=folder,
        built_in=folder.parent == _BUILT_IN,
        description=str(card.get("description", "")),
    )
