"""Where a backbone run starts: an ImageNet network, or a model that learns on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from capsearch.encoders import models, storage
from capsearch.encoders.training.backbone import Eyes, LowerHalf, upper_half
from capsearch.encoders.training.efficientnet import LITES
from capsearch.encoders.training.network import ImageProjection
from capsearch.engine.errors import TrainingProblem, UnknownModel

_ARCHITECTURE = "EfficientNet-"


@dataclass(frozen=True, slots=True)
class Start:
    """An ImageNet network's name and, where words and eyes are there already, their folders."""

    lite: str
    text: Path | None = None
    eyes: Path | None = None

    @property
    def described(self) -> str:
        """For the card of what comes out."""
        if self.text is None or self.eyes is None:
            return f"ImageNet weights, sha256 {LITES[self.lite].sha256}, Apache-2.0"
        cards = [storage.read_card(folder) for folder in (self.text, self.eyes)]
        return " and ".join(f"{card['name']}@{card['digest']}" for card in cards)


def start_of(name: str) -> Start:
    """What `--from` names: lite0, lite1, lite2, or a text model with encoders of its own."""
    if name in LITES:
        return Start(name)
    try:
        text = models.find(name, "text")
    except UnknownModel as problem:
        raise TrainingProblem(f"{problem}; or start from {', '.join(LITES)}") from problem
    card = storage.read_card(text)
    if "text" in card:
        raise TrainingProblem(f"{name} borrows its words from {card['text']}; start from that")
    eyes = models.find(str(card["backbone"]), "backbone")
    return Start(lite_of(storage.read_card(eyes)), text, eyes)


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


def eyes_of(folder: Path, lower: LowerHalf) -> Eyes:
    """A backbone's upper half as it is served, put into the network of `lower`.

    The lower blocks are never trained, so activations of `lower` serve every backbone made
    from the same ImageNet network.
    """
    weights = _weights(folder / "backbone.onnx")
    eyes = upper_half(lower, weights["mean"], weights["deviation"])
    network = {
        name.removeprefix("network."): value
        for name, value in weights.items()
        if name.startswith("network.")
    }
    lower_blocks = tuple(f"blocks.{number}." for number in range(eyes.start))
    upper = {
        name: value
        for name, value in network.items()
        if not name.startswith(("stem.", *lower_blocks))
    }
    lower.network.load_state_dict({**lower.network.state_dict(), **upper})
    return eyes


def _weights(path: Path) -> dict[str, Tensor]:
    """A backbone's arrays by their names in torch, as float32."""
    import onnx
    from onnx import numpy_helper

    return {
        weight.name.removesuffix(".half"): torch.tensor(numpy_helper.to_array(weight)).float()
        for weight in onnx.load(path).graph.initializer
    }


def load_projection(folder: Path, into: ImageProjection) -> None:
    """A text model's image side back in torch."""
    stored = storage.Arrays(folder / "image.safetensors")
    with torch.no_grad():
        into.linear.weight.copy_(torch.from_numpy(stored["image_W"]))
        into.linear.bias.copy_(torch.from_numpy(stored["image_b"]))
