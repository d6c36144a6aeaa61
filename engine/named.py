"""What a query names, recognised in image vectors by linear classifiers.

The score of an image is its cosine plus

    weight * sum over the things named of log P(the image shows it)

so an image that lacks one of them falls behind, which a cosine hardly tells. The classifiers work
in the space of image vectors: nothing more is stored for an image.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Vectors

Floats = NDArray[np.float64]
_TANGENT_AT = -0.5  # log-odds at which the bound touches: between those of good hits and others
_SHARE = float(1.0 / (1.0 + np.exp(-_TANGENT_AT)))


@dataclass(frozen=True, slots=True)
class NamedConcepts:
    """The classifiers of the things that one query names.

    A thing may have several senses, of which the likeliest counts: `senses[t]` rows of `weights`
    belong to thing t. `background` is what unrelated images score, without the weight.
    """

    weights: Vectors  # (K, D) for rows of an index
    biases: Vectors  # (K,)
    senses: tuple[int, ...]
    background: float = 0.0
    weight: float = 1.0

    def weighted(self, weight: float) -> NamedConcepts:
        """The same with another weight."""
        return replace(self, weight=weight)

    def scores(self, rows: Vectors) -> Floats:
        """(N, D) -> (N,) what they add to the scores of images; at most 0.

        Each depends on its row alone: a matrix product may sum a row differently according to its
        neighbours.
        """
        wide = self.weights.astype(np.float64)
        products = [np.einsum("nd,d->n", rows, one, dtype=np.float64) for one in wide]
        return self.of_products(np.stack(products, 1))

    def of_products(self, products: NDArray[np.floating[Any]]) -> Floats:
        """(N, K) rows @ weights.T -> (N,) the same."""
        likeliest = np.maximum.reduceat(products + self.biases, self._starts, axis=1)
        return np.asarray(-self.weight * np.logaddexp(0.0, -likeliest).sum(axis=1), np.float64)

    def bound(self) -> tuple[Vectors, float]:
        """(D,) v and c such that no row scores more than v . row + c.

        log P is concave in the log-odds, so it lies below its tangents; what has several senses
        is bounded by 0.
        """
        single = [at for at, count in zip(self._starts, self.senses, strict=True) if count == 1]
        slope = self.weight * (1.0 - _SHARE)
        touching = np.log(_SHARE) - (1.0 - _SHARE) * _TANGENT_AT
        constant = self.weight * touching * len(single) + slope * float(self.biases[single].sum())
        return np.asarray(slope * self.weights[single].sum(axis=0), np.float32), float(constant)

    @property
    def _starts(self) -> list[int]:
        return [0, *accumulate(self.senses)][:-1]
