"""The decoders of captions in numpy, and the layer that turns their outputs into words.

    transformer     attention over the feature map, keys and values cached
    show-and-tell   an LSTM that sees the image as its first word (Miyazaki 2016, COCO-CN)
    m-rnn           a recurrent layer of words and a multimodal layer over it (Mao 2015)
    multimodal-rnn  a recurrent network that sees the image at its first step (Karpathy 2016, 3.2)

Hypotheses of one image, in all languages, share a transformer's keys and values, so that a step
multiplies few large matrices. Arrays are called as in the networks of `encoders.train.decoders`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from copy import copy
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.models.caption_search import CaptionVocabulary, State, StepDecoder
from capsearch.engine.records import ImageFeatures, Vectors


class Weights(Protocol):
    """Named arrays."""

    def __getitem__(self, name: str) -> Vectors: ...

    def __contains__(self, name: object) -> bool: ...


class WordOutput:
    """The last layer: log-probabilities of a language's words."""

    def __init__(self, w: Weights, vocabulary: CaptionVocabulary) -> None:
        table = w["out_W"] if "out_W" in w else w["embedding"]  # tied
        rows = {language: vocabulary.outputs(language) for language in vocabulary.languages}
        self._weights = {
            language: np.ascontiguousarray(table[outputs].T) for language, outputs in rows.items()
        }
        self._bias = {language: w["out_b"][outputs] for language, outputs in rows.items()}

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
        chosen = copy(self)
        chosen.image = self.image[images]
        return chosen

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


HEAD_WIDTH = 64
EPSILON = 1e-5


class TransformerDecoder:
    """Pre-norm layers of self attention, attention over the image, and a feed-forward network."""

    def __init__(
        self, w: Weights, image: Weights, output: WordOutput, features: ImageFeatures
    ) -> None:
        self.w = w
        self.output = output
        self.layers = next(at for at in range(99) if f"layer{at}.self_W" not in w)
        memory = _memory(image, features)  # (N, G + 1, D)
        self._keys: list[tuple[Vectors, Vectors]] = []
        for at in range(self.layers):
            both = memory @ w[f"layer{at}.memory_W"].T + w[f"layer{at}.memory_b"]
            keys, values = map(_heads, np.split(both, 2, axis=2))
            self._keys.append((keys.transpose(0, 1, 3, 2), values))

    def initial(self, starts: NDArray[np.int64]) -> State:
        """The language (N, J, D), and empty caches of keys and values (N, J, H, T, 64)."""
        language = self.w["embedding"][starts]  # every position knows its language
        longest = len(self.w["positions"])
        shape = (*starts.shape, language.shape[2] // HEAD_WIDTH, longest, HEAD_WIDTH)
        return (language, *(np.zeros(shape, np.float32) for _ in range(2 * self.layers)))

    def step(self, tokens: NDArray[np.int64], state: State, at: int) -> tuple[Vectors, State]:
        """See StepDecoder."""
        w = self.w
        x = w["embedding"][tokens] + state[0] + w["positions"][at]
        for layer in range(self.layers):
            name = f"layer{layer}"
            keys, values = state[2 * layer + 1], state[2 * layer + 2]
            x = x + self._self_attention(name, self._norm(name, 0, x), keys, values, at)
            x = x + self._image_attention(layer, self._norm(name, 1, x))
            hidden = np.maximum(self._linear(f"{name}.up", self._norm(name, 2, x)), 0.0)
            x = x + self._linear(f"{name}.down", hidden)
        return _layer_norm(x, w["norm_g"], w["norm_b"]), state

    def only(self, images: NDArray[np.int64]) -> TransformerDecoder:
        """See StepDecoder."""
        chosen = copy(self)
        chosen._keys = [(keys[images], values[images]) for keys, values in self._keys]
        return chosen

    def log_probabilities(self, hidden: Vectors, language: str) -> Vectors:
        """See StepDecoder."""
        return self.output.log_probabilities(hidden, language)

    def _self_attention(
        self, name: str, x: Vectors, keys: Vectors, values: Vectors, at: int
    ) -> Vectors:
        """Writes this step's keys and values to the caches, which belong to this search."""
        query, key, value = np.split(self._linear(f"{name}.self", x), 3, axis=2)
        shape = (*x.shape[:2], -1, HEAD_WIDTH)
        keys[:, :, :, at], values[:, :, :, at] = key.reshape(shape), value.reshape(shape)
        scores = keys[:, :, :, : at + 1] @ query.reshape(*shape, 1)  # (N, J, H, T, 1)
        weights = _softmax(scores[..., 0] / np.sqrt(HEAD_WIDTH))
        mixed = weights[..., None, :] @ values[:, :, :, : at + 1]  # (N, J, H, 1, 64)
        return self._linear(f"{name}.self_out", mixed.reshape(x.shape))

    def _image_attention(self, layer: int, x: Vectors) -> Vectors:
        keys, values = self._keys[layer]  # (N, H, 64, G), (N, H, G, 64)
        query = _heads(self._linear(f"layer{layer}.image", x))  # (N, H, J, 64)
        weights = _softmax(query @ keys / np.sqrt(HEAD_WIDTH))
        mixed = (weights @ values).transpose(0, 2, 1, 3).reshape(x.shape)
        return self._linear(f"layer{layer}.image_out", mixed)

    def _linear(self, name: str, x: Vectors) -> Vectors:
        flat = np.ascontiguousarray(x).reshape(-1, x.shape[2])
        out = flat @ self.w[f"{name}_W"].T + self.w[f"{name}_b"]
        return np.asarray(out.reshape(*x.shape[:2], -1), np.float32)

    def _norm(self, name: str, number: int, x: Vectors) -> Vectors:
        return _layer_norm(x, self.w[f"{name}.norm{number}_g"], self.w[f"{name}.norm{number}_b"])


def _memory(image: Weights, features: ImageFeatures) -> Vectors:
    """(N, G + 1, D): the cells of the feature map, and the pooled feature."""
    if features.grid is None:
        raise ValueError("captions need the feature map of the backbone")
    cells = _layer_norm(features.grid) @ image["grid_W"].T + image["grid_b"] + image["cells"]
    pooled = features.pooled @ image["pooled_W"].T + image["pooled_b"]
    return np.concatenate([cells, pooled[:, None]], axis=1)


def _heads(x: Vectors) -> Vectors:
    """(N, J, D) -> (N, H, J, 64)."""
    return np.asarray(x.reshape(*x.shape[:2], -1, HEAD_WIDTH).transpose(0, 2, 1, 3), np.float32)


def _layer_norm(x: Vectors, gain: Vectors | float = 1.0, bias: Vectors | float = 0.0) -> Vectors:
    centred = x - x.mean(-1, keepdims=True)
    deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
    return np.asarray(centred / deviation * gain + bias, np.float32)


def _softmax(scores: Vectors) -> Vectors:
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True), np.float32)
