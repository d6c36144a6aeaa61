"""The Elasticsearch backend: candidates of all evidence in one request, scored by the engine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Any

from capsearch.encoders.text import concepts
from capsearch.engine.errors import InvalidQuery
from capsearch.engine.protocols import Found, Stats
from capsearch.engine.query import EncodedQuery, tag_facets
from capsearch.engine.records import Document, Facet, Facets, Filters, Vectors
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic.client import Address, readable_errors
from capsearch.indexer.elastic.documents import (
    GENERATED_WORDS,
    IMAGE_ROW,
    MAX_RESULT_WINDOW,
    WORDS,
    document,
    row,
)
from capsearch.indexer.elastic.requests import Hit, Matches, Words
from capsearch.indexer.elastic.search import Search

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch


_PAGE = 1000  # documents of one answer, where all are read


class ElasticBackend:
    """engine.protocols.Backend over an index or alias. Threads may share one object."""

    def __init__(self, client: Elasticsearch, address: Address, index: str | None = None) -> None:
        self.client, self.address = client, address
        self.index = index or address.name

    def __len__(self) -> int:
        return self.count(requests.SEARCHABLE)

    def stats(self) -> Stats:
        """Documents that can be found, and whether any caption has a vector."""
        asked = {"documents": requests.SEARCHABLE, "captioned": requests.CAPTIONED}
        aggregations = {name: {"filter": clause} for name, clause in asked.items()}
        counts = self.ask(size=0, track_total_hits=False, aggs=aggregations)["aggregations"]
        return Stats(counts["documents"]["doc_count"], counts["captioned"]["doc_count"] > 0)

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
        matches = self._matches(query)
        if query.blind:  # what has neither its words nor its tags scores as any other
            required.append(requests.mentioned(matches))
        search = Search(self, query, matches, required)
        ranked = search.ranked(offset + limit)
        return search.page(ranked[offset : offset + limit])

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; those that are unknown or have no file are left out."""
        documents = (document(hit["_source"]) for hit in self.hits_by_id(ids, [requests.HAS_FILE]))
        return {document.record.id: document for document in documents}

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
            source=requests.SCORED["source"],
        )
        return tuple(document(hit["_source"]) for hit in answer["hits"]["hits"])

    def facets(self) -> Facets:
        """What the documents can be filtered by, with counts."""
        query = {"bool": {"filter": [requests.HAS_FILE]}}
        answer = self.ask(query=query, size=0, aggs=requests.facets())["aggregations"]
        captions = answer["captions"]
        return Facets(
            tags=tag_facets(_counts(answer["labels"]), _counts(answer["concepts"]), concepts),
            folders=tuple(sorted(_facets(answer["folders"]), key=lambda facet: facet.value)),
            caption_languages=_nested_facets(captions["language"]),
            written_by=_nested_facets(captions["written_by"]),
            earliest=_day(answer["earliest"]["value"]),
            latest=_day(answer["latest"]["value"]),
        )

    def ask(self, **request: Any) -> Mapping[str, Any]:
        """One search; half an answer is an error."""
        with readable_errors(self.address):
            answer: Mapping[str, Any] = self.client.search(
                index=self.index, allow_partial_search_results=False, **request
            ).body
        return answer

    def ask_all(self, searches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Several searches in one request; what fails is asked again by itself."""
        if len(searches) < 2:
            return [self.ask(**search) for search in searches]
        header = {"index": self.index, "allow_partial_search_results": False}
        lines = [line for search in searches for line in (header, _body(search))]
        with readable_errors(self.address):
            answers = self.client.msearch(searches=lines)["responses"]
        return [
            self.ask(**search) if "error" in answer else answer
            for search, answer in zip(searches, answers, strict=True)
        ]

    def hits_by_id(
        self,
        ids: Sequence[str],
        required: Sequence[requests.Clause],
        fields: Sequence[Words] = (),
    ) -> Iterator[Hit]:
        """Documents with what they are scored from; in no order."""
        for start in range(0, len(ids), _PAGE):
            chosen = [{"ids": {"values": list(ids[start : start + _PAGE])}}, *required]
            query = requests.with_words(fields, chosen)
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

    def _matches(self, query: EncodedQuery) -> Matches:
        if not query.words:
            return Matches(concepts=query.concepts)
        asked = requests.counts(query.words)
        answer = self.ask(size=0, track_total_hits=False, aggs=asked)["aggregations"]
        counts, documents = answer["words"]["buckets"], answer["searchable"]["doc_count"]

        def words(field: str) -> Words:
            names = [f"{field}:{number}" for number in range(len(query.words))]
            containing = [counts[name]["doc_count"] for name in names]
            return Words.of(field, query.words, containing, documents)

        return Matches(words(WORDS), words(GENERATED_WORDS), query.concepts)


def _body(search: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of a search as it is sent among others."""
    return {"_source" if name == "source" else name: value for name, value in search.items()}


def _facets(buckets: Mapping[str, Any]) -> tuple[Facet, ...]:
    return tuple(Facet(bucket["key"], bucket["doc_count"]) for bucket in buckets["buckets"])


def _counts(buckets: Mapping[str, Any]) -> dict[str, int]:
    return {bucket["key"]: bucket["doc_count"] for bucket in buckets["buckets"]}


def _nested_facets(buckets: Mapping[str, Any]) -> tuple[Facet, ...]:
    counted = [
        Facet(bucket["key"], bucket["documents"]["doc_count"]) for bucket in buckets["buckets"]
    ]
    return tuple(sorted(counted, key=lambda facet: (-facet.images, facet.value)))


def _day(milliseconds: float | None) -> date | None:
    if milliseconds is None:
        return None
    return (datetime(1970, 1, 1) + timedelta(milliseconds=milliseconds)).date()
