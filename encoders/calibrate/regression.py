"""Logistic regression of relevance on scores: pairs of a query and a document, and their fit.

The regression has weights and offsets and is solved by Newton's method. scikit-learn's has no
offsets, which the collection size needs, and statsmodels would be a large dependency for fifteen
lines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibrate.scenarios import Scenario
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Source

Floats = NDArray[np.float64]
_RIDGE = 1e-3  # on standardised features: keeps separable data finite
_STEPS, _LARGEST_STEP, _CONVERGED = 100, 2.0, 1e-7


@dataclass(frozen=True, slots=True)
class Regression:
    """log-odds = intercept + features @ coefficients + offset."""

    intercept: float
    coefficients: Floats  # (F,)

    def log_odds(self, features: Floats, offset: Floats | float = 0.0) -> Floats:
        """(n,) of (n, F) features."""
        return np.asarray(self.intercept + features @ self.coefficients + offset)


def fit(features: Floats, labels: Floats, weights: Floats, offset: Floats) -> Regression:
    """Maximum likelihood of (n,) labels 0 or 1, given (n, F) features.

    DataProblem without both labels.
    """
    positives, negatives = float(weights @ labels), float(weights @ (1 - labels))
    if not positives or not negatives:
        raise DataProblem(
            "too little to calibrate with: queries need images that answer them and others that do "
            "not, and captions to be found by others of the same image"
        )
    mean, deviation = features.mean(axis=0), features.std(axis=0) + 1e-9
    design = np.c_[np.ones(len(features)), (features - mean) / deviation]  # (n, 1 + F)
    beta = np.zeros(design.shape[1])
    beta[0] = np.log(positives / negatives) - np.average(offset, weights=weights)
    for _ in range(_STEPS):
        probability = sigmoid(design @ beta + offset)
        gradient = design.T @ (weights * (labels - probability)) - _RIDGE * beta
        curvature = (design * (weights * probability * (1 - probability))[:, None]).T @ design
        step = np.linalg.solve(curvature + _RIDGE * np.eye(len(beta)), gradient)
        length = float(np.abs(step).max())
        beta = beta + step * min(1.0, _LARGEST_STEP / max(length, 1e-12))
        if length < _CONVERGED:
            break
    coefficients = beta[1:] / deviation
    return Regression(float(beta[0] - coefficients @ mean), coefficients)


def expected_calibration_error(probabilities: Floats, labels: Floats, bins: int = 15) -> float:
    """The mean gap between predicted and observed relevance over bins of equal width."""
    if not len(probabilities):
        return 0.0
    which = np.clip((probabilities * bins).astype(int), 0, bins - 1)
    gaps = [abs(float((probabilities - labels)[which == number].sum())) for number in range(bins)]
    return sum(gaps) / len(probabilities)


def sigmoid(log_odds: Floats) -> Floats:
    """Probabilities of log-odds."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(log_odds, -40, 40))))


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
        features, labels, weights, sizes = (np.concatenate(arrays) for arrays in parts)
        return features, labels, weights, sizes


def fitted_regression(
    examples: Examples, exponent: float, shares: Mapping[Source, float]
) -> Regression:
    """The regression, with backgrounds that count no more than the scores themselves.

    Otherwise a query that scores low on everything, because the model does not know its words,
    would be surer of its hits than one that scores high.
    """
    features, labels, weights, sizes = examples
    free = fit(features, labels, weights, -exponent * sizes)
    slope = max(float(free.coefficients[0]), 0.0)
    bounded = free.coefficients.copy()
    for at, share in enumerate(shares.values(), start=1):
        bounded[at] = np.clip(bounded[at], -slope * share, 0.0)
    if np.array_equal(bounded, free.coefficients):
        return free
    fixed = features[:, 1 : 1 + len(shares)] @ bounded[1 : 1 + len(shares)]
    others = np.delete(features, np.s_[1 : 1 + len(shares)], axis=1)
    again = fit(others, labels, weights, fixed - exponent * sizes)
    coefficients = np.insert(again.coefficients, 1, bounded[1 : 1 + len(shares)])
    return Regression(again.intercept, coefficients)


def sampled(scenario: Scenario, random: np.random.Generator) -> Floats:
    """(Q, N) sampling weights, zero for pairs left out."""
    hard = scenario.relevant.copy()
    for scores in (scenario.image, np.nan_to_num(scenario.caption, nan=-np.inf)):
        best = np.argsort(-scores, axis=1)[:, :HARD]
        np.put_along_axis(hard, best, True, axis=1)
    others = (~hard).sum(axis=1, keepdims=True)
    easy = ~hard & (random.random(hard.shape) < RANDOM / np.maximum(others, 1))
    drawn = np.maximum(easy.sum(axis=1, keepdims=True), 1)
    return np.where(hard, 1.0, np.where(easy, others / drawn, 0.0))
