"""The transformer decoder, and the network of an image embedding and its decoders."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import Tensor, nn

from capsearch.encoders.captioners import IMAGE, CaptionDecoders
from capsearch.encoders.captioners.decoders import Weights
from capsearch.encoders.captioners.transformer import HEAD_WIDTH
from capsearch.encoders.captioners.vocabulary import CaptionVocabulary
from capsearch.encoders.training.nn.caption_decoders import (
    Arrays,
    CaptionConfig,
    CaptionDecoder,
    FirstStepRnn,
    ImageBatch,
    MultimodalLayerRnn,
    PooledEmbedding,
    ShowAndTell,
    Tensors,
    linear_tensors,
    numpy_of,
)
from capsearch.engine.errors import TrainingProblem


class MapEmbedding(nn.Module):
    """What a transformer attends to: the cells of the feature map, and the pooled feature."""

    def __init__(self, pooled: int, cells: tuple[int, int], width: int) -> None:
        super().__init__()
        count, channels = cells
        self.norm = nn.LayerNorm(channels, elementwise_affine=False)
        self.grid = nn.Linear(channels, width)
        self.cells = nn.Parameter(torch.randn(count, width) * 0.02)
        self.pooled = nn.Linear(pooled, width)

    def forward(self, images: ImageBatch) -> Tensor:
        """(N, G + 1, D)."""
        cells = self.grid(self.norm(images.grid)) + self.cells
        return torch.cat([cells, self.pooled(images.pooled)[:, None]], 1)

    def tensors(self) -> Tensors:
        """Parameters by the names of `encoders.captioners`."""
        linear = {**linear_tensors("grid", self.grid), **linear_tensors("pooled", self.pooled)}
        return {**linear, "cells": self.cells}


class _Layer(nn.Module):
    """Self attention, attention over the image, feed-forward network; norms before each."""

    def __init__(self, config: CaptionConfig) -> None:
        super().__init__()
        width = config.width
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(3))
        self.own = nn.Linear(width, 3 * width)
        self.own_out = nn.Linear(width, width)
        self.image = nn.Linear(width, width)
        self.memory = nn.Linear(width, 2 * width)
        self.image_out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, images: Tensor) -> Tensor:
        """(B, T, D), (B, M, D) -> (B, T, D)."""
        attend = nn.functional.scaled_dot_product_attention
        query, key, value = map(_heads, self.own(self.norms[0](x)).chunk(3, 2))
        mixed = attend(query, key, value, is_causal=True)
        x = x + self.dropout(self.own_out(_joined(mixed)))
        query = _heads(self.image(self.norms[1](x)))
        key, value = map(_heads, self.memory(images).chunk(2, 2))
        x = x + self.dropout(self.image_out(_joined(attend(query, key, value))))
        return cast(Tensor, x + self.dropout(self.down(torch.relu(self.up(self.norms[2](x))))))

    def tensors(self) -> Tensors:
        """Parameters by the names of `encoders.captioners`."""
        layers = {"self": self.own, "self_out": self.own_out, "image": self.image}
        layers |= {"memory": self.memory, "image_out": self.image_out}
        layers |= {"up": self.up, "down": self.down}
        found: dict[str, Tensor] = {}
        for name, layer in layers.items():
            found |= linear_tensors(name, layer)
        for at, norm in enumerate(self.norms):
            assert isinstance(norm, nn.LayerNorm)
            found |= {f"norm{at}_g": norm.weight, f"norm{at}_b": norm.bias}
        return found


class Transformer(CaptionDecoder):
    """Attends to the feature map; its embedding is also its output layer."""

    def __init__(self, vocabulary: CaptionVocabulary, config: CaptionConfig) -> None:
        super().__init__(vocabulary, config)
        if config.width % HEAD_WIDTH:
            raise TrainingProblem(f"a transformer's --width is a multiple of {HEAD_WIDTH}")
        self.out = None
        self.bias = nn.Parameter(torch.zeros(len(vocabulary)))
        self.positions = nn.Parameter(torch.randn(config.max_words + 1, config.width) * 0.02)
        self.layers = nn.ModuleList(_Layer(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """The first token is the start token, whose embedding marks every position."""
        language = self.embedding(tokens[:, :1])
        x = self.embedding(tokens) + language + self.positions[: tokens.shape[1]]
        x = self.dropout(x)
        for layer in self.layers:
            x = layer(x, images)
        return cast(Tensor, self.norm(x))

    def tensors(self) -> Tensors:
        """Parameters by the names of `encoders.captioners`."""
        found: dict[str, Tensor] = {
            "positions": self.positions,
            "norm_g": self.norm.weight,
            "norm_b": self.norm.bias,
        }
        for at, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            found |= {f"layer{at}.{name}": one for name, one in layer.tensors().items()}
        return found

    def _bias(self) -> Tensor:
        return self.bias


DECODERS: Mapping[str, type[CaptionDecoder]] = {
    "transformer": Transformer,
    "show-and-tell": ShowAndTell,
    "m-rnn": MultimodalLayerRnn,
    "multimodal-rnn": FirstStepRnn,
}


class CaptionNetwork(nn.Module):
    """An image embedding and its decoders, by the names of their groups of languages."""

    def __init__(
        self,
        pooled: int,
        cells: tuple[int, int],
        groups: Mapping[str, CaptionVocabulary],
        config: CaptionConfig,
        seed: int,
    ) -> None:
        """`pooled`: the width of pooled features; `cells`: G and C of feature maps (N, G, C)."""
        super().__init__()
        if config.architecture not in DECODERS:
            names = ", ".join(DECODERS)
            raise TrainingProblem(f"no decoder '{config.architecture}'; there is {names}")
        torch.manual_seed(seed)
        self.config = config
        self.groups = groups
        embedding = MapEmbedding if config.architecture == "transformer" else PooledEmbedding
        self.image = embedding(pooled, cells, config.width)
        decoder = DECODERS[config.architecture]
        self.decoders = nn.ModuleDict({name: decoder(one, config) for name, one in groups.items()})

    def group_of(self, language: str) -> str:
        """The name of the decoder that writes a language."""
        return next(name for name, found in self.groups.items() if language in found.languages)

    def decoder(self, group: str) -> CaptionDecoder:
        """A decoder by name."""
        found = self.decoders[group]
        assert isinstance(found, CaptionDecoder)
        return found

    def served(self) -> CaptionDecoders:
        """The same network in numpy, with its current weights."""
        return CaptionDecoders(self.config.architecture, self.groups, self.arrays())

    def arrays(self) -> Arrays:
        """Everything that is stored, by the names of `encoders.captioners`."""
        return {name: numpy_of(one) for name, one in self._tensors().items()}

    def load(self, arrays: Weights) -> None:
        """Take over what is stored; TrainingProblem where parameters cannot be told from it."""
        with torch.no_grad():
            for name, one in self._tensors().items():
                if not isinstance(one, nn.Parameter):  # a sum of two
                    decoder = self.config.architecture
                    raise TrainingProblem(f"a {decoder} decoder cannot be trained on from a model")
                one.copy_(torch.from_numpy(arrays[name]))

    def _tensors(self) -> Tensors:
        found = {f"{IMAGE}.{name}": one for name, one in self.image.tensors().items()}
        for group in self.groups:
            tensors = self.decoder(group).all_tensors()
            found |= {f"{group}.{name}": one for name, one in tensors.items()}
        return found


def _heads(x: Tensor) -> Tensor:
    """(B, T, D) -> (B, H, T, 64)."""
    return x.reshape(*x.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    """(B, H, T, 64) -> (B, T, D)."""
    return x.transpose(1, 2).flatten(2)
