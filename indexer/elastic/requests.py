"""What is asked of Elasticsearch: filters, candidates, counts and facets as query DSL."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from capsearch.encoders import concepts
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.indexer.elastic.mapping import (
    CAPTION_ROWS,
    GENERATED_WORDS,
    IMAGE_ROW,
    SCHEMA,
    WORDS,
)
from capsearch.indexer.elastic.matches import Matches, Words, broadest
from capsearch.indexer.sources.unicode_names import spellings

Clause: TypeAlias = dict[str, Any]
MAX_CHOICES = 500  # tags or folders in one list; the rarest values are left out
HAS_FILE: Clause = {"exists": {"field": "folders"}}
SEARCHABLE: Clause = {"term": {"searchable": True}}
CAPTIONED: Clause = {"term": {"captioned": True}}
OUTDATED: Clause = {"bool": {"must_not": {"term": {"schema": SCHEMA}}}}
# What a document is scored from; see mapping.
SCORED: dict[str, Any] = {
    "source": {
        "excludes": [
            *(f"provenance.{name}" for name in ("files", "captions", "past_files")),
            GENERATED_WORDS,  # an index of an older schema has these two in its _source
            "surest",
        ]
    },
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


def with_words(
    fields: Sequence[Words], required: Sequence[Clause], searched: bool = False
) -> Clause:
    """Documents that pass, with the words they have; or only those with one of the searched."""
    # No word is empty. Without any, Elasticsearch would drop the names of the other words as well.
    terms = [{"terms": {one.field: list(one.searched) or [""]}} for one in fields]
    having = [{"bool": {"should": terms}}] if searched else []
    return {"bool": {"filter": [*required, *having], "should": _named_words(fields)}}


def tagged(ids: frozenset[str], fields: Sequence[Words], required: Sequence[Clause]) -> Clause:
    """Documents by how sure their tags are of any of these concepts: that is their score.

    A concept's value is that of everything narrower too, so where `ids` leaves out something
    narrower, the score is more than the tags say.
    """
    values = [{"rank_feature": {"field": f"surest.{one}", "linear": {}}} for one in broadest(ids)]
    by_words = with_words(fields, required)["bool"]
    return {"bool": {**by_words, "must": [{"dis_max": {"queries": values}}]}}


def mentioned(matches: Matches) -> Clause:
    """Documents with any rare word of a query, or a tag of anything that it names."""
    ids = sorted(frozenset[str]().union(*matches.concepts))
    terms = [{"terms": {one.field: list(one.rare)}} for one in matches.fields]
    return {"bool": {"should": [*terms, {"terms": {"tags.concept": ids}}]}}


def counts(words: Sequence[str]) -> Clause:
    """Aggregations: documents that can be found, and documents with each word by field."""
    terms = {
        f"{field}:{number}": {"term": {field: word}}
        for field in (WORDS, GENERATED_WORDS)
        for number, word in enumerate(words)
    }
    return {"searchable": {"filter": SEARCHABLE}, "words": {"filters": {"filters": terms}}}


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


def _named_words(fields: Sequence[Words]) -> list[Clause]:
    """A hit's `matched_queries` are the names of its words; they add nothing to its score."""
    return [
        {"term": {one.field: {"value": word, "_name": name, "boost": 0}}}
        for one in fields
        for name, word in one.names().items()
    ]


def _phrase(phrase: Sequence[str]) -> Clause:
    """In what people wrote, or in what models wrote."""
    asked = {"query": " ".join(phrase), "analyzer": "whitespace"}
    fields = (WORDS, GENERATED_WORDS)
    return {"bool": {"should": [{"match_phrase": {one: asked}} for one in fields]}}


def _terms(field: str) -> Clause:
    """Most documents first, then by name."""
    order = [{"_count": "desc"}, {"_key": "asc"}]
    return {"terms": {"field": field, "size": MAX_CHOICES, "order": order}}


def _by_document(field: str) -> Clause:
    """Values of nested captions; `documents` counts their documents, each once."""
    return {**_terms(field), "aggs": {"documents": {"reverse_nested": {}}}}
