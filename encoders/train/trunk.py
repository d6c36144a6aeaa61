"""What a network needs to be fine-tuned as a backbone: it can be cut between two of its blocks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """A part of a trunk that takes and gives a map of activations.

    `drop` is the probability that an image skips a branch that is added to the block's input, in
    training (stochastic depth); blocks without such a branch ignore it.
    """

    drop = 0.0

    def dropped(self, branch: Tensor) -> Tensor:
        """A branch (N, ...) without the images that skip it; the expectation stays the same."""
        if not self.training or not self.drop:
            return branch
        active = torch.rand(len(branch), *[1] * (branch.dim() - 1)) >= self.drop
        return branch * (active / (1.0 - self.drop))


class Trunk(nn.Module, ABC):
    """Scaled pixels (N, 3, S, S) to a feature map (N, F, H, W), by a stem, blocks and a head."""

    blocks: nn.ModuleList
    head: nn.Module

    @abstractmethod
    def scale(self, pixels: Tensor) -> Tensor:
        """(N, S, S, 3) uint8 -> (N, 3, S, S) as the pretrained weights expect."""

    @abstractmethod
    def stem_of(self, x: Tensor) -> Tensor:
        """Activations before the first block."""

    @abstractmethod
    def head_of(self, x: Tensor) -> Tensor:
        """The feature map from the activations after the last block."""

    def lower(self, x: Tensor, until: int) -> Tensor:
        """Activations before block `until`, from scaled pixels."""
        x = self.stem_of(x)
        for block in self.blocks[:until]:
            x = block(x)
        return x

    def feature_map(self, x: Tensor, start: int) -> Tensor:
        """(N, F, H, W) before pooling, from the activations before block `start`."""
        for block in self.blocks[start:]:
            x = block(x)
        return self.head_of(x)

    def upper(self, x: Tensor, start: int) -> Tensor:
        """(N, F) features from the activations before block `start`."""
        return self.feature_map(x, start).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) features from scaled pixels."""
        return self.upper(self.lower(x, 0), 0)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A pretrained network by name: how it is fed, where it is cut, where its weights come from."""

    title: str  # in a backbone's card
    input_size: int
    features: int  # channels of the feature map
    first_trained: int  # blocks from here on are fine-tuned; the activations before it are cached
    source: str  # of the weights, for the card
    load: Callable[[], Trunk]
    crops: bool  # a smaller map of activations is allowed
