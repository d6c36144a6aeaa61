"""A gated recurrent unit in plain numpy, over sentences of different lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[Any]  # float32 throughout


def gru(
    sentences: Sequence[FloatArray], wx: FloatArray, wh: FloatArray, bx: FloatArray, bh: FloatArray
) -> list[FloatArray]:
    """Each sentence's hidden states (T, G), with torch's order of gates: reset, update, new.

    No sentence may be empty. Longest first, all sentences compute a step together, those already
    at their end excluded. Rows are ordered by step, so that each step reads and writes one slice.
    """
    lengths = np.array([len(one) for one in sentences])
    order = np.argsort(-lengths, kind="stable")
    starts = np.concatenate([[0], np.cumsum(lengths[order])[:-1]])
    counts = [np.count_nonzero(lengths > step) for step in range(lengths.max())]
    rows = np.concatenate([starts[:count] + step for step, count in enumerate(counts)])
    size = wh.shape[1]
    inputs = np.concatenate([sentences[at] for at in order])[rows] @ wx.T + bx  # (sum of T, 3G)
    inputs[:, : 2 * size] += bh[: 2 * size]
    states = np.empty((len(inputs), size), np.float32)
    state, done = np.zeros((len(sentences), size), np.float32), 0
    for count in counts:
        now, before = inputs[done : done + count], state[:count]
        recurrent = before @ wh.T
        gates = _sigmoid(now[:, : 2 * size] + recurrent[:, : 2 * size])
        reset, update = gates[:, :size], gates[:, size:]
        new = np.tanh(now[:, 2 * size :] + reset * (recurrent[:, 2 * size :] + bh[2 * size :]))
        state = states[done : done + count]
        np.add(new, update * (before - new), out=state)
        done += count
    by_sentence = np.empty_like(states)
    by_sentence[rows] = states
    split = dict(zip(order.tolist(), np.split(by_sentence, starts[1:]), strict=True))
    return [split[at] for at in range(len(sentences))]


def _sigmoid(x: FloatArray) -> FloatArray:
    """In place."""
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1.0
    return np.asarray(np.reciprocal(x, out=x))
