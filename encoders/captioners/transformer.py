"""The transformer decoder in numpy: attention over the feature map, keys and values cached.

Hypotheses of one image, in all languages, share its keys and values, so that a step multiplies
few large matrices. Arrays are called as in `training.nn.caption_transformer`.
"""

from __future__ import annotations

from copy import copy

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.captioners.decoders import Weights, WordOutput
from capsearch.encoders.captioners.search import State
from capsearch.engine.records import ImageFeatures, Vectors

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
            keys, values = (_heads(one) for one in np.split(both, 2, axis=2))
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
        found = copy(self)
        found._keys = [(keys[images], values[images]) for keys, values in self._keys]
        return found

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
