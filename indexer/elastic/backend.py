"""The Elasticsearch backend: candidates of all evidence in one request, scored by the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.encoders import concepts
from capsearch.engine import settling
from capsearch.engine.errors import InvalidQuery
from capsearch.engine.evidence import contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Document, Facet, Facets, Filters, Vectors
from capsearch.engine.settling import Ranked, rank, settle
from capsearch.engine.tag_facets import tag_facets
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic.candidates import Hit, Scored, Totals, Words, highest, score, short
from capsearch.indexer.elastic.client import Address, readable_errors
from capsearch.indexer.elastic.mapping import IMAGE_ROW, MAX_RESULT_WINDOW, document, row

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

MIN_DEPTH = 200  # candidates by each vector: every one of them travels with its rows
MAX_DEPTH = 10_000  # what Elasticsearch allows; beyond, all documents are compared
_PAGE = 1000  # documents of one answer, where all are read


class ElasticBackend:
    """engine.protocols.Backend over an index or alias. Threads may share one object."""

    def __init__(self, client: Elasticsearch, address: Address, index: str | None = None) -> None:
        self.client, self.address = client, address
        self.index = index or address.name

    def __len__(self) -> int:
        return self.count(requests.SEARCHABLE)

    def captioned(self) -> bool:
        """Whether any caption has a vector."""
        return bool(self.count(requests.CAPTIONED))

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """The documents ranked offset + 1 to offset + limit; see engine.protocols.

        As the embedded backend does: once enough candidates score more than any other document
        can, the page is settled. Where it is not, more candidates are fetched.
        """
        if query.empty:
            return ()
        required = [requests.SEARCHABLE, *requests.conditions(filters, query.phrases)]
        search = _Search(self, query, self._words(query.words), required)
        ranked = search.ranked(offset + limit)
        if ranked and ranked[0].score < query.min_best:
            return ()
        return search.page(ranked[offset : offset + limit])

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; those that are unknown or have no file are left out."""
        found = (document(hit["_source"]) for hit in self.hits_by_id(ids, [requests.HAS_FILE]))
        return {one.record.id: one for one in found}

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector (D,) of a document, or None."""
        hits = self.hits_by_id([image_id], [requests.SEARCHABLE])
        return next((row(hit["fields"], IMAGE_ROW, "<f4") for hit in hits), None)

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """By the date they were taken, latest first, undated last; ties by id."""
        if offset + limit > MAX_RESULT_WINDOW:
            raise InvalidQuery(f"a cluster lists the newest {MAX_RESULT_WINDOW:,}; add a filter")
        answer = self.ask(
            query={"bool": {"filter": [requests.HAS_FILE, *requests.conditions(filters)]}},
            sort=[{"taken_at": {"order": "desc", "missing": "_last"}}, {"id": "asc"}],
            from_=offset,
            size=limit,
            source_excludes=requests.SCORED["source_excludes"],
        )
        return tuple(document(hit["_source"]) for hit in answer["hits"]["hits"])

    def facets(self) -> Facets:
        """What the documents can be filtered by, with counts."""
        query = {"bool": {"filter": [requests.HAS_FILE]}}
        found = self.ask(query=query, size=0, aggs=requests.facets())["aggregations"]
        captions = found["captions"]
        return Facets(
            tags=tag_facets(_counts(found["labels"]), _counts(found["concepts"]), concepts),
            folders=tuple(sorted(_facets(found["folders"]), key=lambda one: one.value)),
            caption_languages=_nested_facets(captions["language"]),
            written_by=_nested_facets(captions["written_by"]),
            earliest=_day(found["earliest"]["value"]),
            latest=_day(found["latest"]["value"]),
        )

    def ask(self, **request: Any) -> Mapping[str, Any]:
        """One search; half an answer is an error."""
        with readable_errors(self.address):
            answer: Mapping[str, Any] = self.client.search(
                index=self.index, allow_partial_search_results=False, **request
            ).body
        return answer

    def hits_by_id(
        self, ids: Sequence[str], required: Sequence[requests.Clause], words: Sequence[str] = ()
    ) -> Iterator[Hit]:
        """Documents with what they are scored from; in no order."""
        for start in range(0, len(ids), _PAGE):
            chosen = [{"ids": {"values": list(ids[start : start + _PAGE])}}, *required]
            query = requests.with_words(words, chosen)
            yield from self.ask(query=query, size=_PAGE, **requests.SCORED)["hits"]["hits"]

    def scan(
        self, query: requests.Clause, source: Mapping[str, Any] = requests.SCORED
    ) -> Iterator[list[Hit]]:
        """All documents that match, page by page, as of now."""
        with readable_errors(self.address):
            opened = self.client.open_point_in_time(index=self.index, keep_alive="5m")
        moment = {"id": opened["id"], "keep_alive": "5m"}
        after: dict[str, Any] = {}
        try:
            while True:
                with readable_errors(self.address):
                    answer = self.client.search(
                        pit=moment, query=query, size=_PAGE, sort="_shard_doc",
                        track_total_hits=False, allow_partial_search_results=False,
                        **source, **after,
                    )  # fmt: skip
                hits = answer["hits"]["hits"]
                if not hits:
                    return
                yield hits
                after = {"search_after": hits[-1]["sort"]}
        finally:
            with readable_errors(self.address):
                self.client.close_point_in_time(id=opened["id"])

    def count(self, clause: requests.Clause) -> int:
        """How many documents match."""
        with readable_errors(self.address):
            return int(self.client.count(index=self.index, query=clause)["count"])

    def _words(self, words: Sequence[str]) -> Words:
        if not words:
            return Words()
        found = self.ask(size=0, track_total_hits=False, aggs=requests.counts(words))
        counts = found["aggregations"]["words"]["buckets"]
        containing = [counts[str(number)]["doc_count"] for number in range(len(words))]
        return Words.of(words, containing, found["aggregations"]["searchable"]["doc_count"])


@dataclass(frozen=True, slots=True)
class _Search:
    """One search: its query, the rare words in it, and what its documents must be."""

    backend: ElasticBackend
    query: EncodedQuery
    words: Words
    required: list[requests.Clause]

    def ranked(self, stop: int) -> list[Ranked[Hit | None]]:
        """At least the first `stop` of the ranking, or all of it.

        Rows are hits, or None where there were too many to keep.
        """
        return settle(self.query, stop, MIN_DEPTH, self._gather)

    def _gather(self, depth: int) -> settling.Pool[Hit | None]:
        """The best `depth` by each vector; beyond MAX_DEPTH, or without one, all that pass."""
        if depth > MAX_DEPTH or (depth > MIN_DEPTH and not self._nearest(depth)):
            return settling.Pool(self._all(), -np.inf)
        scored = score(self.query, self.words, self._candidates(depth))
        totals = self._totals() if short(self.query, scored, depth) else Totals()
        bound = self.query.fusion.bound(highest(self.query, self.words, scored, depth, totals))
        if len(scored.hits) >= totals.images:
            bound = -np.inf
        return settling.Pool(self._rank(scored, scored.hits), bound)

    def page(self, ranked: Sequence[Ranked[Hit | None]]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores."""
        hits = {one.image_id: one.row for one in ranked if one.row is not None}
        unread = [one.image_id for one in ranked if one.row is None]
        for hit in self.backend.hits_by_id(unread, self.required, self.words.rare):
            hits[hit["_id"]] = hit
        kept = [one for one in ranked if one.image_id in hits]  # deleted since: left out
        scored = score(self.query, self.words, [hits[one.image_id] for one in kept])
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

    def _candidates(self, depth: int) -> list[Hit]:
        """One request: the best `depth` by each vector, and the documents with rare words."""
        nearest = self._nearest(depth)
        if not nearest and not self.words.rare:
            return []
        size = depth * len(nearest) + self.words.documents
        assert size <= MAX_RESULT_WINDOW  # MAX_DEPTH and Words see to it: nothing is cut off
        asked: dict[str, Any] = {"size": size, "track_total_hits": False}
        if nearest:
            asked["knn"] = nearest
        if self.words.rare:
            asked["query"] = requests.with_words(
                self.words.rare, self.required, self.words.searched
            )
        hits: list[Hit] = self.backend.ask(**asked, **requests.SCORED)["hits"]["hits"]
        return hits

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
        query = requests.with_words(self.words.rare, self.required)
        ranked = [
            one
            for hits in self.backend.scan(query)
            for one in self._rank(score(self.query, self.words, hits), [None] * len(hits))
        ]
        return sorted(ranked, key=lambda one: (-one.score, one.image_id))


def _facets(found: Mapping[str, Any]) -> tuple[Facet, ...]:
    return tuple(Facet(one["key"], one["doc_count"]) for one in found["buckets"])


def _counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {one["key"]: one["doc_count"] for one in found["buckets"]}


def _nested_facets(found: Mapping[str, Any]) -> tuple[Facet, ...]:
    counted = [Facet(one["key"], one["documents"]["doc_count"]) for one in found["buckets"]]
    return tuple(sorted(counted, key=lambda one: (-one.images, one.value)))


def _day(milliseconds: float | None) -> date | None:
    if milliseconds is None:
        return None
    return (datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)).date()
