"""The loaders of `registry.KINDS`: from a model folder to its encoders."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from capsearch.encoders.models import clip, model_folder, registry
from capsearch.encoders.models.calibration import StoredEvidence
from capsearch.encoders.models.clip import OnnxTextTower, Tokens
from capsearch.encoders.models.hubness import NO_PENALTY, Hubness, HubnessPenalty
from capsearch.encoders.models.image import Backbone, ProjectedImageEncoder
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.sentence import SentenceEncoder
from capsearch.encoders.models.text import calibration_folder, caption_vectors
from capsearch.encoders.models.w2vv import LanguageEncoder, SharedTextEncoder
from capsearch.engine.errors import UnknownModel


def load_sentence(folder: Path) -> SentenceEncoder:
    """Kind `sentence`."""
    return SentenceEncoder(folder)


def load_backbone(folder: Path) -> Backbone:
    """Kind `backbone`."""
    card = model_folder.read_card(folder)
    return Backbone(
        name=str(card["name"]),
        digest=registry.stored_digest(folder, card),
        input_size=int(card["input_size"]),
        dimension=int(card["dimension"]),
        path=folder / "backbone.onnx",
        resample=str(card.get("resample", "bilinear")),
        resize=str(card.get("resize", "squash")),
    )


def load_clip(folder: Path) -> Model:
    """Kind `clip`."""
    card = model_folder.read_card(folder)
    tokens = Tokens(folder, card["clean"], tuple(card["zeroed"]), bool(card["trim"]))
    text = OnnxTextTower(folder / "text.onnx", int(card["dimension"]), tokens)
    name, calibration = str(card["name"]), calibration_folder(folder, card)
    return clip.build(name, card, load_image_tower(folder), text, calibration)


def load_image_tower(folder: Path) -> Backbone:
    """The image tower of kind `clip`."""
    card = model_folder.read_card(folder)
    return Backbone(
        name=str(card["name"]),
        digest=str(card["backbone_digest"]),
        input_size=int(card["input_size"]),
        dimension=int(card["dimension"]),
        path=folder / "image.onnx",
        resample=str(card["resample"]),
        resize=str(card["resize"]),
    )


def load_text(folder: Path) -> Model:
    """Kind `text`, with the backbone and the sentence encoder that its card names."""
    card = _with_paths(folder, model_folder.read_card(folder))
    text_folder = _text_folder(folder, card)
    image = _image_encoder(folder, text_folder, card)
    return Model(
        name=str(card["name"]),
        digest=registry.stored_digest(folder, card),
        image=image,
        text=_text_encoder(folder, text_folder, card),
        card=card,
        enricher=partial(registry.find_enricher, image.digest),
    )


def _with_paths(folder: Path, card: Mapping[str, Any]) -> dict[str, Any]:
    """The card, with the relative paths in it absolute: they start at the model's folder."""
    paths = {
        key: str(folder / card[key])
        for key in ("backbone", "sentence", "text")
        if key in card and registry.is_path(str(card[key]))
    }
    return {**card, **paths}


def _check_digest(card: Mapping[str, Any], part: str, found: str) -> None:
    """UnknownModel unless a model it builds on is the one it was trained with."""
    expected = card.get(f"{part}_digest", found)  # cards of other tools may have none
    if found != expected:
        raise UnknownModel(
            f"{card['name']} was trained with {card[part]}@{expected}, but {card[part]} is now "
            f"@{found}: the results would be wrong; restore that model, or train again"
        )


def _text_folder(folder: Path, card: Mapping[str, Any]) -> Path:
    """The folder of the text encoders: the model's own, or that of the text model it names.

    A model that only projects into the space of another uses that model's text encoders and
    query bank. Its hubness penalties and CLM weights are its own, since they depend on the
    quality of its image vectors.
    """
    if "text" not in card:
        return folder
    other = registry.find(str(card["text"]), "text")
    _check_digest(card, "text", registry.stored_digest(other, model_folder.read_card(other)))
    return other


def _image_encoder(
    folder: Path, text_folder: Path, card: Mapping[str, Any]
) -> ProjectedImageEncoder:
    backbone = registry.load_backbone(str(card["backbone"]))
    _check_digest(card, "backbone", backbone.digest)
    return ProjectedImageEncoder(
        backbone=backbone,
        width=int(card["dimension"]),
        projection=folder / "image.safetensors",
        hubness=Hubness(_hubness_penalty(card, "image"), text_folder, lambda bank: bank.visual),
    )


def _text_encoder(folder: Path, text_folder: Path, card: Mapping[str, Any]) -> SharedTextEncoder:
    weight = float(card["sentence_weight"])
    return SharedTextEncoder(
        name=str(card["name"]),
        digest=registry.stored_digest(folder, card),
        width=int(card["dimension"]),
        encoders={
            language: LanguageEncoder(language, text_folder) for language in card["languages"]
        },
        sentences=registry.load_sentence(str(card["sentence"])),
        folder=text_folder,
        clm_weights=card["clm_weights"],
        cl_floors=card["cl_floors"],
        sentence_weight=weight,
        hubness=Hubness(
            _hubness_penalty(card, "caption"),
            text_folder,
            lambda bank: caption_vectors(bank.visual, bank.sentence, weight),
        ),
        evidence=StoredEvidence(calibration_folder(folder, card)),
    )


def _hubness_penalty(card: Mapping[str, Any], side: str) -> HubnessPenalty:
    """The penalty for images or for captions; models of older versions have none."""
    stored = card.get("hubness")
    return HubnessPenalty(**stored[side]) if stored else NO_PENALTY
