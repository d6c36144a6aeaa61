"""A backbone in two halves: frozen lower blocks, and upper blocks fine-tuned against captions.

Two cores suffice because the frozen lower blocks run once: their activations are cached on disk
(69 kB an image for lite2, float16) and every epoch runs only the upper blocks, with batch norm
folded away. Flips and crops are applied to the activations.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor, nn

from capsearch.encoders.images.preprocess import squash
from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.image import open_session
from capsearch.encoders.train.dual_encoder import DualEncoder, TrainingSet, image_features
from capsearch.encoders.train.graphs import to_onnx
from capsearch.encoders.train.networks import NETWORKS, Block, Trunk, network, network_of
from capsearch.engine.errors import TrainingProblem, UnknownModel
from capsearch.engine.records import Pixels, Vectors

MAX_CROP = 5  # rows and columns of activations that a training crop may remove
DROP = 0.15  # probability that an image skips the last block in training; lower for earlier ones
CROP_GROUP = 64  # images that share a crop
SAMPLE = 4096  # images whose features are standardised again


class UpperBlocks(nn.Module):
    """The trained half: activations (N, H, W, C) to standardised features (N, F).

    In training each image is flipped with probability .5 and skips blocks at random (stochastic
    depth). If the network takes smaller maps (`crops`), each group of the batch is cropped by a few
    rows and columns. Flipped activations approximate those of the flipped image (cosine .88 after
    the network, where two views of an image have .91) at no cost.
    """

    def __init__(
        self, network: Trunk, start: int, mean: Tensor, deviation: Tensor, crops: bool = True
    ) -> None:
        super().__init__()
        self.start, self.max_crop = start, MAX_CROP if crops else 0
        self.blocks = network.blocks[start:]
        self.head = network.head
        self._head_of = network.head_of  # of the same module, whose parameters are self.head's
        for depth, block in enumerate(self.blocks, start=1):
            assert isinstance(block, Block)
            block.drop = DROP * depth / len(self.blocks)
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        # A third faster than channels first; torch's stubs do not know the argument.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, activations: Tensor) -> Tensor:
        """(N, F)."""
        x = activations.permute(0, 3, 1, 2)  # stored channels last
        if self.training:
            groups = torch.split(x, CROP_GROUP)
            features = torch.cat([self._pooled(_augment(group, self.max_crop)) for group in groups])
        else:
            features = self._pooled(x)
        return (features - self.mean) / self.deviation

    def _pooled(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self._head_of(x).mean((2, 3))


def _augment(x: Tensor, max_crop: int) -> Tensor:
    """One crop for all of these activations, and a flip for each image with probability .5."""
    side = x.shape[-1]
    size = side - int(torch.randint(0, min(max_crop, side - 1) + 1, ()))
    top, left = (int(torch.randint(0, side - size + 1, ())) for _ in range(2))
    x = x[:, :, top : top + size, left : left + size]
    flipped = torch.rand(len(x), 1, 1, 1) < 0.5
    return torch.where(flipped, x.flip(3), x).contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True)
class LowerBlocks:
    """The frozen half as an encoder of images: it fills the activation cache."""

    name: str
    network: Trunk

    @property
    def input_size(self) -> int:
        """Side of the square an image is squashed to."""
        return network(self.name).input_size

    def preprocess(self, image: Image) -> Pixels:
        """The whole image, squashed to the input size."""
        return squash(image, self.input_size)

    def activations(self, pixels: list[Pixels]) -> tuple[NDArray[np.float16], Vectors]:
        """(N, H, W, C) before the first trained block, and the pretrained (N, F) features."""
        lower, features = self._session.run(None, {"pixels": np.stack(pixels)})
        return lower.astype(np.float16), features

    @cached_property
    def _session(self) -> Any:
        """The network with its current weights in ONNX Runtime, which is faster than torch."""
        halves = _Halves(self.network, network(self.name).first_trained).eval()
        with TemporaryDirectory() as folder:
            file = Path(folder) / "halves.onnx"
            to_onnx(halves, self.input_size, file, ["activations", "features"])
            return open_session(file.read_bytes())


class _Halves(nn.Module):
    """Pixels in; activations (N, H, W, C) between the halves and features (N, F) out."""

    def __init__(self, network: Trunk, start: int) -> None:
        super().__init__()
        self.network = network
        self.start = start

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        lower = self.network.lower(self.network.scale(pixels), self.start)
        return lower.permute(0, 2, 3, 1), self.network.upper(lower, self.start)


def lower_blocks_of(name: str) -> LowerBlocks:
    """The frozen half of a pretrained network."""
    return LowerBlocks(name, network(name).load().requires_grad_(False))


def upper_blocks_of(lower: LowerBlocks, mean: Tensor, deviation: Tensor) -> UpperBlocks:
    """The trained half; it shares its weights with the whole network of `lower`."""
    whole, chosen = lower.network.requires_grad_(True), network(lower.name)
    return UpperBlocks(whole, chosen.first_trained, mean, deviation, chosen.crops)


def restandardise(model: DualEncoder, images: TrainingSet) -> None:
    """Make the fine-tuned features mean 0, deviation 1 again without changing image vectors.

    Whatever is trained on the backbone later (text encoders, taggers, captioners) expects
    standardised features.
    """
    backbone = model.backbone
    assert isinstance(backbone, UpperBlocks)
    sample = TrainingSet(images.inputs[:, sample_rows(len(images))], {})
    features = torch.from_numpy(image_features(model, sample))
    mean, deviation = features.mean(0), features.std(0)
    deviation[deviation < 1e-3] = 1.0  # channels that never fire stay as they are
    with torch.no_grad():
        linear = model.image.linear
        linear.bias.add_(linear.weight @ mean)
        linear.weight.mul_(deviation)
        backbone.mean += backbone.deviation * mean
        backbone.deviation *= deviation


def sample_rows(count: int) -> NDArray[np.int64]:
    """Some of `count` rows, ascending, the same in every run."""
    return np.sort(np.random.default_rng(0).permutation(count)[:SAMPLE])


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
        text = registry.find(name, "text")
    except UnknownModel as problem:
        raise TrainingProblem(f"{problem}; or start from {', '.join(NETWORKS)}") from problem
    card = model_folder.read_card(text)
    if own_text and "text" in card:
        raise TrainingProblem(
            f"{name} uses the text encoders of {card['text']}; start from that model"
        )
    backbone = registry.find(str(card["backbone"]), "backbone")
    made = model_folder.read_card(backbone)
    title = str(made.get("architecture", "unnamed"))
    return InitialWeights(network_of(title, str(made["name"])), text, backbone)
