"""Recurrent decoders of the papers in numpy, and the layer that turns outputs into words.

    show-and-tell   an LSTM that sees the image as its first word (Miyazaki 2016, COCO-CN)
    m-rnn           a recurrent layer of words and a multimodal layer over it (Mao 2015)
    multimodal-rnn  a recurrent network that sees the image at its first step (Karpathy 2016, 3.2)

Arrays are called as in the networks of `training.nn.caption_decoders`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.captioners.search import State, StepDecoder
from capsearch.encoders.captioners.vocabulary import CaptionVocabulary
from capsearch.engine.records import ImageFeatures, Vectors


class Weights(Protocol):
    """Named arrays."""

    def __getitem__(self, name: str) -> Vectors: ...

    def __contains__(self, name: object) -> bool: ...


class WordOutput:
    """The last layer: log-probabilities of a language's words."""

    def __init__(self, w: Weights, vocabulary: CaptionVocabulary) -> None:
        table = w["out_W"] if "out_W" in w else w["embedding"]  # tied
        rows = {one: vocabulary.outputs(one) for one in vocabulary.languages}
        self._weights = {one: np.ascontiguousarray(table[at].T) for one, at in rows.items()}
        self._bias = {one: w["out_b"][at] for one, at in rows.items()}

    def log_probabilities(self, hidden: Vectors, language: str) -> Vectors:
        """(N, B, D) -> (N, B, W + 1)."""
        flat = np.ascontiguousarray(hidden).reshape(-1, hidden.shape[2])
        logits = flat @ self._weights[language] + self._bias[language]
        logits -= logits.max(1, keepdims=True)
        logits -= np.log(np.exp(logits).sum(1, keepdims=True))
        return np.asarray(logits.reshape(*hidden.shape[:2], -1), np.float32)


class _Recurrent(ABC):
    """What the recurrent decoders share: the embedded image and the words."""

    def __init__(
        self, w: Weights, image: Weights, output: WordOutput, features: ImageFeatures
    ) -> None:
        self.w = w
        self.output = output
        self.image = features.pooled @ image["pooled_W"].T + image["pooled_b"]  # (N, D)

    @abstractmethod
    def initial(self, starts: NDArray[np.int64]) -> State:
        """See StepDecoder."""

    @abstractmethod
    def step(self, tokens: NDArray[np.int64], state: State, at: int) -> tuple[Vectors, State]:
        """See StepDecoder."""

    def only(self, images: NDArray[np.int64]) -> StepDecoder:
        """See StepDecoder."""
        found = copy(self)
        found.image = self.image[images]
        return found

    def log_probabilities(self, hidden: Vectors, language: str) -> Vectors:
        """See StepDecoder."""
        return self.output.log_probabilities(hidden, language)

    def _zeros(self, lanes: int, width: int) -> Vectors:
        return np.zeros((len(self.image), lanes, width), np.float32)


class ShowAndTell(_Recurrent):
    """x(-1) = W_im CNN(I), x(t) = W_e S(t), p(t+1) = softmax(W_d LSTM(x(t)))."""

    def initial(self, starts: NDArray[np.int64]) -> State:
        """The state after the image."""
        width = self.w["lstm_Wh"].shape[1]
        h, c = self._lstm(self.image[:, None], self._zeros(1, width), self._zeros(1, width))
        lanes = starts.shape[1]
        return h.repeat(lanes, 1), c.repeat(lanes, 1)

    def step(self, tokens: NDArray[np.int64], state: State, at: int) -> tuple[Vectors, State]:
        """See StepDecoder."""
        h, c = self._lstm(self.w["embedding"][tokens], state[0], state[1])
        return h, (h, c)

    def _lstm(self, x: Vectors, h: Vectors, c: Vectors) -> tuple[Vectors, Vectors]:
        w = self.w
        gates = x @ w["lstm_Wx"].T + h @ w["lstm_Wh"].T + w["lstm_b"]  # i, f, g, o
        i, f, g, o = np.split(gates, 4, axis=2)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(c), c


class MultimodalLayerRnn(_Recurrent):
    """m-RNN: r(t) = relu(U r(t-1) + w(t)), m(t) = g(V_w w(t) + V_r r(t) + V_I I)."""

    def initial(self, starts: NDArray[np.int64]) -> State:
        """No word yet."""
        return (self._zeros(starts.shape[1], self.w["U"].shape[1]),)

    def step(self, tokens: NDArray[np.int64], state: State, at: int) -> tuple[Vectors, State]:
        """See StepDecoder."""
        w = self.w
        first = scaled_tanh(w["embedding"][tokens])
        word = scaled_tanh(first @ w["second_W"].T + w["second_b"])
        r = np.maximum(state[0] @ w["U"].T + word, 0.0)
        m = word @ w["Vw"].T + r @ w["Vr"].T + self.image[:, None]
        return scaled_tanh(m), (r,)


class FirstStepRnn(_Recurrent):
    """h(t) = relu(W_hx x(t) + W_hh h(t-1) + b_h + [t = 1] b_v), equations 13 to 15."""

    def initial(self, starts: NDArray[np.int64]) -> State:
        """No word yet."""
        return (self._zeros(starts.shape[1], self.w["Whh"].shape[1]),)

    def step(self, tokens: NDArray[np.int64], state: State, at: int) -> tuple[Vectors, State]:
        """See StepDecoder."""
        w = self.w
        h = self.w["embedding"][tokens] @ w["Whx"].T + state[0] @ w["Whh"].T + w["bh"]
        h = np.maximum(h + self.image[:, None] if at == 0 else h, 0.0)
        return h, (h,)


class OpensDecoder(Protocol):
    """How a decoder of one architecture is opened for the features of some images."""

    def __call__(
        self, w: Weights, image: Weights, output: WordOutput, features: ImageFeatures
    ) -> StepDecoder:
        """`w`: the decoder's own arrays, `image`: those that embed images."""
        ...


RECURRENT: Mapping[str, OpensDecoder] = {
    "show-and-tell": ShowAndTell,
    "m-rnn": MultimodalLayerRnn,
    "multimodal-rnn": FirstStepRnn,
}


def scaled_tanh(x: Vectors) -> Vectors:
    """1.72 tanh(2 x / 3), LeCun et al. 2012."""
    return np.asarray(1.72 * np.tanh(2.0 / 3.0 * x), np.float32)


def _sigmoid(x: Vectors) -> Vectors:
    return np.asarray(1.0 / (1.0 + np.exp(-x)), np.float32)
