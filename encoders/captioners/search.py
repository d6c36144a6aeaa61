"""Beam search over the words of several languages at once; a beam of one is greedy search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.captioners.vocabulary import END
from capsearch.engine.records import Vectors

State = tuple[NDArray[Any], ...]  # arrays (N, J, ...): one lane for each language and hypothesis
_NEVER = np.float32(-1e9)


class StepDecoder(Protocol):
    """What the search needs of a decoder for N images."""

    def initial(self, starts: NDArray[np.int64]) -> State:
        """The state before the first word of J hypotheses, from (N, J) rows of start tokens."""
        ...

    def step(self, tokens: NDArray[np.int64], state: State, at: int) -> tuple[Vectors, State]:
        """(N, J) rows of the words before -> (N, J, D) outputs, and the next state."""
        ...

    def log_probabilities(self, hidden: Vectors, language: str) -> Vectors:
        """(N, B, D) outputs -> (N, B, W + 1) log-probabilities of a language's words."""
        ...


@dataclass(frozen=True, slots=True)
class Beam:
    """How to search.

    `length_penalty`: scores are divided by length ** penalty (0: log P). `repetition_penalty`: what
    a word that the caption has already costs, in log P, unless it is `repeatable`.
    """

    size: int = 3
    max_words: int = 20
    length_penalty: float = 0.7
    repetition_penalty: float = 4.0


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """The best caption of each image in one language."""

    positions: NDArray[np.int64]  # (N, T) in the language's outputs, END after the last word
    log_probability: Vectors  # (N,) of the whole caption, its end included
    length: NDArray[np.int64]  # (N,) words, and the end


@dataclass(slots=True)
class _Lanes:
    """The hypotheses of all images in one language."""

    positions: NDArray[np.int64]  # (N, B, T)
    scores: Vectors  # (N, B) log-probabilities, best first
    lengths: NDArray[np.int64]  # (N, B)
    ended: NDArray[np.bool_]  # (N, B)
    repetition: Vectors  # (W,) what each word costs that a hypothesis has already

    @staticmethod
    def start(images: int, beam: Beam, repeatable: NDArray[np.bool_]) -> _Lanes:
        shape = (images, beam.size)
        scores = np.full(shape, _NEVER, np.float32)
        scores[:, 0] = 0.0  # all hypotheses are equal at first: keep one
        positions = np.full((*shape, beam.max_words + 1), END, np.int64)
        ended = np.zeros(shape, np.bool_)
        repetition = np.where(repeatable, 0.0, beam.repetition_penalty).astype(np.float32)
        return _Lanes(positions, scores, np.zeros(shape, np.int64), ended, repetition)

    def advance(self, words: Vectors, at: int) -> NDArray[np.int64]:
        """Extend by (N, B, W) log-probabilities; the (N, B) hypothesis that each one extends."""
        images, size = self.scores.shape
        words = np.where(self.ended[:, :, None], _NEVER, words)
        words[:, :, END][self.ended] = 0.0  # what has ended stays as it is
        before = self.positions[:, :, :at]
        cost = np.take_along_axis(words, before, 2) - self.repetition[before]
        np.put_along_axis(words, before, cost, 2)
        total = (self.scores[:, :, None] + words).reshape(images, -1)  # (N, B * W)
        best = _largest(total, size)
        parent, word = np.divmod(best, words.shape[2])
        self.scores = np.take_along_axis(total, best, 1)
        self.ended = np.take_along_axis(self.ended, parent, 1)
        self.lengths = np.take_along_axis(self.lengths, parent, 1) + ~self.ended
        self.positions = np.take_along_axis(self.positions, parent[:, :, None], 1)
        self.positions[:, :, at] = word
        self.ended = self.ended | (word == END)
        return parent

    def finished(self, beam: Beam) -> bool:
        """Whether no hypothesis that still goes on can become the best of any image."""
        longest = float(beam.max_words + 1) ** beam.length_penalty
        ahead = np.where(self.ended, -np.inf, self.scores / longest).max(1)
        return bool((np.where(self.ended, self._normalised(beam), -np.inf).max(1) >= ahead).all())

    def best(self, beam: Beam) -> Hypotheses:
        """Ended hypotheses go before those that were cut."""
        scores = self._normalised(beam) + np.where(self.ended, 0.0, _NEVER)
        rows, chosen = np.arange(len(scores)), scores.argmax(1)
        return Hypotheses(
            self.positions[rows, chosen], self.scores[rows, chosen], self.lengths[rows, chosen]
        )

    def _normalised(self, beam: Beam) -> Vectors:
        penalty = np.maximum(self.lengths, 1).astype(np.float32) ** beam.length_penalty
        return np.asarray(self.scores / penalty, np.float32)


def search(
    decoder: StepDecoder,
    images: int,
    starts: Mapping[str, int],
    outputs: Mapping[str, NDArray[np.int64]],
    repeatable: Mapping[str, NDArray[np.bool_]],
    beam: Beam,
) -> Mapping[str, Hypotheses]:
    """The most probable caption of each image in each language.

    `starts`: the row of each language's start token. `outputs`: the rows of its words, `repeatable`
    those that cost nothing a second time.
    """
    lanes = {language: _Lanes.start(images, beam, repeatable[language]) for language in starts}
    tokens = np.repeat([list(starts.values())], images, 0).repeat(beam.size, 1)  # (N, L * B)
    state = decoder.initial(tokens)
    for at in range(beam.max_words + 1):
        hidden, state = decoder.step(tokens, state, at)
        chosen, rows = [], []
        for number, (language, lane) in enumerate(lanes.items()):
            first = number * beam.size
            part = hidden[:, first : first + beam.size]
            parent = lane.advance(decoder.log_probabilities(part, language), at)
            chosen.append(first + parent)
            rows.append(outputs[language][lane.positions[:, :, at]])
        if all(lane.finished(beam) for lane in lanes.values()):
            break
        tokens = np.concatenate(rows, 1)
        if beam.size > 1:
            state = _reorder(state, np.concatenate(chosen, 1))
    return {language: lane.best(beam) for language, lane in lanes.items()}


def _reorder(state: State, parents: NDArray[np.int64]) -> State:
    rows = np.arange(len(parents))[:, None]
    return tuple(array[rows, parents] for array in state)


def _largest(scores: Vectors, count: int) -> NDArray[np.int64]:
    """(N, count) columns of the largest scores, best first, ties by column.

    Repeated maxima: for a handful of hypotheses faster than any partition.
    """
    left = scores.copy() if count > 1 else scores
    rows = np.arange(len(scores))
    found: Sequence[NDArray[np.int64]] = []
    for _ in range(count):
        best = left.argmax(1)
        found = [*found, best]
        if count > 1:
            left[rows, best] = -np.inf
    return np.stack(found, 1)
