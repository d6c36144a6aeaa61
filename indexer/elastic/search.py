"""One search of a cluster: candidates as ids by all evidence, the best of them scored from rows.

No document outside the candidates can exceed the bound (engine.bounds), and no candidate what it
can score at most, but for what the graphs of the vectors miss.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.engine.bounds import (
    DEEPER,
    Best,
    Candidates,
    InParts,
    Keys,
    Pool,
    Ranked,
    Scored,
    distinct,
    settle,
)
from capsearch.engine.evidence import Evidence, Floats
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Source, Vectors
from capsearch.engine.vectors import exact_scores, image_scores
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic.documents import CAPTION_ROWS, IMAGE_ROW, caption, document, row
from capsearch.indexer.elastic.requests import Hit, Matches, Words

if TYPE_CHECKING:
    from capsearch.indexer.elastic.backend import ElasticBackend


MIN_DEPTH = 100  # candidates by each vector: most queries need no more (docs/cluster.md)
MAX_DEPTH = 5_000  # a graph finds 10,000 at most; beyond, all documents are compared
OVERSAMPLING = 2  # documents found for each that is needed: the graph misses some of the last
_FIRST_PART = 32  # candidates whose rows are read first
# Of a score by vectors, which have five decimals, and rows of captions half precision: together
# .0009 at most for a document of length 1 and 1,000 coordinates.
_ERROR = 1e-3
_FEATURE_ERROR = 2**-8  # rank_features keep 8 bits of a value, and cut the others off
_FIELDS: Mapping[Source, str] = {"image": "vector", "caption": "captions.vector"}
_NO_IDS = np.empty(0, str)


@dataclass(frozen=True, slots=True)
class Totals:
    """How many documents pass the filters, and how many of them have an encoded caption."""

    image: float = np.inf
    caption: float = np.inf


def best_by_vector(hits: Sequence[Hit], depth: int, total: float, offset: float) -> Best:
    """By a search that finds the best `depth` among more, of so many documents in all."""
    most = _products(hits) + offset
    if len(hits) >= total:
        return Best(_ids(hits), most, np.nan)
    outside = float(np.sort(most)[-min(depth, len(most))]) if len(most) else np.inf
    return Best(_ids(hits), most, outside)


def best_by_words(words: Words, hits: Sequence[Hit]) -> Best:
    """By a search for all documents with the words that are searched by."""
    coverage = [words.coverage(hit) for hit in hits]
    return Best(_ids(hits), np.array(coverage, float), words.outside)


def best_by_tags(things: Sequence[Sequence[Hit]], depth: int) -> Best:
    """By searches for the best `depth` by each of the things that are named: the mean of these."""
    each = []
    for hits in things:
        most = np.array([min(1.0, hit["_score"] * (1 + _FEATURE_ERROR)) for hit in hits], float)
        each.append(Best(_ids(hits), most, float(most[-1]) if len(most) == depth else 0.0))
    if not each:
        return Best(_NO_IDS, np.empty(0), 0.0)
    ids = distinct([thing.keys for thing in each])
    most = np.mean([thing.at(ids) for thing in each], axis=0)
    return Best(ids, most, sum(thing.outside for thing in each) / len(each))


def _products(hits: Sequence[Hit]) -> Floats:
    """The most that the inner products of hits by their rows can be."""
    return np.array([requests.inner_product(hit["_score"]) + _ERROR for hit in hits], float)


def _ids(hits: Sequence[Hit]) -> Keys:
    return np.array([requests.id_of(hit) for hit in hits], str)


@dataclass(frozen=True)
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
        in_parts = InParts[Hit | None](self.candidates, self._score, _FIRST_PART)

        def gather(depth: int) -> Iterator[Pool[Hit | None]]:
            as_deep_before = depth // DEEPER >= MAX_DEPTH
            if as_deep_before or (depth > MIN_DEPTH and not self._near):
                yield Pool(self._all(), -np.inf)
            else:
                yield from in_parts(min(depth, MAX_DEPTH))

        return settle(self.query, stop, MIN_DEPTH, gather)

    def page(self, ranked: Sequence[Ranked[Hit | None]]) -> tuple[Found, ...]:
        """Documents with the reasons for their scores; those deleted since are left out."""
        hits = {hit.image_id: hit.key for hit in ranked if hit.key is not None}
        unread = [hit.image_id for hit in ranked if hit.key is None]
        hits |= {hit["_id"]: hit for hit in self._read(unread)}
        sources = self.query.fusion.sources
        return tuple(
            hit.found(document(hits[hit.image_id]["_source"]), hit.caption, sources)
            for hit in ranked
            if hit.image_id in hits
        )

    def candidates(self, depth: int) -> Candidates:
        """The best `depth` by each vector and by tags of each thing named; all with rare words."""
        searches = self._searches(depth)
        answers = self.backend.ask_all(list(searches.values()))
        hits = {
            name: answer["hits"]["hits"] for name, answer in zip(searches, answers, strict=True)
        }
        totals = self._totals(hits, depth)
        best = self._best(hits, depth, totals)
        count = len(distinct([source.keys for source in best.values()]))
        return Candidates.of(self.query.fusion, best, complete=count >= totals.image)

    @cached_property
    def _vectors(self) -> dict[Source, Vectors]:
        """The vectors that bound the scores of documents, by source."""
        vectors: dict[Source, Vectors] = {}
        if self.query.image is not None:
            vectors["image"], _ = self.query.image_bound()
        if self.query.caption is not None:
            vectors["caption"] = self.query.caption
        return vectors

    @property
    def _near(self) -> dict[Source, Vectors]:
        """Those that documents are found by: zeros are near nothing."""
        return {name: vector for name, vector in self._vectors.items() if vector.any()}

    def _searches(self, depth: int) -> dict[str, dict[str, object]]:
        searches: dict[str, dict[str, object]] = {
            name: requests.nearest(_FIELDS[name], vector, self.required, OVERSAMPLING * depth)
            for name, vector in self._near.items()
        }
        if self.matches.documents:
            image = self._near.get("image")
            searches["words"] = requests.worded(self.matches, self.required, image)
        for number, ids in enumerate(self.matches.concepts):
            searches[f"tag {number}"] = requests.tagged(ids, self.required, depth)
        return searches

    def _best(
        self, hits: Mapping[str, Sequence[Hit]], depth: int, totals: Totals
    ) -> dict[Source, Best]:
        offset = max([0.0, *self.query.caption_offsets.values()])
        constant = 0.0 if self.query.image is None else self.query.image_bound()[1]
        worded = hits.get("words", ())
        image = self._by_vector("image", hits, depth, totals.image, constant)
        if "image" in hits:  # those with rare words have their products too
            others = np.isin(_ids(worded), image.keys, invert=True)
            ids, most = _ids(worded)[others], (_products(worded) + constant)[others]
            image = Best(np.append(image.keys, ids), np.append(image.most, most), image.outside)
        caption = self._by_vector("caption", hits, depth, totals.caption, offset)
        return {
            "image": image,
            "caption": caption,
            "generated": caption,
            "words": best_by_words(self.matches.words, worded),
            "generated_words": best_by_words(self.matches.generated, worded),
            "tag": best_by_tags([hits[name] for name in hits if name.startswith("tag ")], depth),
        }

    def _by_vector(
        self,
        name: Source,
        hits: Mapping[str, Sequence[Hit]],
        depth: int,
        total: float,
        offset: float,
    ) -> Best:
        if name in hits:
            return best_by_vector(hits[name], depth, total, offset)
        return Best(_NO_IDS, np.empty(0), offset if name in self._vectors else np.nan)

    def _totals(self, hits: Mapping[str, Sequence[Hit]], depth: int) -> Totals:
        """Counted where a vector has not found as many as were asked for, or there is none."""
        counts = [len(hits.get(name, ())) for name in self._vectors]
        if counts and min(counts) >= OVERSAMPLING * depth:
            return Totals()
        captioned = [*self.required, requests.CAPTIONED]
        asked = {
            name: {"filter": {"bool": {"filter": list(clauses)}}}
            for name, clauses in (("image", self.required), ("caption", captioned))
        }
        counts = self.backend.ask(size=0, track_total_hits=False, aggs=asked)["aggregations"]
        return Totals(**{name: counts[name]["doc_count"] for name in asked})

    def _score(self, ids: Keys) -> list[Ranked[Hit | None]]:
        hits = list(self._read(ids.tolist()))
        return self._rank(hits, hits)

    def _read(self, ids: Sequence[str]) -> Iterator[Hit]:
        return self.backend.hits_by_id(ids, self.required, self.matches.fields)

    def _rank(self, hits: Sequence[Hit], keys: Sequence[Hit | None]) -> list[Ranked[Hit | None]]:
        """Hits by their exact evidence."""
        query = self.query
        values: dict[str, Floats] = {
            words.field: np.array([words.coverage(hit) for hit in hits], float)
            for words in self.matches.fields
        }
        values["tag"] = np.array([self.matches.tag(hit) for hit in hits], float)
        captions: dict[int, Caption] = {}
        if query.image is not None:
            rows = [row(hit["fields"], IMAGE_ROW, "<f4") for hit in hits]
            values["image"] = _image_scores(
                query, [vector for vector in rows if vector is not None]
            )
        if query.caption is not None:
            values |= _caption_scores(query, query.caption, hits, captions)
        evidence = Evidence.of(len(hits), **values)
        ids = [hit["_id"] for hit in hits]
        return Scored.of(query.fusion, ids, keys, evidence, captions).ranked(query.min_score)

    def _all(self) -> list[Ranked[Hit | None]]:
        """Every document that passes."""
        query = requests.with_words(self.matches.fields, self.required)
        ranked = [
            hit for hits in self.backend.scan(query) for hit in self._rank(hits, [None] * len(hits))
        ]
        return sorted(ranked, key=lambda hit: (-hit.score, hit.image_id))


def _caption_scores(
    query: EncodedQuery, vector: Vectors, hits: Sequence[Hit], best: dict[int, Caption]
) -> dict[str, Floats]:
    """The best scores by who wrote the caption; `best` gets the caption of each hit."""
    texts = [(at, caption(nested)) for at, hit in enumerate(hits) for nested in _encoded(hit)]
    tables = [row(hit["fields"], CAPTION_ROWS, "<f2") for hit in hits if _encoded(hit)]
    rows = [table.reshape(-1, len(vector)) for table in tables if table is not None]
    scores = _inner_products(vector, [vector for table in rows for vector in table]).tolist()
    values = {name: np.full(len(hits), np.nan) for name in ("caption", "generated")}
    reached = np.full(len(hits), -np.inf)
    for score, (at, text) in zip(scores, texts, strict=True):
        score += query.caption_offsets.get(text.language, 0.0)
        name = "generated" if text.generated else "caption"
        values[name][at] = np.fmax(values[name][at], score)
        if score > reached[at]:
            reached[at], best[at] = score, text
    return values


def _image_scores(query: EncodedQuery, rows: Sequence[Vectors]) -> Floats:
    return image_scores(query, np.stack(rows), np.arange(len(rows))) if rows else np.empty(0)


def _encoded(hit: Hit) -> list[Mapping[str, Any]]:
    return [nested for nested in hit["_source"].get("captions", ()) if nested["encoded"]]


def _inner_products(query: Vectors, rows: Sequence[Vectors]) -> Floats:
    """Summed as the embedded backend sums them."""
    if not rows:
        return np.empty(0)
    return exact_scores(query, np.stack(rows), np.arange(len(rows)))
