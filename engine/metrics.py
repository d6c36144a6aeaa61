"""How good a ranking is: ranks, MRR, recall, median rank, their confidence; CLM weight, tags."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Scores: TypeAlias = NDArray[np.float32]  # (Q, N), higher is better
Labels: TypeAlias = NDArray[np.int64]  # equal labels: this item answers this query
Floats: TypeAlias = NDArray[np.float64]
Relevance: TypeAlias = NDArray[np.bool_]  # (Q, N)

TIE = 1e-6  # scores closer than this are equal: float32 cosines differ by as much across machines
PLATEAU = 0.005  # of MRR: differences smaller than this say nothing
WEIGHTS: tuple[float, ...] = tuple(round(step / 100, 2) for step in range(101))


def ranks(scores: Scores, queries: Labels, items: Labels) -> Floats:
    """(Q,) the rank, from 1, of each query's best right answer among (N,) items.

    Ties count against us: a wrong item that scores the same stands before the right one, so
    a model that gives everything one score is last, and order of storage cannot help. Other
    right answers never stand in the way. ValueError for a query without a right answer.
    """
    return first_ranks(scores, queries[:, None] == items[None, :])


def first_ranks(scores: Scores | Floats, relevant: Relevance) -> Floats:
    """`ranks` where any items may be relevant to any queries."""
    if not relevant.any(axis=1).all():
        raise ValueError("every query needs at least one right answer among the items")
    best = np.where(relevant, scores, -np.inf).max(axis=1, keepdims=True)  # (Q, 1)
    ahead: Floats = (~relevant & (scores >= best - TIE)).sum(axis=1).astype(np.float64)
    return ahead + 1.0


def precisions(scores: Scores | Floats, relevant: Relevance, depth: int) -> Floats:
    """(Q,) the share of relevant items among the first `depth`; ties count against us."""
    lowered = np.where(relevant, scores - np.float32(TIE), scores)
    if lowered.shape[1] <= depth:
        return np.asarray(relevant.sum(axis=1) / depth, np.float64)
    first = np.argpartition(-lowered, depth - 1, axis=1)[:, :depth]
    found = np.take_along_axis(relevant, first, axis=1).sum(axis=1)
    return np.asarray(found / depth, np.float64)


def mean_reciprocal_rank(ranked: Floats) -> Floats:
    """The mean of 1/rank along the last axis."""
    return np.asarray(np.mean(1.0 / ranked, axis=-1))


def recall_at(depth: int) -> Callable[[Floats], Floats]:
    """The share of queries answered within the first `depth`, along the last axis."""
    return lambda ranked: np.asarray(np.mean(ranked <= depth, axis=-1))


def mean(values: Floats) -> Floats:
    """The mean along the last axis, of what is measured for each query."""
    return np.asarray(np.mean(values, axis=-1))


def median_rank(ranked: Floats) -> Floats:
    """Half the queries are answered by this rank."""
    return np.asarray(np.median(ranked, axis=-1))


METRICS: Mapping[str, Callable[[Floats], Floats]] = {
    "mrr": mean_reciprocal_rank,
    "r1": recall_at(1),
    "r5": recall_at(5),
    "r10": recall_at(10),
    "medr": median_rank,
}


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured value and its 95 % confidence interval."""

    value: float
    low: float
    high: float


def summarise(
    ranked: Floats,
    metrics: Mapping[str, Callable[[Floats], Floats]] = METRICS,
    samples: int = 1000,
    seed: int = 0,
) -> Mapping[str, Figure]:
    """All metrics of some ranks, with percentile bootstrap intervals over the queries.

    The same ranks and seed give the same figures. Queries are drawn independently; where
    several describe one image, the intervals are a little too narrow.
    """
    drawn = np.random.default_rng(seed).integers(len(ranked), size=(samples, len(ranked)))
    resampled = ranked[drawn]  # (B, Q)
    return {name: _figure(metric, ranked, resampled) for name, metric in metrics.items()}


def _figure(metric: Callable[[Floats], Floats], ranked: Floats, resampled: Floats) -> Figure:
    low, high = np.percentile(metric(resampled), [2.5, 97.5])
    return Figure(float(metric(ranked)), float(low), float(high))


@dataclass(frozen=True, slots=True)
class Trial:
    """Both sides' scores of one set of queries over one collection, and what is right."""

    cl: Scores
    cm: Scores
    queries: Labels
    items: Labels

    def fused(self, weight: float) -> Scores:
        """Every pair's `fusion.combine`: weight * CL + (1 - weight) * CM."""
        return (weight * self.cl + (1.0 - weight) * self.cm).astype(np.float32)

    def mrr(self, weight: float) -> float:
        """MRR of the fused ranking."""
        return float(mean_reciprocal_rank(ranks(self.fused(weight), self.queries, self.items)))


def best_weight(trials: Sequence[Trial], weights: Sequence[float] = WEIGHTS) -> float:
    """The middle of the CL shares with the best MRR, averaged over the trials, or nearly so.

    COCO-CN section IV-D: searched on validation in steps of .01. With some hundred queries
    the curve is flat around its peak, and where exactly that lies is chance.
    """
    if not trials:
        raise ValueError("no trial to search the weight on")
    means = [float(np.mean([trial.mrr(weight) for trial in trials])) for weight in weights]
    return middle_of_best(weights, means)


def middle_of_best(weights: Sequence[float], scores: Sequence[float]) -> float:
    """The middle of the weights with the best score, or nearly so (PLATEAU)."""
    good = [at for at, score in zip(weights, scores, strict=True) if score >= max(scores) - PLATEAU]
    return good[len(good) // 2]


def precision_recall_f(
    scores: Scores, positives: Sequence[Labels], depth: int
) -> tuple[float, float, float]:
    """Precision, recall and F-measure of the `depth` best of (N, K) scores, COCO-CN table IV.

    `positives` are the right columns of each image. Each is computed for every image and averaged;
    images without a right column are left out. ValueError if that leaves none.
    """
    found = []
    for row, right in zip(scores, positives, strict=True):
        if len(right):
            best = np.argsort(-row, kind="stable")[:depth]
            hits = len(np.intersect1d(best, right))
            precision, recall = hits / depth, hits / len(right)
            total = precision + recall
            found.append((precision, recall, 2 * precision * recall / total if total else 0.0))
    if not found:
        raise ValueError("no image has a tag: nothing to measure")
    precision, recall, f = np.mean(found, axis=0)
    return float(precision), float(recall), float(f)
