"""Evidence of documents, computed from the rows that their hits carry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from capsearch.engine.evidence import Evidence, Floats
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Vectors
from capsearch.indexer.elastic.documents import caption, row
from capsearch.indexer.elastic.mapping import CAPTION_ROWS, IMAGE_ROW
from capsearch.indexer.elastic.matches import Hit, Matches
from capsearch.indexer.embedded.nearest import exact_scores, image_scores


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
    scores = _products(vector, [one for table in rows for one in table]).tolist()
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


def _products(query: Vectors, rows: Sequence[Vectors]) -> Floats:
    """Summed as the embedded backend sums them."""
    if not rows:
        return np.empty(0)
    return exact_scores(query, np.stack(rows), np.arange(len(rows)))
