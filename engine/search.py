"""CM, CL and CLM search over any backend: a query is understood, encoded, searched and cut off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.evidence import (
    SOURCES,
    CalibratedEvidence,
    ConvexCombination,
    EvidenceModel,
    Fusion,
    SingleSource,
    without,
)
from capsearch.engine.protocols import Backend, Found, ImageEncoder, TextEncoder
from capsearch.engine.query import MAX_CHARACTERS, EncodedQuery, Query, Understood
from capsearch.engine.records import Document, Hit, Mode, SearchResult, Unit, Vectors
from capsearch.engine.vectors import blend, similarity_query


@dataclass(frozen=True, slots=True)
class Cutoffs:
    """The least scores as users see them: of a hit, of the best hit, and of a best hit that a
    model has described. Below that of the best, there are no hits."""

    hit: float
    best: float
    described: float

    @classmethod
    def of(cls, asked: float | None, model: EvidenceModel | None) -> Cutoffs | None:
        """What a query asks for, or else what calibration fitted."""
        if asked is not None:
            return cls(asked, asked, asked)
        if model is None:
            return None
        return cls(model.tail_cutoff, model.cutoff, model.best_cutoff(described=True))

    def of_best(self, document: Document) -> float:
        """That of the best hit."""
        generated = [caption.generated for caption in document.captions]
        generated += [tag.generated for tag in document.tags]
        return self.described if any(generated) else self.best


@dataclass(frozen=True, slots=True)
class Plan:
    """A query as a backend gets it, and what its result says about it."""

    encoded: EncodedQuery
    mode: Mode
    cutoffs: Cutoffs | None = None
    language: str | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SearchEngine:
    """Finds images. Holds no state of its own: two engines over one backend agree."""

    backend: Backend
    image_encoder: ImageEncoder
    text_encoder: TextEncoder

    def search(self, query: Query) -> SearchResult:
        """One page of hits.

        Raises InvalidQuery for a query with neither text nor image, a mode it cannot have, or
        numbers out of range; UnknownLanguage for a language no model reads.
        """
        query.check()
        started = perf_counter()
        plan = self._plan(query)
        encoded = perf_counter()
        found, min_score = self._page(query, plan)
        done = perf_counter()
        fusion = plan.encoded.fusion
        return SearchResult(
            hits=_hits(found[: query.limit], fusion, query.offset),
            more=len(found) > query.limit,
            language=plan.language,
            mode=plan.mode,
            weight=fusion.weight if isinstance(fusion, ConvexCombination) else None,
            unit=fusion.unit,
            min_score=min_score,
            warnings=plan.warnings,
            timings_ms={
                "encode": 1e3 * (encoded - started),
                "search": 1e3 * (done - encoded),
            },
        )

    def encoded(self, query: Query) -> EncodedQuery:
        """What a query becomes for the backend."""
        return self._plan(query).encoded

    def _page(self, query: Query, plan: Plan) -> tuple[tuple[Found, ...], float | None]:
        """The hits, one more than a page if there is another page; and the cut-off of the best."""
        search, cutoffs = self.backend.search, plan.cutoffs
        found = search(plan.encoded, query.filters, query.limit + 1, query.offset)
        if cutoffs is None:
            return found, None
        if not found:
            return (), cutoffs.best
        best = search(plan.encoded, query.filters, 1)[0] if query.offset else found[0]
        for least in (cutoffs.best, cutoffs.of_best(best.document)):
            if best.score < _limit(least, plan.encoded.fusion.unit):
                return (), least
        return found, least

    def _plan(self, query: Query) -> Plan:
        image = self._image_vector(query)
        if not query.read_text:
            assert image is not None  # Query.check saw to it
            cutoffs = Cutoffs.of(query.min_score, None)
            least = _least(cutoffs, "score")
            return Plan(EncodedQuery(SingleSource("image"), image, min_score=least), "cm", cutoffs)
        text = self.text_encoder.understand(query.read_text, query.language)
        stats = self.backend.stats()
        # Beside a weight or an image, nothing was fitted.
        fitted = text.model if query.weight is None and image is None else None
        mode, model = _fused(query.mode, fitted, stats.captioned)
        if model is None:
            fusion = _uncalibrated(query, text.convex, mode)
        else:
            fusion = _calibrated(text, model, stats.documents)
        cutoffs = Cutoffs.of(query.min_score, model)
        encoded = _encode(query, text, image, fusion, _least(cutoffs, fusion.unit))
        warnings = tuple(_warnings(query, text, stats.captioned))
        return Plan(encoded, mode, cutoffs, text.language, warnings)

    def _image_vector(self, query: Query) -> Vectors | None:
        if query.image is not None:
            vectors = self.image_encoder.project(self.image_encoder.features([query.image]))
            return similarity_query(vectors[0])
        if query.like is None:
            return None
        vector = self.backend.vector(query.like)
        if vector is None:
            raise InvalidQuery(f"no image with id {query.like!r} in this index")
        return similarity_query(vector)


def _fused(
    mode: Mode, model: EvidenceModel | None, captioned: bool
) -> tuple[Mode, EvidenceModel | None]:
    """The mode that a query can have here, and the evidence of the model that it fuses."""
    if mode == "cl":
        return mode, None
    if mode == "clm" and captioned:
        return mode, model
    if model is None:
        return "cm", None  # nothing to fuse with
    if mode == "clm":
        return mode, without(model, "caption", "generated")
    return mode, without(model, *(source for source in SOURCES if source != "image"))


def _uncalibrated(query: Query, convex: ConvexCombination, mode: Mode) -> Fusion:
    """One source, or both; beside an image the captions count as much as the text does."""
    if mode != "clm":
        return SingleSource("image" if mode == "cm" else "caption")
    weight = convex.weight if query.weight is None else query.weight
    if query.image is not None or query.like is not None:
        weight *= 1.0 - query.image_weight
    return ConvexCombination(weight, convex.floor)


def _calibrated(text: Understood, model: EvidenceModel, documents: int) -> Fusion:
    background = dict(text.background)
    if text.named is not None and model.concept_weight:
        background["image"] += model.concept_weight * text.named.background
    return CalibratedEvidence(model, background, documents)


def _encode(
    query: Query, text: Understood, image: Vectors | None, fusion: Fusion, least: float
) -> EncodedQuery:
    """What the backend gets of a query with text: vectors and words of what is fused."""
    visual, sources = text.vectors.visual[0], fusion.sources
    if image is not None:
        visual = blend(image, visual, query.image_weight)
    model = fusion.model if isinstance(fusion, CalibratedEvidence) else None
    named = text.named if model is not None and model.concept_weight else None
    return EncodedQuery(
        fusion=fusion,
        image=None if query.mode == "cl" else visual,
        caption=text.vectors.caption[0] if "caption" in sources else None,
        caption_offsets=model.caption_offsets if model else {},
        words=text.keywords if "words" in sources else (),
        concepts=text.concepts if "tag" in sources else (),
        phrases=text.phrases,
        min_score=least,
        named=named.weighted(model.concept_weight) if named and model else None,
    )


def _warnings(query: Query, text: Understood, captioned: bool) -> Iterator[str]:
    if len(query.text.strip()) > MAX_CHARACTERS:
        yield f"only the first {MAX_CHARACTERS:,} characters of the text were read"
    if not text.vectors.known[0]:
        asked = repr(query.read_text)
        yield f"the {text.language} model knows nothing in {asked}; only words are found"
    if query.mode == "cl" and not captioned:
        yield "no image here has a caption; use mode cm, or index some captions"


def _least(cutoffs: Cutoffs | None, unit: Unit) -> float:
    """The least score of a hit, in the fusion's own unit."""
    return float("-inf") if cutoffs is None else _limit(cutoffs.hit, unit)


def _limit(cutoff: float, unit: Unit) -> float:
    """A cut-off in a fusion's own unit: log-odds, or a score, where 0 shows everything."""
    if cutoff <= 0.0:
        return float("-inf")
    if unit == "score":
        return cutoff
    return float("inf") if cutoff >= 1.0 else float(np.log(cutoff) - np.log1p(-cutoff))


def _hits(found: tuple[Found, ...], fusion: Fusion, offset: int) -> tuple[Hit, ...]:
    shown = fusion.shown(np.array([hit.score for hit in found], float))
    return tuple(
        Hit(hit.document, float(score), rank, hit.contributions)
        for rank, (hit, score) in enumerate(zip(found, shown, strict=True), start=offset + 1)
    )
