"""Pairs of a query and a document to fit on, and the regression over them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibration import logistic
from capsearch.encoders.calibration.logistic import Floats, Regression
from capsearch.encoders.calibration.scenarios import Scenario
from capsearch.engine.records import Source

REFERENCE_SIZE = 1000
HARD, RANDOM = 30, 40  # negatives a query: the best-scored ones, and some others
Examples: TypeAlias = tuple[Floats, Floats, Floats, Floats]  # features, labels, weights, sizes


@dataclass
class ExampleList:
    """Pairs of a query and a document, with sampling weights."""

    features: list[Floats] = field(default_factory=list)
    labels: list[Floats] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    log_sizes: list[Floats] = field(default_factory=list)

    def add(
        self,
        scenario: Scenario,
        rows: NDArray[np.int64],
        columns: NDArray[np.int64],
        weights: Floats,
        features: Sequence[Floats],
    ) -> None:
        """Pairs (row, column) of a scenario with their features, each (n,)."""
        self.features.append(np.stack(features, axis=1))
        self.labels.append(scenario.relevant[rows, columns].astype(float))
        self.weights.append(weights[rows, columns])
        size = np.log(scenario.image.shape[1] / REFERENCE_SIZE)
        self.log_sizes.append(np.full(len(rows), size))

    def joined(self) -> Examples:
        """All of them."""
        parts = (self.features, self.labels, self.weights, self.log_sizes)
        features, labels, weights, sizes = (np.concatenate(one) for one in parts)
        return features, labels, weights, sizes


def fitted_regression(
    examples: Examples, exponent: float, shares: Mapping[Source, float]
) -> Regression:
    """The regression, with backgrounds that count no more than the scores themselves.

    Otherwise a query that scores low on everything, because the model does not know its words,
    would be surer of its hits than one that scores high.
    """
    features, labels, weights, sizes = examples
    free = logistic.fit(features, labels, weights, -exponent * sizes)
    slope = max(float(free.coefficients[0]), 0.0)
    bounded = free.coefficients.copy()
    for at, share in enumerate(shares.values(), start=1):
        bounded[at] = np.clip(bounded[at], -slope * share, 0.0)
    if np.array_equal(bounded, free.coefficients):
        return free
    fixed = features[:, 1 : 1 + len(shares)] @ bounded[1 : 1 + len(shares)]
    others = np.delete(features, np.s_[1 : 1 + len(shares)], axis=1)
    again = logistic.fit(others, labels, weights, fixed - exponent * sizes)
    found = np.insert(again.coefficients, 1, bounded[1 : 1 + len(shares)])
    return Regression(again.intercept, found)


def sampled(one: Scenario, random: np.random.Generator) -> Floats:
    """(Q, N) sampling weights, zero for pairs left out."""
    hard = one.relevant.copy()
    for scores in (one.image, np.nan_to_num(one.caption, nan=-np.inf)):
        best = np.argsort(-scores, axis=1)[:, :HARD]
        np.put_along_axis(hard, best, True, axis=1)
    others = (~hard).sum(axis=1, keepdims=True)
    easy = ~hard & (random.random(hard.shape) < RANDOM / np.maximum(others, 1))
    drawn = np.maximum(easy.sum(axis=1, keepdims=True), 1)
    return np.where(hard, 1.0, np.where(easy, others / drawn, 0.0))
