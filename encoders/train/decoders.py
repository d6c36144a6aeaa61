"""Caption decoders in torch: a transformer, and the recurrent ones of the papers.

A network is an embedding of the image, shared by its decoders, and one or more decoders, each for
one or more languages. Parameters are exported under the names in `arrays`, with which
`encoders.models.captioner` decodes in numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.models.caption_decoders import HEAD_WIDTH, Weights
from capsearch.encoders.models.caption_search import CaptionVocabulary
from capsearch.encoders.models.captioner import IMAGE, CaptionDecoders
from capsearch.engine.errors import TrainingProblem

Arrays = Mapping[str, NDArray[np.float32]]
Tensors = Mapping[str, Tensor]
_PADDING = -100


@dataclass(frozen=True, slots=True)
class ImageBatch:
    """Features of N images: (N, F) pooled and, for attention, (N, G, C)."""

    pooled: Tensor
    grid: Tensor


@dataclass(frozen=True, slots=True)
class CaptionConfig:
    """A decoder; the defaults are those of the built-in captioner."""

    architecture: str = "transformer"
    width: int = 256
    layers: int = 3
    dropout: float = 0.1
    max_words: int = 24  # longer captions are not trained on
    label_smoothing: float = 0.1


class CaptionDecoder(nn.Module, ABC):
    """Outputs for every position of some captions, given the words before it."""

    def __init__(self, vocabulary: CaptionVocabulary, config: CaptionConfig) -> None:
        super().__init__()
        self.vocabulary = vocabulary
        self.embedding = nn.Embedding(len(vocabulary), config.width)
        self.out: nn.Linear | None = nn.Linear(config.width, len(vocabulary))
        self.dropout = nn.Dropout(config.dropout)
        nn.init.normal_(self.embedding.weight, std=config.width**-0.5)

    @abstractmethod
    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """(B, ...) embedded images, (B, T) rows of the words before -> (B, T, D) outputs."""

    @abstractmethod
    def tensors(self) -> Tensors:
        """What is stored but embedding and output, by the names of `encoders.models.captioner`."""

    def logits(self, hidden: Tensor, language: str) -> Tensor:
        """(..., D) outputs -> (..., W + 1) for a language's words."""
        rows = torch.from_numpy(self.vocabulary.outputs(language))
        return nn.functional.linear(hidden, self._table()[rows], self._bias()[rows])

    def predictions(
        self, images: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(P, W + 1) logits and (P,) positions of all words, and (B, T) where there are words."""
        targets = nn.utils.rnn.pad_sequence(
            [torch.from_numpy(positions) for positions in sentences],
            batch_first=True,
            padding_value=_PADDING,
        )
        rows = torch.from_numpy(self.vocabulary.outputs(language))
        start = torch.full((len(targets), 1), self.vocabulary.start(language))
        tokens = torch.cat([start, rows[targets[:, :-1].clamp(min=0)]], 1)
        hidden = self(images, tokens)
        known = targets != _PADDING
        return self.logits(hidden[known], language), targets[known], known

    def set_frequencies(self, counts: Mapping[str, NDArray[np.int64]]) -> None:
        """Start the output biases at the log frequencies of (W + 1) words (Karpathy 2016)."""
        with torch.no_grad():
            for language, of_words in counts.items():
                rows = torch.from_numpy(self.vocabulary.outputs(language))
                shares = (of_words + 1.0) / (of_words + 1.0).sum()
                self._bias()[rows] = torch.from_numpy(np.log(shares)).float()

    def all_tensors(self) -> Tensors:
        """Everything that is stored."""
        output = {} if self.out is None else {"out_W": self.out.weight}
        shared = {"embedding": self.embedding.weight, "out_b": self._bias()}
        return {**shared, **output, **self.tensors()}

    def _table(self) -> Tensor:
        return self.embedding.weight if self.out is None else self.out.weight

    def _bias(self) -> Tensor:
        assert self.out is not None
        return self.out.bias


class PooledEmbedding(nn.Module):
    """W_im: the pooled feature as a vector of the decoder's width."""

    def __init__(self, pooled: int, cells: tuple[int, int], width: int) -> None:
        super().__init__()
        self.pooled = nn.Linear(pooled, width)

    def forward(self, images: ImageBatch) -> Tensor:
        """(N, D)."""
        return cast(Tensor, self.pooled(images.pooled))

    def tensors(self) -> Tensors:
        """Parameters by the names of `encoders.models.captioner`."""
        return linear_tensors("pooled", self.pooled)


class ShowAndTell(CaptionDecoder):
    """An LSTM that sees the image as its first word."""

    def __init__(self, vocabulary: CaptionVocabulary, config: CaptionConfig) -> None:
        super().__init__(vocabulary, config)
        self.lstm = nn.LSTM(config.width, config.width, batch_first=True)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """The output at the image itself is left out: no word is predicted from it alone."""
        words = self.dropout(self.embedding(tokens))
        hidden, _ = self.lstm(torch.cat([images[:, None], words], 1))
        return cast(Tensor, self.dropout(hidden[:, 1:]))

    def tensors(self) -> Tensors:
        """Gates in torch's order: input, forget, cell, output."""
        return {
            "lstm_Wx": as_tensor(self.lstm.weight_ih_l0),
            "lstm_Wh": as_tensor(self.lstm.weight_hh_l0),
            "lstm_b": as_tensor(self.lstm.bias_ih_l0) + as_tensor(self.lstm.bias_hh_l0),
        }


class MultimodalLayerRnn(CaptionDecoder):
    """m-RNN: two word embeddings, a recurrent layer, a multimodal layer over words and image."""

    def __init__(self, vocabulary: CaptionVocabulary, config: CaptionConfig) -> None:
        super().__init__(vocabulary, config)
        width = config.width
        self.second = nn.Linear(width, width)
        self.recurrent = nn.Linear(width, width, bias=False)
        self.word, self.state = (nn.Linear(width, width, bias=False) for _ in range(2))
        nn.init.orthogonal_(self.recurrent.weight)
        with torch.no_grad():
            self.embedding.weight.mul_(config.width**0.5)  # its input is no sum of others

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """(B, T, D)."""
        words = _scaled_tanh(self.second(_scaled_tanh(self.embedding(tokens))))
        state, states = torch.zeros_like(images), []
        for word in self.dropout(words).unbind(1):
            state = torch.relu(self.recurrent(state) + word)
            states.append(state)
        mixed = self.word(words) + self.state(torch.stack(states, 1)) + images[:, None]
        return cast(Tensor, self.dropout(_scaled_tanh(mixed)))

    def tensors(self) -> Tensors:
        """As in the paper's equations."""
        return {
            **linear_tensors("second", self.second),
            "U": self.recurrent.weight,
            "Vw": as_tensor(self.word.weight),
            "Vr": as_tensor(self.state.weight),
        }


class FirstStepRnn(CaptionDecoder):
    """A recurrent network of rectified linear units that sees the image at its first step."""

    def __init__(self, vocabulary: CaptionVocabulary, config: CaptionConfig) -> None:
        super().__init__(vocabulary, config)
        self.word = nn.Linear(config.width, config.width)
        self.recurrent = nn.Linear(config.width, config.width, bias=False)
        nn.init.orthogonal_(self.recurrent.weight)

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """(B, T, D)."""
        words = self.word(self.dropout(self.embedding(tokens)))
        state, states = torch.zeros_like(images), []
        for at, word in enumerate(words.unbind(1)):
            total = self.recurrent(state) + word
            state = torch.relu(total + images if at == 0 else total)
            states.append(state)
        return cast(Tensor, self.dropout(torch.stack(states, 1)))

    def tensors(self) -> Tensors:
        """As in the paper's equations."""
        return {
            "Whx": self.word.weight,
            "bh": self.word.bias,
            "Whh": self.recurrent.weight,
        }


def as_tensor(attribute: Tensor | nn.Module) -> Tensor:
    """An attribute of a module, which torch types as either."""
    assert isinstance(attribute, Tensor)
    return attribute


def numpy_of(tensor: Tensor | nn.Module) -> NDArray[np.float32]:
    """A parameter as an array."""
    array: NDArray[np.float32] = as_tensor(tensor).detach().numpy().astype(np.float32)
    return array


def linear_tensors(name: str, layer: nn.Linear) -> Tensors:
    """A layer's weight and bias."""
    return {f"{name}_W": layer.weight, f"{name}_b": layer.bias}


def _scaled_tanh(x: Tensor) -> Tensor:
    return 1.72 * torch.tanh(2.0 / 3.0 * x)


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
        """Parameters by the names of `encoders.models.captioner`."""
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
        """Parameters by the names of `encoders.models.captioner`."""
        layers = {"self": self.own, "self_out": self.own_out, "image": self.image}
        layers |= {"memory": self.memory, "image_out": self.image_out}
        layers |= {"up": self.up, "down": self.down}
        tensors: dict[str, Tensor] = {}
        for name, layer in layers.items():
            tensors |= linear_tensors(name, layer)
        for at, norm in enumerate(self.norms):
            assert isinstance(norm, nn.LayerNorm)
            tensors |= {f"norm{at}_g": norm.weight, f"norm{at}_b": norm.bias}
        return tensors


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
        """Parameters by the names of `encoders.models.captioner`."""
        tensors: dict[str, Tensor] = {
            "positions": self.positions,
            "norm_g": self.norm.weight,
            "norm_b": self.norm.bias,
        }
        for at, layer in enumerate(self.layers):
            assert isinstance(layer, _Layer)
            tensors |= {f"layer{at}.{name}": tensor for name, tensor in layer.tensors().items()}
        return tensors

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
        self.decoders = nn.ModuleDict(
            {name: decoder(vocabulary, config) for name, vocabulary in groups.items()}
        )

    def decoder_of(self, language: str) -> CaptionDecoder:
        """The decoder that writes a language."""
        return self.decoder(
            next(name for name, group in self.groups.items() if language in group.languages)
        )

    def decoder(self, group: str) -> CaptionDecoder:
        """A decoder by name."""
        decoder = self.decoders[group]
        assert isinstance(decoder, CaptionDecoder)
        return decoder

    def served(self) -> CaptionDecoders:
        """The same network in numpy, with its current weights."""
        return CaptionDecoders(self.config.architecture, self.groups, self.arrays())

    def arrays(self) -> Arrays:
        """Everything that is stored, by the names of `encoders.models.captioner`."""
        return {name: numpy_of(tensor) for name, tensor in self._tensors().items()}

    def load(self, arrays: Weights) -> None:
        """Take over what is stored; TrainingProblem where parameters cannot be told from it."""
        with torch.no_grad():
            for name, tensor in self._tensors().items():
                if not isinstance(tensor, nn.Parameter):  # a sum of two
                    decoder = self.config.architecture
                    raise TrainingProblem(f"a {decoder} decoder cannot be trained on from a model")
                tensor.copy_(torch.from_numpy(arrays[name]))

    def _tensors(self) -> Tensors:
        tensors = {f"{IMAGE}.{name}": tensor for name, tensor in self.image.tensors().items()}
        for group in self.groups:
            of_group = self.decoder(group).all_tensors()
            tensors |= {f"{group}.{name}": tensor for name, tensor in of_group.items()}
        return tensors


def _heads(x: Tensor) -> Tensor:
    """(B, T, D) -> (B, H, T, 64)."""
    return x.reshape(*x.shape[:2], -1, HEAD_WIDTH).transpose(1, 2)


def _joined(x: Tensor) -> Tensor:
    """(B, H, T, 64) -> (B, T, D)."""
    return x.transpose(1, 2).flatten(2)
