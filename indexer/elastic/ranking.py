"""One search of a cluster: candidates of all evidence in one request, scored from their rows.

No document outside the candidates can exceed the bound (engine.settling), but for what the graphs
of the vectors miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.engine import settling
from capsearch.engine.evidence import Evidence, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.settling import Ranked, rank, settle
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic.candidates import Scored, Totals, highest, score, short
from capsearch.indexer.elastic.documents import document
from capsearch.indexer.elastic.mapping import MAX_RESULT_WINDOW
from capsearch.indexer.elastic.matches import Hit, Matches

if TYPE_CHECKING:
    from capsearch.indexer.elastic.backend import ElasticBackend

MIN_DEPTH = 200  # candidates by each vector: every one of them travels with its rows
MAX_DEPTH = 5_000  # answers have to hold them; beyond, all documents are compared
_FEATURE_ERROR = 2**-8  # rank_features keep 8 bits of a value, and cut the others off


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
        return settle(self.query, stop, MIN_DEPTH, self._gather)

    def _gather(self, depth: int) -> Iterator[settling.Pool[Hit | None]]:
        """The best `depth` by each vector; beyond MAX_DEPTH, or without one, all that pass."""
        if depth > MAX_DEPTH or (depth > MIN_DEPTH and not self._nearest(depth)):
            yield settling.Pool(self._all(), -np.inf)
            return
        hits, surest = self._candidates(depth)
        scored = score(self.query, self.matches, hits)
        totals = self._totals() if short(self.query, scored, depth) else Totals()
        most = highest(self.query, self.matches, scored, depth, totals, surest)
        bound = float(self.query.fusion.bounds(Evidence.single(most))[0])
        if len(scored.hits) >= totals.images:
            bound = -np.inf
        yield settling.Pool(self._rank(scored, scored.hits), bound)

    def page(self, ranked: Sequence[Ranked[Hit | None]]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores."""
        hits = {one.image_id: one.row for one in ranked if one.row is not None}
        unread = [one.image_id for one in ranked if one.row is None]
        for hit in self.backend.hits_by_id(unread, self.required, self.matches.fields):
            hits[hit["_id"]] = hit
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

    def _candidates(self, depth: int) -> tuple[list[Hit], float]:
        """One request: the best `depth` by each vector and by tags of each thing that is named,
        and documents with rare words; and the most that any other can score by tags."""
        searches = [*self._by_vectors_and_words(depth), *self._by_tags(depth)]
        answers = [one["hits"]["hits"] for one in self.backend.ask_all(searches)]
        found = {hit["_id"]: hit for hits in answers for hit in hits}
        named = len(self.matches.concepts)
        outside = [
            min(1.0, hits[-1]["_score"] * (1 + _FEATURE_ERROR)) if len(hits) == depth else 0.0
            for hits in answers[len(answers) - named :]
        ]
        return list(found.values()), sum(outside) / named if named else 0.0

    def _by_vectors_and_words(self, depth: int) -> list[dict[str, Any]]:
        nearest = self._nearest(depth)
        if not nearest and not self.matches.rare:
            return []
        size = depth * len(nearest) + self.matches.documents
        assert size <= MAX_RESULT_WINDOW  # MAX_DEPTH and Words see to it: nothing is cut off
        asked: dict[str, Any] = {"size": size, "track_total_hits": False, **requests.SCORED}
        if nearest:
            asked["knn"] = nearest
        if self.matches.rare:
            asked["query"] = requests.with_words(self.matches.fields, self.required, searched=True)
        return [asked]

    def _by_tags(self, depth: int) -> list[dict[str, Any]]:
        asked: dict[str, Any] = {"size": depth, "track_total_hits": False, **requests.SCORED}
        return [
            {**asked, "query": requests.tagged(ids, self.matches.fields, self.required)}
            for ids in self.matches.concepts
        ]

    def _nearest(self, depth: int) -> list[requests.Clause]:
        return requests.nearest(self.query, self.required, depth)

    def _totals(self) -> Totals:
        every = {"filter": {"bool": {"filter": self.required}}}
        captioned = {"filter": {"bool": {"filter": [*self.required, requests.CAPTIONED]}}}
        asked = {"images": every, "captioned": captioned}
        found = self.backend.ask(size=0, track_total_hits=False, aggs=asked)["aggregations"]
        return Totals(*(found[name]["doc_count"] for name in asked))

    def _rank(self, scored: Scored, rows: Sequence[Hit | None]) -> list[Ranked[Hit | None]]:
        ids = [hit["_id"] for hit in scored.hits]
        return rank(self.query, scored.evidence, ids, rows)

    def _all(self) -> list[Ranked[Hit | None]]:
        """Every document that passes."""
        query = requests.with_words(self.matches.fields, self.required)
        ranked = [
            one
            for hits in self.backend.scan(query)
            for one in self._rank(score(self.query, self.matches, hits), [None] * len(hits))
        ]
        return sorted(ranked, key=lambda one: (-one.score, one.image_id))
