"""Platt scaling for each tag: from log-odds of a network to calibrated probabilities."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibration import logistic
from capsearch.encoders.calibration.logistic import Floats, sigmoid

PRIOR = 10.0  # strength of the common slope and intercept, in images of probability one half
COMMON_SAMPLE = 1_000_000  # labels that the regression over all tags is fitted to
_STEPS = 25
_HALVINGS = 8  # of a step that would make things worse
_LARGEST_STEP = 1.0


@dataclass(frozen=True, slots=True)
class Platt:
    """log-odds = slope * logit + intercept, for each of K tags."""

    slope: Floats  # (K,)
    intercept: Floats  # (K,)

    def probabilities(self, logits: NDArray[np.floating]) -> Floats:
        """(N, K) of (N, K)."""
        return sigmoid(logits * self.slope + self.intercept)


def fit_platt(
    logits: NDArray[np.floating], values: NDArray[np.floating], known: NDArray[np.floating]
) -> Platt:
    """Maximum a posteriori slopes and intercepts of (N, K) logits; labels count where `known`.

    All tags share a prior: the regression over all of them together. A tag that validation images
    rarely or never show keeps nearly that. DataProblem where nothing is positive or negative.
    """
    scores = np.asarray(logits, np.float64)
    at = np.flatnonzero(known > 0)
    if len(at) > COMMON_SAMPLE:
        at = np.random.default_rng(0).choice(at, COMMON_SAMPLE, replace=False)
    labels = values.reshape(-1)[at].astype(np.float64)
    ones, zeros = np.ones(len(at)), np.zeros(len(at))
    common = logistic.fit(scores.reshape(-1)[at][:, None], labels, ones, zeros)
    centre = np.array([float(common.coefficients[0]), common.intercept])
    posterior = _Posterior(centre, scores, values, known)
    parameters = np.tile(centre, (scores.shape[1], 1))  # (K, 2)
    loss = posterior.losses(parameters)
    for _ in range(_STEPS):
        step = posterior.newton_step(parameters)
        for _ in range(_HALVINGS):
            tried = posterior.losses(parameters + step)
            worse = tried > loss
            if not worse.any():
                break
            step[worse] /= 2
        step[worse] = 0.0
        parameters, loss = parameters + step, np.where(worse, loss, tried)
    return Platt(parameters[:, 0], parameters[:, 1])


@dataclass(frozen=True, slots=True)
class _Posterior:
    """What is maximised for each of K tags: its known labels and the common prior agree."""

    centre: Floats  # (2,) slope and intercept of the prior
    scores: Floats  # (N, K)
    values: NDArray[np.floating]  # (N, K)
    known: NDArray[np.floating]  # (N, K)

    def losses(self, parameters: Floats) -> Floats:
        """(K,) the cross entropy of the known labels, and the distance to the prior."""
        log_odds = self.scores * parameters[:, 0] + parameters[:, 1]
        each = self.known * (np.logaddexp(0.0, log_odds) - self.values * log_odds)
        apart = ((parameters - self.centre) ** 2).sum(axis=1)
        return np.asarray(each.sum(axis=0) + PRIOR / 8 * apart)

    def newton_step(self, parameters: Floats) -> Floats:
        """(K, 2), all tags at once: each has a 2 x 2 system."""
        probability = sigmoid(self.scores * parameters[:, 0] + parameters[:, 1])
        error = self.known * (self.values - probability)
        weight = self.known * probability * (1 - probability)
        strength = PRIOR / 4  # the curvature of one image of probability one half is a quarter
        gradient = np.stack([(error * self.scores).sum(0), error.sum(0)], 1)
        gradient -= strength * (parameters - self.centre)
        curvature = np.empty((len(parameters), 2, 2))
        curvature[:, 0, 0] = (weight * self.scores**2).sum(0) + strength
        curvature[:, 1, 1] = weight.sum(0) + strength
        curvature[:, 0, 1] = curvature[:, 1, 0] = (weight * self.scores).sum(0)
        step = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        return np.asarray(np.clip(step, -_LARGEST_STEP, _LARGEST_STEP))


def best_threshold(probabilities: Floats, values: NDArray[np.floating], steps: int = 99) -> float:
    """The probability above which tags have the highest F1 against (N, K) labels."""
    right = values > 0
    found = []
    for threshold in np.linspace(0.01, 0.99, steps):
        given = probabilities >= threshold
        hits = float((given & right).sum())
        found.append((2 * hits / max(float(given.sum() + right.sum()), 1.0), -float(threshold)))
    return -max(found)[1]
