"""What is asked of Elasticsearch: filters, candidates, counts and facets as query DSL.

What a query says besides its vectors: words that people and that models wrote, and concepts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import NormalDist
from typing import Any, TypeAlias

import numpy as np

from capsearch.encoders.text import concepts
from capsearch.engine.evidence import MAX_WORDS, is_rare, tag_score, word_weight
from capsearch.engine.records import Filters, Vectors
from capsearch.indexer.elastic.documents import (
    CAPTION_ROWS,
    GENERATED_WORDS,
    IMAGE_ROW,
    WORDS,
    tag_confidences,
)
from capsearch.indexer.sources.scan import spellings

MAX_WORD_HITS = 10_000  # documents of one answer that were found by the words of one field
Hit: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Words:
    """The rare words of a query in one field, their weights, and those that are searched by."""

    field: str = WORDS
    rare: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()
    total: float = 0.0  # weight of all words of the query
    searched: tuple[str, ...] = ()  # the rarest
    documents: int = 0  # that have any of these, at most
    outside: float = 0.0  # coverage that a document with none of these can have

    @classmethod
    def of(
        cls, field: str, words: Sequence[str], containing: Sequence[int], documents: int
    ) -> Words:
        """`containing` documents have each word, of so many `documents`.

        An answer has room for MAX_WORD_HITS documents; words beyond that count in scores, but
        documents are not searched by them.
        """
        weights = [word_weight(documents, count) for count in containing]
        known = sorted(zip(containing, words, weights, strict=True))
        rare = [word for word in known if is_rare(documents, word[0])][:MAX_WORDS]
        running = list(accumulate(count for count, _, _ in rare))
        room = sum(count <= MAX_WORD_HITS for count in running)
        total = sum(weights)
        left = sum(weight for _, _, weight in rare[room:])
        return cls(
            field,
            tuple(word for _, word, _ in rare),
            tuple(weight for _, _, weight in rare),
            total,
            tuple(word for _, word, _ in rare[:room]),
            running[room - 1] if room else 0,
            left / total if total else 0.0,
        )

    def names(self) -> dict[str, str]:
        """The rare words by the names that a hit lists in `matched_queries`."""
        return {f"{self.field}:{number}": word for number, word in enumerate(self.rare)}

    def coverage(self, hit: Hit) -> float:
        """The share of the query's words that a hit has, by weight, from 0 to 1."""
        if not self.total:
            return 0.0
        matched = set(hit.get("matched_queries", ()))
        named = zip(self.names(), self.weights, strict=True)
        return sum(weight for name, weight in named if name in matched) / self.total


@dataclass(frozen=True, slots=True)
class Matches:
    """The words of a query in what people and in what models wrote, and what it names."""

    words: Words = Words(WORDS)
    generated: Words = Words(GENERATED_WORDS)
    concepts: tuple[frozenset[str], ...] = ()

    @property
    def fields(self) -> tuple[Words, Words]:
        """The words by field."""
        return self.words, self.generated

    @property
    def rare(self) -> bool:
        """Whether any word is rare in any field."""
        return any(words.rare for words in self.fields)

    @property
    def documents(self) -> int:
        """How many documents are found by words, at most."""
        return sum(words.documents for words in self.fields)

    def tag(self, hit: Hit) -> float:
        """How sure the tags of a hit are of what the query names."""
        return tag_score(self.concepts, tag_confidences(hit["_source"])) if self.concepts else 0.0


Clause: TypeAlias = dict[str, Any]
_GRAPH_LENGTH = 0.3  # of a query, see for_graph: best of 1, .5, .3, .2, .13, .1 and .07
# As Elasticsearch makes a score of an inner product: no score is negative.
_INNER_PRODUCT = (
    "double s = dotProduct(params.query, params.field); return s < 0 ? 1 / (1 - s) : s + 1"
)
MAX_CHOICES = 500  # tags or folders in one list; the rarest values are left out
HAS_FILE: Clause = {"exists": {"field": "folders"}}
SEARCHABLE: Clause = {"term": {"searchable": True}}
CAPTIONED: Clause = {"term": {"captioned": True}}
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


def nearest(field: str, vector: Vectors, required: Sequence[Clause], depth: int) -> dict[str, Any]:
    """A search for the best `depth` by a vector, not of zeros; `inner_product` reads their scores.

    The graph of 8-bit vectors finds them, and their scores are computed anew from the vectors
    themselves: a graph's own are off by up to .19 (docs/cluster.md).
    """
    knn = {
        "field": field,
        "query_vector": for_graph(vector).tolist(),
        "k": depth,
        "num_candidates": depth,
        "filter": list(required),
    }
    return {**_ids(depth), "knn": knn, "rescore": _exactly(field, vector, depth)}


def for_graph(vector: Vectors) -> Vectors:
    """A query (D,) as a graph of 8-bit vectors compares it best.

    Such a graph cuts coordinates off at what 1 / (D + 1) of those of the documents exceed. Of a
    query that is the last one, 1, by which documents lose their hubness penalty. A shorter query
    ranks documents the same, and less of it is cut off; too short, it is rounded away.
    """
    most = NormalDist().inv_cdf(1 - 0.5 / (len(vector) + 1)) / np.sqrt(len(vector))
    return np.asarray(np.clip(_GRAPH_LENGTH * vector, -most, most), np.float32)


def inner_product(score: float) -> float:
    """What two vectors score by `_INNER_PRODUCT`."""
    return score - 1 if score >= 1 else 1 - 1 / score


def worded(
    matches: Matches, required: Sequence[Clause], image: Vectors | None = None
) -> dict[str, Any]:
    """A search for all documents with any searched word, and the names of the words they have.

    Their scores are those of `nearest` by an image vector, if there is one: hundreds may have a
    word, and few of these look like the query.
    """
    size = matches.documents
    query = with_words(matches.fields, required, searched=True)
    rescored = {} if image is None else {"rescore": _exactly("vector", image, size)}
    return {**_ids(size), "query": query, **rescored}


def with_words(
    fields: Sequence[Words], required: Sequence[Clause], searched: bool = False
) -> Clause:
    """Documents that pass, with the words they have; or only those with one of the searched."""
    # No word is empty. Without any, Elasticsearch would drop the names of the other words as well.
    terms = [{"terms": {words.field: list(words.searched) or [""]}} for words in fields]
    having = [{"bool": {"should": terms}}] if searched else []
    return {"bool": {"filter": [*required, *having], "should": _named_words(fields)}}


def tagged(ids: frozenset[str], required: Sequence[Clause], depth: int) -> dict[str, Any]:
    """A search for `depth` documents by how sure their tags are of any of these: their score.

    A concept's value is that of everything narrower too, so where `ids` leaves out something
    narrower, the score is more than the tags say.
    """
    fields = [f"surest.{concept}" for concept in concepts.broadest(ids)]
    values = [{"rank_feature": {"field": field, "linear": {}}} for field in fields]
    query = {"bool": {"filter": list(required), "must": [{"dis_max": {"queries": values}}]}}
    return {**_ids(depth), "query": query}


def id_of(hit: Hit) -> str:
    """The id of a document that was found by one of these searches."""
    return str(hit["fields"]["id"][0])


def mentioned(matches: Matches) -> Clause:
    """Documents with any rare word of a query, or a tag of anything that it names."""
    ids = sorted(frozenset[str]().union(*matches.concepts))
    terms = [{"terms": {words.field: list(words.rare)}} for words in matches.fields]
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


def _ids(size: int) -> dict[str, Any]:
    """Ids and scores. As stored fields, such as `_id`, ids take four times as long to read."""
    return {
        "size": size,
        "track_total_hits": False,
        "source": False,
        "stored_fields": "_none_",
        "docvalue_fields": ["id"],
    }


def _exactly(field: str, vector: Vectors, size: int) -> Clause:
    """Scores the first `size` documents anew: by their inner product, the highest if nested."""
    script = {"source": _INNER_PRODUCT, "params": {"query": vector.tolist(), "field": field}}
    having = {"exists": {"field": field}}
    scored = {"script_score": {"query": having, "script": script}}
    path, _, _ = field.rpartition(".")
    if path:
        scored = {"nested": {"path": path, "score_mode": "max", "query": scored}}
    weights = {"query_weight": 0, "rescore_query_weight": 1}
    return {"window_size": size, "query": {"rescore_query": scored, **weights}}


def _filters(filters: Filters) -> Iterator[Clause]:
    if filters.folders:
        spelt = {_folder(spelling) for folder in filters.folders for spelling in spellings(folder)}
        yield {"terms": {"folders": sorted(spelt)}}
    for label in filters.tags:
        yield _tagged(label)
    if filters.taken_from is not None:
        yield {"range": {"taken_at": {"gte": f"{filters.taken_from.isoformat()}T00:00:00"}}}
    if filters.taken_until is not None:
        yield {"range": {"taken_at": {"lte": f"{filters.taken_until.isoformat()}T23:59:59.999"}}}
    if filters.caption_language is not None or filters.written_by is not None:
        wanted = {"language": filters.caption_language, "written_by": filters.written_by}
        terms = [{"term": {f"captions.{key}": value}} for key, value in wanted.items() if value]
        yield {"nested": {"path": "captions", "query": {"bool": {"filter": terms}}}}


def _tagged(label: str) -> Clause:
    """This label, another name of what it names, or something narrower (`concepts` has broader)."""
    named: Clause = {"terms": {"concepts": [concept.id for concept in concepts.named(label)]}}
    return {"bool": {"should": [{"term": {"tags.label": label}}, named]}}


def _folder(folder: str) -> str:
    return folder.rstrip("/") or "/"


def _named_words(fields: Sequence[Words]) -> list[Clause]:
    """A hit's `matched_queries` are the names of its words; they add nothing to its score."""
    return [
        {"term": {words.field: {"value": word, "_name": name, "boost": 0}}}
        for words in fields
        for name, word in words.names().items()
    ]


def _phrase(phrase: Sequence[str]) -> Clause:
    """In what people wrote, or in what models wrote."""
    asked = {"query": " ".join(phrase), "analyzer": "whitespace"}
    fields = (WORDS, GENERATED_WORDS)
    return {"bool": {"should": [{"match_phrase": {field: asked}} for field in fields]}}


def _terms(field: str) -> Clause:
    """Most documents first, then by name."""
    order = [{"_count": "desc"}, {"_key": "asc"}]
    return {"terms": {"field": field, "size": MAX_CHOICES, "order": order}}


def _by_document(field: str) -> Clause:
    """Values of nested captions; `documents` counts their documents, each once."""
    return {**_terms(field), "aggs": {"documents": {"reverse_nested": {}}}}
