"""The initial weights of a backbone run: an ImageNet network, or a model to fine-tune further."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsearch.encoders import model_folder, models
from capsearch.encoders.training.nn.efficientnet import LITES
from capsearch.engine.errors import TrainingProblem, UnknownModel

_ARCHITECTURE = "EfficientNet-"


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """The network's name and, to fine-tune an existing model, its two folders."""

    lite: str
    text: Path | None = None
    backbone: Path | None = None

    @property
    def description(self) -> str:
        """For the card of the trained model."""
        if self.text is None or self.backbone is None:
            return f"ImageNet weights, sha256 {LITES[self.lite].sha256}, Apache-2.0"
        cards = [model_folder.read_card(folder) for folder in (self.text, self.backbone)]
        return " and ".join(f"{card['name']}@{card['digest']}" for card in cards)


def find_initial_weights(name: str) -> InitialWeights:
    """What `--from` names: lite0, lite1, lite2, or a text model with text encoders of its own."""
    if name in LITES:
        return InitialWeights(name)
    try:
        text = models.find(name, "text")
    except UnknownModel as problem:
        raise TrainingProblem(f"{problem}; or start from {', '.join(LITES)}") from problem
    card = model_folder.read_card(text)
    if "text" in card:
        raise TrainingProblem(
            f"{name} uses the text encoders of {card['text']}; start from that model"
        )
    backbone = models.find(str(card["backbone"]), "backbone")
    return InitialWeights(lite_of(model_folder.read_card(backbone)), text, backbone)


def architecture(lite: str) -> str:
    """The name of the network in a backbone's card; `lite_of` is the inverse."""
    return f"{_ARCHITECTURE}{lite}, batch norm folded"


def lite_of(card: Mapping[str, Any]) -> str:
    """The ImageNet network that a backbone was made from."""
    for lite in LITES:
        if card.get("architecture") == architecture(lite):
            return lite
    raise TrainingProblem(
        f"{card['name']} has an unknown architecture ({card.get('architecture', 'unnamed')}); "
        f"only {', '.join(LITES)} can be fine-tuned"
    )
