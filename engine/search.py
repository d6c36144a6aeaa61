"""CM, CL and CLM search over any backend."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from time import perf_counter

import numpy as np

from capsearch.engine.errors import InvalidQuery, UnknownLanguage
from capsearch.engine.evidence import SOURCES, NamedConcepts
from capsearch.engine.fusion import (
    CalibratedEvidence,
    ConvexCombination,
    EvidenceModel,
    Fusion,
    SingleSource,
    without,
)
from capsearch.engine.protocols import Backend, Found, ImageEncoder, TextEncoder
from capsearch.engine.query import EncodedQuery, Query
from capsearch.engine.records import Document, EncodedText, Hit, Mode, SearchResult, Vectors
from capsearch.engine.vectors import blend, similarity_query


@dataclass(frozen=True, slots=True)
class _Understood:
    """A query after encoding, and what was made of it."""

    encoded: EncodedQuery
    language: str | None
    mode: Mode
    min_score: float | None  # as users see it
    warnings: tuple[str, ...] = ()
    min_described: float | None = None  # of a best hit that a model has described, likewise


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
        understood = self._understand(query)
        encoded = perf_counter()
        # One more than the page tells whether there is another page.
        found = self.backend.search(
            understood.encoded, query.filters, query.limit + 1, query.offset
        )
        if found and understood.min_described is not None:
            best = found[0]
            if query.offset:
                best = self.backend.search(understood.encoded, query.filters, 1)[0]
            understood = _of_described(understood, best.document)
            if best.score < understood.encoded.min_best:
                found = ()
        done = perf_counter()
        fusion = understood.encoded.fusion
        return SearchResult(
            hits=_hits(found[: query.limit], fusion, query.offset),
            more=len(found) > query.limit,
            language=understood.language,
            mode=understood.mode,
            weight=fusion.weight if isinstance(fusion, ConvexCombination) else None,
            unit=fusion.unit,
            min_score=understood.min_score,
            warnings=understood.warnings,
            timings_ms={
                "encode": 1e3 * (encoded - started),
                "search": 1e3 * (done - encoded),
            },
        )

    def encoded(self, query: Query) -> EncodedQuery:
        """What a query becomes for the backend."""
        return self._understand(query).encoded

    def _understand(self, query: Query) -> _Understood:
        image = self._image_vector(query)
        if not query.text.strip():
            assert image is not None  # Query.check saw to it
            encoded = EncodedQuery(SingleSource("image"), image=image)
            return _cut(_Understood(encoded, None, "cm", query.min_score), None)
        language = self._language(query)
        subject = self.text_encoder.subject(query.text, language)
        text = self.text_encoder.encode([subject], language)
        mode: Mode = query.mode
        fitted = None  # beside a weight or an image, nothing is
        if query.weight is None and image is None:
            fitted = self.text_encoder.evidence_model(subject, language)
        if mode == "clm" and not self.backend.captioned():
            if fitted is None:
                mode = "cm"  # nothing to fuse with
            else:
                fitted = without(fitted, "caption", "generated")
        named = None if mode == "cl" else self._named(subject, language, fitted)
        fusion, model = self._fusion(query, text, language, mode, fitted, named)
        words = self.text_encoder.keywords(subject) if "words" in fusion.sources else ()
        tagged = "tag" in fusion.sources
        phrases = (self.text_encoder.words(one) for one in query.phrases)
        encoded = EncodedQuery(
            fusion=fusion,
            image=_visual(text, image, query.image_weight) if mode != "cl" else None,
            caption=text.caption[0] if "caption" in fusion.sources else None,
            caption_offsets=model.caption_offsets if model else {},
            words=words,
            concepts=self.text_encoder.concepts(subject, language) if tagged else (),
            phrases=tuple(one for one in phrases if one),  # stop words alone fold to nothing
            named=named,
        )
        warnings = tuple(self._warnings(text, language, query))
        return _cut(_Understood(encoded, language, mode, query.min_score, warnings), model)

    def _language(self, query: Query) -> str:
        language = query.language or self.text_encoder.detect(query.text)
        if language not in self.text_encoder.languages:
            known = ", ".join(self.text_encoder.languages)
            raise UnknownLanguage(f"no model reads '{language}'; choose one of {known}")
        return language

    def _named(
        self, subject: str, language: str, model: EvidenceModel | None
    ) -> NamedConcepts | None:
        """What the query names, with the weight that it has in the score of an image."""
        if model is None or not model.concept_weight:
            return None
        found = self.text_encoder.named(subject, language)
        return found and found.weighted(model.concept_weight)

    def _fusion(
        self,
        query: Query,
        text: EncodedText,
        language: str,
        mode: Mode,
        model: EvidenceModel | None,
        named: NamedConcepts | None,
    ) -> tuple[Fusion, EvidenceModel | None]:
        """How this query's evidence is fused, and the model behind it if it is calibrated."""
        if mode == "cl":
            return SingleSource("caption"), None
        if model is None:
            return self._uncalibrated(query, language, mode), None
        if mode == "cm":
            model = without(model, *(one for one in SOURCES if one != "image"))
        background = dict(self.text_encoder.background(text))
        if named is not None:
            background["image"] += named.weight * named.background
        return CalibratedEvidence(model, background, len(self.backend)), model

    def _uncalibrated(self, query: Query, language: str, mode: Mode) -> Fusion:
        """The convex combination; beside an image the captions count as much as the text does."""
        if mode == "cm":
            return SingleSource("image")
        tuned = self.text_encoder.clm_weight(language)
        weight = tuned if query.weight is None else query.weight
        if query.image is not None or query.like is not None:
            weight *= 1.0 - query.image_weight
        return ConvexCombination(weight, self.text_encoder.cl_floor(language))

    def _warnings(self, text: EncodedText, language: str, query: Query) -> Iterator[str]:
        if not text.known[0]:
            yield f"the {language} model knows nothing in {query.text!r}; only words are found"
        if query.mode == "cl" and not self.backend.captioned():
            yield "no image here has a caption; use mode cm, or index some captions"

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


def _visual(text: EncodedText, image: Vectors | None, image_weight: float) -> Vectors:
    return text.visual[0] if image is None else blend(image, text.visual[0], image_weight)


def _cut(understood: _Understood, model: EvidenceModel | None) -> _Understood:
    """The cut-off as users see it and in the fusion's unit; calibrated models have defaults.

    A plain score has no zero: 0 shows everything there too.
    """
    asked = understood.min_score
    if asked is None and model is None:
        return understood
    if asked is None:
        assert model is not None
        least, best = model.tail_cutoff, model.cutoff
    else:
        least = best = asked
    if understood.encoded.fusion.unit == "probability":
        limits = _logit(least), _logit(best)
    else:
        limits = (least, best) if least > 0.0 else (float("-inf"), float("-inf"))
    encoded = replace(understood.encoded, min_score=limits[0], min_best=limits[1])
    described = model.best_cutoff(described=True) if model and asked is None else best
    stricter = described if described > best else None
    return replace(understood, encoded=encoded, min_score=best, min_described=stricter)


def _of_described(understood: _Understood, best: Document) -> _Understood:
    """With the cut-off of a best hit that a model has described, if it has."""
    if understood.min_described is None or not _is_described(best):
        return understood
    encoded = replace(understood.encoded, min_best=_logit(understood.min_described))
    return replace(understood, encoded=encoded, min_score=understood.min_described)


def _is_described(document: Document) -> bool:
    return any(one.generated for one in document.captions) or any(
        one.generated for one in document.tags
    )


def _logit(probability: float) -> float:
    if probability <= 0.0:
        return float("-inf")
    if probability >= 1.0:
        return float("inf")
    return float(np.log(probability) - np.log1p(-probability))


def _hits(found: tuple[Found, ...], fusion: Fusion, offset: int) -> tuple[Hit, ...]:
    shown = fusion.shown(np.array([one.score for one in found], float))
    return tuple(
        Hit(one.document, float(score), offset + at, one.contributions)
        for at, (one, score) in enumerate(zip(found, shown, strict=True), start=1)
    )
