"""Documents by the tags of what a query names (engine.evidence.tag_score)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capsearch.engine.evidence import Floats, tag_score
from capsearch.engine.settling import DEEPER
from capsearch.indexer.embedded.arrays import Slots
from capsearch.indexer.embedded.catalog import SqliteCatalog

# Of each concept by index, without the rows of the images that are not among the surest.
_TOP = (
    "SELECT i.slot, t.confidence FROM (SELECT image_id, confidence FROM tags WHERE concept != '' "
    "AND concept IN (SELECT value FROM json_each(?)) ORDER BY confidence DESC LIMIT ?) t "
    "LEFT JOIN images i ON i.id = t.image_id"
)
# An image has a few tags, a query may name hundreds of concepts: no search by concept (+).
_OF = (
    "SELECT image_id, concept, confidence FROM tags "
    "WHERE image_id IN (SELECT value FROM json_each(?)) AND +concept != '' "
    "AND +concept IN (SELECT value FROM json_each(?)) ORDER BY confidence"
)


class TagMatches:
    """The tags of documents for one query; none in a catalog of an older version."""

    def __init__(self, catalog: SqliteCatalog, concepts: tuple[frozenset[str], ...]) -> None:
        self._catalog = catalog
        self._concepts = concepts if concepts and catalog.is_enriched() else ()
        self._found: list[_Surest] = []
        self._reached = 0

    def top(self, depth: int) -> tuple[Slots, Floats, float]:
        """The surest `depth` documents for each thing named, and the most that each can score;
        the most that any other can.

        A document with two such tags may take the place of two.
        """
        if not self._concepts:
            return np.empty(0, np.int64), np.empty(0), 0.0
        if depth > self._reached:
            self._reached = depth * (1 if self._found else DEEPER)
            self._found = [self._surest(ids, self._reached) for ids in self._concepts]
        slots = np.unique(np.concatenate([one.slots[:depth] for one in self._found]))
        slots = slots[slots >= 0]
        each = [one.most(slots, depth) for one in self._found]
        outside = [one.outside(depth) for one in self._found]
        return slots, np.mean(each, axis=0), sum(outside) / len(outside)

    def scores(self, ids: Sequence[str]) -> Floats:
        """(n,) the score of each document."""
        found = np.zeros(len(ids))
        if not self._concepts:
            return found
        named = sorted(frozenset[str]().union(*self._concepts))
        tags: dict[str, dict[str, float]] = defaultdict(dict)
        for image_id, concept, confidence in self._catalog.rows(
            _OF, (json.dumps(list(ids)), json.dumps(named))
        ):
            tags[image_id][concept] = confidence
        for at, image_id in enumerate(ids):
            if image_id in tags:
                found[at] = tag_score(self._concepts, tags[image_id])
        return found

    def _surest(self, ids: frozenset[str], depth: int) -> _Surest:
        rows = self._catalog.rows(_TOP, (json.dumps(sorted(ids)), depth))
        rows.sort(key=lambda row: -row[1])
        slots = [-1 if slot is None else slot for slot, _ in rows]
        return _Surest(np.array(slots, np.int64), np.array([share for _, share in rows], float))


@dataclass(frozen=True, slots=True)
class _Surest:
    """The surest tags of some concepts: their documents (-1: without a vector), and how sure."""

    slots: Slots
    shares: Floats

    def most(self, slots: Slots, depth: int) -> Floats:
        """(n,) how sure the tags of these documents, ascending, can be."""
        shares = np.full(len(slots), self.outside(depth))
        found = self.slots[:depth] >= 0
        at = np.searchsorted(slots, self.slots[:depth][found])
        np.maximum.at(shares, at, self.shares[:depth][found])
        return shares

    def outside(self, depth: int) -> float:
        """The most that a document has without these; 0 if there are no more."""
        return float(self.shares[depth - 1]) if len(self.shares) >= depth else 0.0
