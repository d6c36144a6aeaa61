"""The initial weights of a backbone run: a pretrained network, or a model to fine-tune further."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from capsearch.encoders import model_folder, models
from capsearch.encoders.training.nn.networks import NETWORKS, network, network_of
from capsearch.engine.errors import TrainingProblem, UnknownModel


@dataclass(frozen=True, slots=True)
class InitialWeights:
    """The network's name and, to fine-tune an existing model, its two folders."""

    network: str
    text: Path | None = None
    backbone: Path | None = None

    @property
    def description(self) -> str:
        """For the card of the trained model."""
        if self.text is None or self.backbone is None:
            return network(self.network).source
        cards = [model_folder.read_card(folder) for folder in (self.text, self.backbone)]
        return " and ".join(f"{card['name']}@{card['digest']}" for card in cards)


def find_initial_weights(name: str, own_text: bool = True) -> InitialWeights:
    """What `--from` names: a network of the table, or a search model to train on.

    With `own_text`, the model must have text encoders of its own.
    """
    if name in NETWORKS:
        return InitialWeights(name)
    try:
        text = models.find(name, "text")
    except UnknownModel as problem:
        raise TrainingProblem(f"{problem}; or start from {', '.join(NETWORKS)}") from problem
    card = model_folder.read_card(text)
    if own_text and "text" in card:
        raise TrainingProblem(
            f"{name} uses the text encoders of {card['text']}; start from that model"
        )
    backbone = models.find(str(card["backbone"]), "backbone")
    made = model_folder.read_card(backbone)
    title = str(made.get("architecture", "unnamed"))
    return InitialWeights(network_of(title, str(made["name"])), text, backbone)
