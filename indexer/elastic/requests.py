"""What is asked of Elasticsearch: filters, candidates, counts and facets as query DSL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from capsearch.encoders import concepts
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.indexer.elastic.mapping import CAPTION_ROWS, IMAGE_ROW
from capsearch.indexer.sources.unicode_names import spellings

Clause: TypeAlias = dict[str, Any]
MAX_CHOICES = 500  # tags or folders in one list; the rarest values are left out
HAS_FILE: Clause = {"exists": {"field": "folders"}}
SEARCHABLE: Clause = {"term": {"searchable": True}}
CAPTIONED: Clause = {"term": {"captioned": True}}
# What a document is scored from; see mapping.
SCORED: dict[str, Any] = {
    "source_excludes": ["provenance.files", "provenance.captions", "provenance.past_files"],
    "docvalue_fields": [IMAGE_ROW, CAPTION_ROWS],
}


def conditions(filters: Filters, phrases: Sequence[Sequence[str]] = ()) -> list[Clause]:
    """Clauses that must all hold."""
    return [*_filters(filters), *(_phrase(phrase) for phrase in phrases)]


def nearest(query: EncodedQuery, required: Sequence[Clause], depth: int) -> list[Clause]:
    """A knn clause for each vector of a query; zeros are near nothing and get none."""
    vectors = {"vector": query.image, "captions.vector": query.caption}
    return [
        {
            "field": field,
            "query_vector": vector.tolist(),
            "k": depth,
            "num_candidates": depth,
            "filter": list(required),
        }
        for field, vector in vectors.items()
        if vector is not None and vector.any()
    ]


def named_words(words: Sequence[str]) -> list[Clause]:
    """BM25 over folded tokens; a hit's `matched_queries` are the numbers of its words."""
    return [
        {"term": {"words": {"value": word, "_name": str(number)}}}
        for number, word in enumerate(words)
    ]


def with_words(
    words: Sequence[str], required: Sequence[Clause], searched: Sequence[str] | None = None
) -> Clause:
    """Documents that pass, with the words they have; only those with one of `searched`."""
    # No word is empty. Without any, Elasticsearch would drop the names of the other words as well.
    having = [] if searched is None else [{"terms": {"words": list(searched) or [""]}}]
    return {"bool": {"filter": [*required, *having], "should": named_words(words)}}


def counts(words: Sequence[str]) -> Clause:
    """Aggregations: documents that can be found, and documents with each word."""
    terms = {str(number): {"term": {"words": word}} for number, word in enumerate(words)}
    aggregations: Clause = {"searchable": {"filter": SEARCHABLE}}
    return {**aggregations, "words": {"filters": {"filters": terms}}} if terms else aggregations


def facets() -> Clause:
    """Aggregations: what documents can be filtered by."""
    return {
        "labels": _terms("labels"),
        "concepts": _terms("concepts"),
        "folders": _terms("folders"),
        "captions": {
            "nested": {"path": "captions"},
            "aggs": {
                "language": _by_document("captions.language"),
                "written_by": _by_document("captions.written_by"),
            },
        },
        "earliest": {"min": {"field": "taken_at"}},
        "latest": {"max": {"field": "taken_at"}},
    }


def _filters(filters: Filters) -> Iterator[Clause]:
    if filters.folders:
        spelt = {_folder(one) for folder in filters.folders for one in spellings(folder)}
        yield {"terms": {"folders": sorted(spelt)}}
    for label in filters.tags:
        yield _tagged(label)
    if filters.taken_from is not None:
        yield {"range": {"taken_at": {"gte": f"{filters.taken_from.isoformat()}T00:00:00"}}}
    if filters.taken_until is not None:
        yield {"range": {"taken_at": {"lte": f"{filters.taken_until.isoformat()}T23:59:59.999"}}}
    if filters.caption_language is not None or filters.written_by is not None:
        wanted = {"language": filters.caption_language, "written_by": filters.written_by}
        terms = [{"term": {f"captions.{key}": one}} for key, one in wanted.items() if one]
        yield {"nested": {"path": "captions", "query": {"bool": {"filter": terms}}}}


def _tagged(label: str) -> Clause:
    """This label, another name of what it names, or something narrower (`concepts` has broader)."""
    named: Clause = {"terms": {"concepts": [one.id for one in concepts.named(label)]}}
    return {"bool": {"should": [{"term": {"tags.label": label}}, named]}}


def _folder(folder: str) -> str:
    return folder.rstrip("/") or "/"


def _phrase(phrase: Sequence[str]) -> Clause:
    return {"match_phrase": {"words": {"query": " ".join(phrase), "analyzer": "whitespace"}}}


def _terms(field: str) -> Clause:
    """Most documents first, then by name."""
    order = [{"_count": "desc"}, {"_key": "asc"}]
    return {"terms": {"field": field, "size": MAX_CHOICES, "order": order}}


def _by_document(field: str) -> Clause:
    """Values of nested captions; `documents` counts their documents, each once."""
    return {**_terms(field), "aggs": {"documents": {"reverse_nested": {}}}}
