"""Logistic regression with weights and offsets, by Newton's method.

scikit-learn's has no offsets, which the collection size needs, and statsmodels would be a large
dependency for fifteen lines.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.errors import DataProblem

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
    gaps = [abs(float((probabilities - labels)[which == one].sum())) for one in range(bins)]
    return sum(gaps) / len(probabilities)


def sigmoid(log_odds: Floats) -> Floats:
    """Probabilities of log-odds."""
    return np.asarray(1.0 / (1.0 + np.exp(-np.clip(log_odds, -40, 40))))
