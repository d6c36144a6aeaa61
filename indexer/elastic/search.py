"""Candidates of a search: ids, with the most that each can score by every source of evidence.

One search of a cluster: candidates as ids by all evidence, the best of them scored from rows.

No document outside the candidates can exceed the bound (engine.bounds), and no candidate what it
can score at most, but for what the graphs of the vectors miss.

Evidence of documents, computed from the rows that their hits carry.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.engine import bounds
from capsearch.engine.bounds import Candidates, Keys, Ranked, rank, settle
from capsearch.engine.evidence import Evidence, Floats, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Source, Vectors
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic.documents import CAPTION_ROWS, IMAGE_ROW, caption, document, row
from capsearch.indexer.elastic.requests import Hit, Matches, Words
from capsearch.indexer.sqlite.nearest import exact_scores, image_scores

if TYPE_CHECKING:
    from capsearch.indexer.elastic.backend import ElasticBackend


OVERSAMPLING = 2  # documents found for each that is needed: the graph misses some of the last
# Of a score by vectors, which have five decimals, and rows of captions half precision: together
# .0009 at most for a document of length 1 and 1,000 coordinates.
_ERROR = 1e-3
_FEATURE_ERROR = 2**-8  # rank_features keep 8 bits of a value, and cut the others off
_FIELDS: Mapping[Source, str] = {"image": "vector", "caption": "captions.vector"}


@dataclass(frozen=True, slots=True)
class Totals:
    """How many documents pass the filters, and how many of them have an encoded caption."""

    image: float = np.inf
    caption: float = np.inf


@dataclass(frozen=True, slots=True)
class Listed:
    """The most that documents can have by one source; `outside`: those that it has not found.

    NaN if no other document has any.
    """

    most: Mapping[str, float] = field(default_factory=dict)
    outside: float = np.nan

    @classmethod
    def by_vector(cls, hits: Sequence[Hit], depth: int, total: float, offset: float) -> Listed:
        """Of a search that finds the best `depth` among more, of so many documents in all."""
        most = {one: score + offset for one, score in _products(hits).items()}
        if len(hits) >= total:
            return cls(most)
        scores = sorted(most.values())
        return cls(most, scores[-min(depth, len(scores))] if scores else np.inf)

    @classmethod
    def by_words(cls, words: Words, hits: Sequence[Hit]) -> Listed:
        """Of a search for all documents with the words that are searched by."""
        return cls({requests.id_of(hit): words.coverage(hit) for hit in hits}, words.outside)

    @classmethod
    def by_tags(cls, hits: Sequence[Hit], depth: int) -> Listed:
        """Of a search for the best `depth` by one of the things that are named."""
        scores = [min(1.0, hit["_score"] * (1 + _FEATURE_ERROR)) for hit in hits]
        most = dict(zip(map(requests.id_of, hits), scores, strict=True))
        return cls(most, scores[-1] if len(scores) == depth else 0.0)

    @classmethod
    def mean(cls, parts: Sequence[Listed]) -> Listed:
        """What documents can have by the mean of several sources; of none, nothing."""
        if not parts:
            return cls(outside=0.0)
        found = {one for part in parts for one in part.most}
        most = {one: sum(part.of(one) for part in parts) / len(parts) for one in found}
        return cls(most, sum(part.outside for part in parts) / len(parts))

    def also(self, hits: Sequence[Hit], offset: float) -> Listed:
        """With documents that another search has scored by the vector."""
        scores = {one: score + offset for one, score in _products(hits).items()}
        return Listed({**scores, **self.most}, self.outside)

    def of(self, image_id: str) -> float:
        """The most that a document can have."""
        return self.most.get(image_id, self.outside)


def _products(hits: Sequence[Hit]) -> dict[str, float]:
    """The most that the inner products of hits by their rows can be."""
    return {requests.id_of(hit): requests.inner_product(hit["_score"]) + _ERROR for hit in hits}


@dataclass(frozen=True, slots=True)
class Finder:
    """Finds the candidates of a query among the documents that are as `required`."""

    backend: ElasticBackend
    query: EncodedQuery
    matches: Matches
    required: Sequence[requests.Clause]

    @property
    def vectors(self) -> dict[Source, Vectors]:
        """The vectors that bound the scores of documents, by source."""
        found: dict[Source, Vectors] = {}
        if self.query.image is not None:
            found["image"], _ = self.query.image_bound()
        if self.query.caption is not None:
            found["caption"] = self.query.caption
        return found

    @property
    def near(self) -> dict[Source, Vectors]:
        """Those that documents are found by: zeros are near nothing."""
        return {name: one for name, one in self.vectors.items() if one.any()}

    def find(self, depth: int) -> Candidates:
        """The best `depth` by each vector and by tags of each thing named; all with rare words."""
        searches = self._searches(depth)
        answers = self.backend.ask_all(list(searches.values()))
        hits = {name: one["hits"]["hits"] for name, one in zip(searches, answers, strict=True)}
        totals = self._totals(hits, depth)
        sources = self._sources(hits, depth, totals)
        ids = sorted({one for source in sources.values() for one in source.most})
        most = {
            name: np.array([*map(source.of, ids), source.outside])
            for name, source in sources.items()
        }
        bounds = self.query.fusion.bounds(Evidence.of(len(ids) + 1, **most))
        outside = -np.inf if len(ids) >= totals.image else float(bounds[-1])
        return Candidates(np.array(ids, str), bounds[:-1], outside)

    def _searches(self, depth: int) -> dict[str, dict[str, object]]:
        found: dict[str, dict[str, object]] = {
            name: requests.nearest(_FIELDS[name], one, self.required, OVERSAMPLING * depth)
            for name, one in self.near.items()
        }
        if self.matches.documents:
            found["words"] = requests.worded(self.matches, self.required, self.near.get("image"))
        for number, ids in enumerate(self.matches.concepts):
            found[f"tag {number}"] = requests.tagged(ids, self.required, depth)
        return found

    def _sources(
        self, hits: Mapping[str, Sequence[Hit]], depth: int, totals: Totals
    ) -> dict[Source, Listed]:
        offset = max([0.0, *self.query.caption_offsets.values()])
        caption = self._by_vector("caption", hits, depth, totals.caption, offset)
        worded = hits.get("words", ())
        constant = 0.0 if self.query.image is None else self.query.image_bound()[1]
        image = self._by_vector("image", hits, depth, totals.image, constant)
        if "image" in hits:
            image = image.also(worded, constant)
        tags = [found for name, found in hits.items() if name.startswith("tag ")]
        return {
            "image": image,
            "caption": caption,
            "generated": caption,
            "words": Listed.by_words(self.matches.words, worded),
            "generated_words": Listed.by_words(self.matches.generated, worded),
            "tag": Listed.mean([Listed.by_tags(found, depth) for found in tags]),
        }

    def _by_vector(
        self,
        name: Source,
        hits: Mapping[str, Sequence[Hit]],
        depth: int,
        total: float,
        offset: float,
    ) -> Listed:
        if name in hits:
            return Listed.by_vector(hits[name], depth, total, offset)
        return Listed(outside=offset) if name in self.vectors else Listed()

    def _totals(self, hits: Mapping[str, Sequence[Hit]], depth: int) -> Totals:
        """Counted where a vector has not found as many as were asked for, or there is none."""
        found = [len(hits.get(name, ())) for name in self.vectors]
        if found and min(found) >= OVERSAMPLING * depth:
            return Totals()
        captioned = [*self.required, requests.CAPTIONED]
        asked = {
            name: {"filter": {"bool": {"filter": list(clauses)}}}
            for name, clauses in (("image", self.required), ("caption", captioned))
        }
        counts = self.backend.ask(size=0, track_total_hits=False, aggs=asked)["aggregations"]
        return Totals(**{name: counts[name]["doc_count"] for name in asked})


@dataclass(frozen=True, slots=True)
class Scored:
    """The evidence of hits, and the best caption of each that has one."""

    hits: Sequence[Hit]
    evidence: Evidence
    captions: Mapping[int, Caption]


def score(query: EncodedQuery, matches: Matches, hits: Sequence[Hit]) -> Scored:
    """Exact evidence from the rows that the hits carry."""
    values: dict[str, Floats] = {
        one.field: np.array([one.coverage(hit) for hit in hits], float) for one in matches.fields
    }
    values["tag"] = np.array([matches.tag(hit) for hit in hits], float)
    best: dict[int, Caption] = {}
    if query.image is not None:
        rows = [row(hit["fields"], IMAGE_ROW, "<f4") for hit in hits]
        values["image"] = _image_scores(query, [one for one in rows if one is not None])
    if query.caption is not None:
        values |= _caption_scores(query, query.caption, hits, best)
    return Scored(hits, Evidence.of(len(hits), **values), best)


def _caption_scores(
    query: EncodedQuery, vector: Vectors, hits: Sequence[Hit], best: dict[int, Caption]
) -> dict[str, Floats]:
    """The best scores by who wrote the caption; `best` gets the caption of each hit."""
    texts = [(at, caption(one)) for at, hit in enumerate(hits) for one in _encoded(hit)]
    tables = [row(hit["fields"], CAPTION_ROWS, "<f2") for hit in hits if _encoded(hit)]
    rows = [one.reshape(-1, len(vector)) for one in tables if one is not None]
    scores = _inner_products(vector, [one for table in rows for one in table]).tolist()
    values = {name: np.full(len(hits), np.nan) for name in ("caption", "generated")}
    reached = np.full(len(hits), -np.inf)
    for one, (at, text) in zip(scores, texts, strict=True):
        one += query.caption_offsets.get(text.language, 0.0)
        name = "generated" if text.generated else "caption"
        values[name][at] = np.fmax(values[name][at], one)
        if one > reached[at]:
            reached[at], best[at] = one, text
    return values


def _image_scores(query: EncodedQuery, rows: Sequence[Vectors]) -> Floats:
    return image_scores(query, np.stack(rows), np.arange(len(rows))) if rows else np.empty(0)


def _encoded(hit: Hit) -> list[Mapping[str, Any]]:
    return [one for one in hit["_source"].get("captions", ()) if one["encoded"]]


def _inner_products(query: Vectors, rows: Sequence[Vectors]) -> Floats:
    """Summed as the embedded backend sums them."""
    if not rows:
        return np.empty(0)
    return exact_scores(query, np.stack(rows), np.arange(len(rows)))


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
        in_parts = bounds.InParts[Hit | None](finder.find, self._score, FIRST_PART)

        def gather(depth: int) -> Iterator[bounds.Pool[Hit | None]]:
            as_deep_before = depth // bounds.DEEPER >= MAX_DEPTH
            if as_deep_before or (depth > MIN_DEPTH and not finder.near):
                yield bounds.Pool(self._all(), -np.inf)
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
