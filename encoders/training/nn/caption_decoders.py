"""Recurrent decoders of the papers, and what all caption decoders share.

A network is an embedding of the image, shared by its decoders, and one or more decoders, each for
one or more languages. Parameters are exported under the names in `arrays`, with which
`encoders.captioners` decodes in numpy.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.captioners.vocabulary import CaptionVocabulary

Arrays = Mapping[str, NDArray[np.float32]]
Tensors = Mapping[str, Tensor]


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
        """What is stored, by the names of `encoders.captioners`, but for embedding and output."""

    def logits(self, hidden: Tensor, language: str) -> Tensor:
        """(..., D) outputs -> (..., W + 1) for a language's words."""
        rows = torch.from_numpy(self.vocabulary.outputs(language))
        return nn.functional.linear(hidden, self._table()[rows], self._bias()[rows])

    def set_frequencies(self, counts: Mapping[str, NDArray[np.int64]]) -> None:
        """Start the output biases at the log frequencies of (W + 1) words (Karpathy 2016)."""
        with torch.no_grad():
            for language, found in counts.items():
                rows = torch.from_numpy(self.vocabulary.outputs(language))
                shares = (found + 1.0) / (found + 1.0).sum()
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
        """Parameters by the names of `encoders.captioners`."""
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


def as_tensor(found: Tensor | nn.Module) -> Tensor:
    """An attribute of a module, which torch types as either."""
    assert isinstance(found, Tensor)
    return found


def numpy_of(tensor: Tensor | nn.Module) -> NDArray[np.float32]:
    """A parameter as an array."""
    found: NDArray[np.float32] = as_tensor(tensor).detach().numpy().astype(np.float32)
    return found


def linear_tensors(name: str, layer: nn.Linear) -> Tensors:
    """A layer's weight and bias."""
    return {f"{name}_W": layer.weight, f"{name}_b": layer.bias}


def _scaled_tanh(x: Tensor) -> Tensor:
    return 1.72 * torch.tanh(2.0 / 3.0 * x)
