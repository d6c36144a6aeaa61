"""The loss of a batch's captions against its images, and against each other.

A caption can be the name of a concept ("dolphin"), which is true of every image that shows it:
those are no negatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.training.nn.losses import Loss


@dataclass(frozen=True, slots=True)
class Side:
    """Images, or captions of one language, of a batch: at most one for each of its images."""

    rows: NDArray[np.int64]  # of the batch, ascending
    vectors: Tensor  # one for each
    concepts: NDArray[np.int64] | None = None  # that captions name, -1 for a sentence; images: None

    def only(self, at: NDArray[np.int64]) -> Side:
        """Some of them."""
        concepts = None if self.concepts is None else self.concepts[at]
        return Side(self.rows[at], self.vectors[at], concepts)


@dataclass(frozen=True, slots=True)
class CaptionLoss:
    """A loss by name over pairs of sides; `shown` (B, K) tells which images show which concepts."""

    loss: Loss
    shown: NDArray[np.bool_] | None = None

    def against_images(self, captions: Sequence[Side], images: Tensor, log_scale: Tensor) -> Tensor:
        """Every language's captions against all images of the batch."""
        everything = Side(np.arange(len(images)), images)
        return self._mean([(one, everything) for one in captions], log_scale)

    def between(self, captions: Sequence[Side], log_scale: Tensor) -> Tensor | float:
        """Captions against each other where an image has several; 0 where none has."""
        pairs = [
            (one, other)
            for one, other in combinations(captions, 2)
            if len(np.intersect1d(one.rows, other.rows, assume_unique=True)) > 1
        ]
        return self._mean(pairs, log_scale) if pairs else 0.0

    def _mean(self, pairs: Sequence[tuple[Side, Side]], log_scale: Tensor) -> Tensor:
        """One side's captions against the other side, a mean over the captions."""
        scale = log_scale.exp().clamp(max=100.0)
        total, count = torch.zeros(()), 0
        for one, other in pairs:
            common = one.only(np.flatnonzero(np.isin(one.rows, other.rows)))
            targets = torch.from_numpy(np.searchsorted(other.rows, common.rows))
            matching = self._matching(common, other)
            part = self.loss(common.vectors, other.vectors, targets, scale, matching)
            total = total + part * len(common.rows)
            count += len(common.rows)
        return total / count

    def _matching(self, one: Side, other: Side) -> Tensor | None:
        """(T, B): a caption names what the other side's image shows, or the other way round."""
        if self.shown is None:
            return None
        found = _named_and_shown(one.concepts, self.shown[other.rows])
        if other.concepts is not None:
            found = found | _named_and_shown(other.concepts, self.shown[one.rows]).T
        return torch.from_numpy(found)


def _named_and_shown(
    concepts: NDArray[np.int64] | None, shown: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """(T, B) where caption t names a concept that image b shows."""
    assert concepts is not None  # only captions are compared with something
    found: NDArray[np.bool_] = shown[:, concepts].T & (concepts >= 0)[:, None]
    return found
