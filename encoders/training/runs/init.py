"""Where a backbone run starts: an ImageNet network, or a model that learns on."""

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
class Start:
    """An ImageNet network's name and, where words and eyes are there already, their folders."""

    lite: str
    text: Path | None = None
    backbone: Path | None = None

    @property
    def described(self) -> str:
        """For the card of what comes out."""
        if self.text is None or self.backbone is None:
            return f"ImageNet weights, sha256 {LITES[self.lite].sha256}, Apache-2.0"
        cards = [model_folder.read_card(folder) for folder in (self.text, self.backbone)]
        return " and ".join(f"{card['name']}@{card['digest']}" for card in cards)


def start_of(name: str) -> Start:
    """What `--from` names: lite0, lite1, lite2, or a text model with encoders of its own."""
    if name in LITES:
        return Start(name)
    try:
        text = models.find(name, "text")
    except UnknownModel as problem:
        raise TrainingProblem(f"{problem}; or start from {', '.join(LITES)}") from problem
    card = model_folder.read_card(text)
    if "text" in card:
        raise TrainingProblem(f"{name} borrows its words from {card['text']}; start from that")
    eyes = models.find(str(card["backbone"]), "backbone")
    return Start(lite_of(model_folder.read_card(eyes)), text, eyes)


def architecture(lite: str) -> str:
    """What a backbone's card calls its network; `lite_of` reads it back."""
    return f"{_ARCHITECTURE}{lite}, batch norm folded"


def lite_of(card: Mapping[str, Any]) -> str:
    """The ImageNet network a backbone was made from."""
    for lite in LITES:
        if card.get("architecture") == architecture(lite):
            return lite
    raise TrainingProblem(
        f"{card['name']} is no network of ours ({card.get('architecture', 'unnamed')}); its "
        "upper blocks cannot be trained"
    )
