"""Pages out of candidates: the threshold algorithm (Fagin, Lotem and Naor, 2001), step by step.

A backend finds the best documents by each source of evidence (`Best`), so many at a time, and knows
what no document outside can exceed. Whatever scores more than that is settled. Of the documents
found, those that can score most are scored first: the others may never have to be.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.evidence import Evidence, Floats, Fusion, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Document, Source

DEEPER = 4  # times as many candidates, where these did not settle the page
OVERSAMPLING = 4  # candidates for each hit that they may settle
_ROUNDING = 1e-9  # a bound and a score sum the same evidence in another order
Key = TypeVar("Key")
Keys: TypeAlias = NDArray[Any]  # (n,) what a backend reads its documents by


@dataclass(frozen=True, slots=True)
class Best:
    """The best documents by one source of evidence, and the most that each has by it.

    A document may be there several times, as by several captions: the highest counts. `outside` is
    the most that any other document has by this source, NaN if no other has any.
    """

    keys: Keys  # (n,)
    most: Floats  # (n,)
    outside: float

    @classmethod
    def none(cls) -> Best:
        """Of a source that no document has."""
        return cls(np.empty(0, np.int64), np.empty(0), np.nan)

    def at(self, keys: Keys) -> Floats:
        """(m,) the most that these documents have, ascending and with all of `self.keys`."""
        most = np.full(len(keys), self.outside)
        rows = np.searchsorted(keys, self.keys)
        most[rows] = -np.inf
        np.maximum.at(most, rows, self.most)
        return most


def distinct(keys: Sequence[Keys]) -> Keys:
    """Ascending, each once; `np.unique` takes ten times as long for hundreds."""
    ordered = np.sort(np.concatenate(keys))
    return np.asarray(ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]])


@dataclass(frozen=True, slots=True)
class Candidates:
    """Documents that were found and not scored yet.

    `bounds` is the most that each can score, None if nothing is known; `outside` the most that any
    document but these can: -inf if none can.
    """

    keys: Keys  # each once
    bounds: Floats | None
    outside: float

    @classmethod
    def of(cls, fusion: Fusion, best: Mapping[Source, Best], complete: bool = False) -> Candidates:
        """All that any source found; `complete`: no other document can be a hit."""
        keys = distinct([source.keys for source in best.values()])
        most = {name: np.append(source.at(keys), source.outside) for name, source in best.items()}
        bounds = fusion.bounds(Evidence.of(len(keys) + 1, **most)) + _ROUNDING
        return cls(keys, bounds[:-1], -np.inf if complete else float(bounds[-1]))

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


@dataclass(frozen=True, slots=True)
class Scored(Generic[Key]):
    """Documents with their exact evidence, and what the fusion makes of it."""

    ids: Sequence[str]
    keys: Sequence[Key]  # what the backend has them by
    evidence: Evidence
    captions: Mapping[int, Any]  # what the backend has the best of each document (by row) by
    scores: Floats
    log_odds: Mapping[str, Floats]

    @classmethod
    def of(
        cls,
        fusion: Fusion,
        ids: Sequence[str],
        keys: Sequence[Key],
        evidence: Evidence,
        captions: Mapping[int, Any],
    ) -> Scored[Key]:
        """Documents by their evidence."""
        log_odds = fusion.log_odds(evidence)
        scores = sum(log_odds.values()) if log_odds else fusion.scores(evidence)
        return cls(ids, keys, evidence, captions, np.asarray(scores, float), log_odds)

    def ranked(self, least: float) -> list[Ranked[Key]]:
        """Those that score at least so much, best first, ties by id."""
        rows = np.flatnonzero((self.scores > -np.inf) & (self.scores >= least)).tolist()
        return sorted(
            (Ranked(float(self.scores[row]), self.ids[row], self, row) for row in rows), key=_order
        )


@dataclass(frozen=True, slots=True)
class Ranked(Generic[Key]):
    """A document in the ranking, and where its evidence is."""

    score: float
    image_id: str
    scored: Scored[Key]
    row: int

    @property
    def key(self) -> Key:
        """What the backend has it by."""
        return self.scored.keys[self.row]

    @property
    def caption(self) -> Any:
        """What the backend has the best caption by; None for a document without any."""
        return self.scored.captions.get(self.row)

    def found(
        self, document: Document, caption: Caption | None, sources: frozenset[Source]
    ) -> Found:
        """The document with the reasons for its score."""
        scored = self.scored
        why = contributions(scored.evidence, scored.log_odds, self.row, sources, caption)
        return Found(document, self.score, why)


@dataclass(frozen=True, slots=True)
class Pool(Generic[Key]):
    """Scored candidates, best first, and the most that any other document can score."""

    ranked: Sequence[Ranked[Key]]
    bound: float  # -inf if there is none


@dataclass(slots=True)
class InParts(Generic[Key]):
    """What `settle` gathers, where reading a candidate takes longer than finding it.

    `find` has the candidates of a depth, `score` ranks some of them. None is scored twice.
    """

    find: Callable[[int], Candidates]
    score: Callable[[Keys], list[Ranked[Key]]]
    first: int
    ranked: list[Ranked[Key]] = field(default_factory=list)
    scored: set[Any] = field(default_factory=set)

    def __call__(self, depth: int) -> Iterator[Pool[Key]]:
        """The candidates of a depth that are scored by now, part by part."""
        candidates = self.find(depth)
        for keys, behind in candidates.parts(self.first):
            new = keys[[key not in self.scored for key in keys.tolist()]]
            self.scored.update(new.tolist())
            better = self.score(new)
            self.ranked = sorted([*self.ranked, *better], key=_order)
            outside = candidates.outside
            yield Pool(self.ranked, max(outside, behind))
            # Where a part settles nothing, a deeper step settles more than the next part.
            if len(new) >= 2 * self.first and not any(hit.score > outside for hit in better):
                return


def _order(hit: Ranked[Key]) -> tuple[float, str]:
    return -hit.score, hit.image_id


def settle(
    query: EncodedQuery,
    stop: int,
    depth: int,
    gather: Callable[[int], Iterable[Pool[Key]]],
    deeper: int = DEEPER,
) -> list[Ranked[Key]]:
    """At least the first `stop` of the ranking, or all of it.

    `gather` finds so many candidates by each source, first `depth`, then `deeper` times as many,
    and may score them part by part. What is settled after a part does not depend on `stop`, and
    each only appends to it. An approximate search may miss a document at first and find it later:
    it then comes after what is settled, so that all pages are cut from one and the same ranking.
    """
    settled: dict[str, Ranked[Key]] = {}
    while True:
        for pool in gather(depth):
            last = pool.bound == -np.inf or pool.bound < query.min_score
            ranked = list(pool.ranked)
            if not last:
                above = takewhile(lambda hit: hit.score > pool.bound, ranked)  # noqa: B023
                ranked = list(above)[: depth // OVERSAMPLING]
            for hit in ranked:
                settled.setdefault(hit.image_id, hit)
            if last or len(settled) >= stop:
                return list(settled.values())
        depth *= deeper
