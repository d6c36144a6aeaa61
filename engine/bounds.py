"""Pages out of candidates: the threshold algorithm (Fagin, Lotem and Naor, 2001), step by step.

A backend finds the best documents by each source of evidence, so many at a time, and knows what no
document outside can exceed. Whatever scores more than that is settled. Of the documents found,
those that can score most are scored first: the others may never have to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.evidence import Evidence, Floats
from capsearch.engine.query import EncodedQuery

DEEPER = 4  # times as many candidates, where these did not settle the page
OVERSAMPLING = 4  # candidates for each hit that they may settle
Row = TypeVar("Row")
Keys: TypeAlias = NDArray[Any]  # (n,) what a backend reads its documents by, each once


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


@dataclass(frozen=True, slots=True)
class Candidates:
    """Documents that were found and not scored yet.

    `bounds` is the most that each can score, None if nothing is known; `outside` the most that any
    document but these can: -inf if none can.
    """

    keys: Keys
    bounds: Floats | None
    outside: float

    def parts(self, first: int) -> Iterator[tuple[Keys, float]]:
        """Growing parts by falling bounds, the first of `first`; and the most of all behind."""
        if self.bounds is None or not len(self.keys):
            yield self.keys, -np.inf
            return
        order = np.argsort(-self.bounds, kind="stable")
        start, stop = 0, first
        while start < len(order):
            behind = float(self.bounds[order[stop]]) if stop < len(order) else -np.inf
            yield self.keys[order[start:stop]], behind
            start, stop = stop, 2 * stop


@dataclass(slots=True)
class InParts(Generic[Row]):
    """What `settle` gathers, where reading a candidate takes longer than finding it.

    `find` has the candidates of a depth, `score` ranks some of them. None is scored twice.
    """

    find: Callable[[int], Candidates]
    score: Callable[[Keys], list[Ranked[Row]]]
    first: int
    ranked: list[Ranked[Row]] = field(default_factory=list)
    scored: Keys | None = None

    def __call__(self, depth: int) -> Iterator[Pool[Row]]:
        """The candidates of a depth that are scored by now, part by part."""
        found = self.find(depth)
        for keys, behind in found.parts(self.first):
            before = keys[:0] if self.scored is None else self.scored
            new = np.setdiff1d(keys, before)
            self.scored = np.union1d(before, new)
            better = self.score(new)
            self.ranked = merge(self.ranked, better)
            yield Pool(self.ranked, max(found.outside, behind))
            # Where a part settles nothing, a deeper step settles more than the next part.
            if len(new) >= 2 * self.first and not any(one.score > found.outside for one in better):
                return


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
