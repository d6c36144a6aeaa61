"""One search of a cluster: candidates as ids by all evidence, the best of them scored from rows.

No document outside the candidates can exceed the bound (engine.settling), and no candidate what it
can score at most, but for what the graphs of the vectors miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from capsearch.engine import settling
from capsearch.engine.evidence import contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.settling import Keys, Ranked, rank, settle
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic.candidates import Finder
from capsearch.indexer.elastic.documents import document
from capsearch.indexer.elastic.matches import Hit, Matches
from capsearch.indexer.elastic.scoring import score

if TYPE_CHECKING:
    from capsearch.indexer.elastic.backend import ElasticBackend

MIN_DEPTH = 100  # candidates by each vector: most queries need no more (docs/cluster.md)
MAX_DEPTH = 5_000  # a graph finds 10,000 at most; beyond, all documents are compared
FIRST_PART = 32  # candidates whose rows are read first


@dataclass(frozen=True, slots=True)
class Search:
    """One search: its query, its words and concepts, and what its documents must be."""

    backend: ElasticBackend
    query: EncodedQuery
    matches: Matches
    required: list[requests.Clause]

    def ranked(self, stop: int) -> list[Ranked[Hit | None]]:
        """At least the first `stop` of the ranking, or all of it.

        Rows are hits, or None where there were too many to keep.
        """
        finder = Finder(self.backend, self.query, self.matches, self.required)
        in_parts = settling.InParts[Hit | None](finder.find, self._score, FIRST_PART)

        def gather(depth: int) -> Iterator[settling.Pool[Hit | None]]:
            as_deep_before = depth // settling.DEEPER >= MAX_DEPTH
            if as_deep_before or (depth > MIN_DEPTH and not finder.near):
                yield settling.Pool(self._all(), -np.inf)
            else:
                yield from in_parts(min(depth, MAX_DEPTH))

        return settle(self.query, stop, MIN_DEPTH, gather)

    def page(self, ranked: Sequence[Ranked[Hit | None]]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores."""
        hits = {one.image_id: one.row for one in ranked if one.row is not None}
        unread = [one.image_id for one in ranked if one.row is None]
        hits |= {hit["_id"]: hit for hit in self._read(unread)}
        kept = [one for one in ranked if one.image_id in hits]  # deleted since: left out
        scored = score(self.query, self.matches, [hits[one.image_id] for one in kept])
        fusion, evidence = self.query.fusion, scored.evidence
        parts = fusion.log_odds(evidence)
        return tuple(
            Found(
                document(scored.hits[at]["_source"]),
                one.score,
                contributions(evidence, parts, at, fusion.sources, scored.captions.get(at)),
            )
            for at, one in enumerate(kept)
        )

    def _score(self, ids: Keys) -> list[Ranked[Hit | None]]:
        hits = list(self._read(ids.tolist()))
        return self._rank(hits, hits)

    def _read(self, ids: Sequence[str]) -> Iterator[Hit]:
        return self.backend.hits_by_id(ids, self.required, self.matches.fields)

    def _rank(self, hits: Sequence[Hit], rows: Sequence[Hit | None]) -> list[Ranked[Hit | None]]:
        evidence = score(self.query, self.matches, hits).evidence
        return rank(self.query, evidence, [hit["_id"] for hit in hits], rows)

    def _all(self) -> list[Ranked[Hit | None]]:
        """Every document that passes."""
        query = requests.with_words(self.matches.fields, self.required)
        ranked = [
            one for hits in self.backend.scan(query) for one in self._rank(hits, [None] * len(hits))
        ]
        return sorted(ranked, key=lambda one: (-one.score, one.image_id))
