"""Documents by the tags of what a query names (engine.evidence.tag_score)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from capsearch.engine.evidence import Floats, tag_score
from capsearch.indexer.embedded.arrays import Slots
from capsearch.indexer.embedded.catalog import SqliteCatalog

_CHOSEN = "t.concept != '' AND t.concept IN (SELECT value FROM json_each(?))"
_TOP = (
    "SELECT i.slot, max(t.confidence) AS best FROM tags t JOIN images i ON i.id = t.image_id "
    f"WHERE {_CHOSEN} AND i.slot IS NOT NULL GROUP BY t.image_id ORDER BY best DESC LIMIT ?"
)
_OF = (
    "SELECT i.slot, t.concept, t.confidence FROM images i JOIN tags t ON t.image_id = i.id "
    f"WHERE i.slot IN (SELECT value FROM json_each(?)) AND {_CHOSEN} ORDER BY t.confidence"
)


@dataclass(frozen=True, slots=True)
class TagMatches:
    """The tags of documents for one query; none in a catalog of an older version."""

    catalog: SqliteCatalog
    concepts: tuple[frozenset[str], ...]

    def top(self, depth: int) -> tuple[Slots, float]:
        """The surest `depth` documents for each thing named, and the most any other can score."""
        found: list[int] = []
        outside = []
        for ids in self._named():
            rows = self.catalog.rows(_TOP, (json.dumps(sorted(ids)), depth))
            found += [slot for slot, _ in rows]
            outside.append(rows[-1][1] if len(rows) == depth else 0.0)
        highest = sum(outside) / len(outside) if outside else 0.0
        return np.unique(np.array(found, np.int64)), highest

    def scores(self, slots: Sequence[int]) -> Floats:
        """(n,) the score of each document."""
        found = np.zeros(len(slots))
        if not self._named():
            return found
        ids = sorted(frozenset[str]().union(*self.concepts))
        tags: dict[int, dict[str, float]] = defaultdict(dict)
        for slot, concept, confidence in self.catalog.rows(
            _OF, (json.dumps(list(slots)), json.dumps(ids))
        ):
            tags[slot][concept] = confidence
        for at, slot in enumerate(slots):
            if slot in tags:
                found[at] = tag_score(self.concepts, tags[slot])
        return found

    def _named(self) -> tuple[frozenset[str], ...]:
        return self.concepts if self.concepts and self.catalog.is_enriched() else ()
