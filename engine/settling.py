"""Pages out of candidates: the threshold algorithm (Fagin, Lotem and Naor, 2001), step by step.

A backend finds the best documents by each source of evidence, so many at a time, and knows what no
document outside can exceed. Whatever scores more than that is settled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Generic, TypeVar

import numpy as np

from capsearch.engine.evidence import Evidence
from capsearch.engine.query import EncodedQuery

DEEPER = 4  # times as many candidates, where these did not settle the page
OVERSAMPLING = 4  # candidates for each hit that they may settle
Row = TypeVar("Row")


@dataclass(frozen=True, slots=True)
class Ranked(Generic[Row]):
    """A candidate with its score, and where the backend has it."""

    score: float
    image_id: str
    row: Row


@dataclass(frozen=True, slots=True)
class Pool(Generic[Row]):
    """Candidates, best first, and the most that a document outside can score: -inf if none can."""

    ranked: Sequence[Ranked[Row]]
    bound: float


def rank(
    query: EncodedQuery, evidence: Evidence, ids: Sequence[str], rows: Sequence[Row]
) -> list[Ranked[Row]]:
    """Candidates at or above the cut-off, best first, ties by id."""
    scores = query.fusion.scores(evidence)
    keep = np.flatnonzero((scores > -np.inf) & (scores >= query.min_score))
    ranked = [Ranked(float(scores[at]), ids[at], rows[at]) for at in keep.tolist()]
    return sorted(ranked, key=_order)


def merge(first: list[Ranked[Row]], second: list[Ranked[Row]]) -> list[Ranked[Row]]:
    """Two rankings of different candidates as one."""
    return sorted([*first, *second], key=_order) if first else second


def _order(one: Ranked[Row]) -> tuple[float, str]:
    return -one.score, one.image_id


def settle(
    query: EncodedQuery,
    stop: int,
    depth: int,
    gather: Callable[[int], Iterable[Pool[Row]]],
    deeper: int = DEEPER,
) -> list[Ranked[Row]]:
    """At least the first `stop` of the ranking, or all of it.

    `gather` finds so many candidates by each source, first `depth`, then `deeper` times as many,
    and may score them part by part. What is settled after a part does not depend on `stop`, and
    each only appends to it. An approximate search may miss a document at first and find it later:
    it then comes after what is settled, so that all pages are cut from one and the same ranking.
    """
    settled: dict[str, Ranked[Row]] = {}
    while True:
        for pool in gather(depth):
            last = pool.bound == -np.inf or pool.bound < query.min_score
            ranked = list(pool.ranked)
            if not last:
                above = takewhile(lambda one: one.score > pool.bound, ranked)  # noqa: B023
                ranked = list(above)[: depth // OVERSAMPLING]
            for one in ranked:
                settled.setdefault(one.image_id, one)
            if last or len(settled) >= stop:
                return list(settled.values())
        depth *= deeper
