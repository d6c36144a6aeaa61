"""CM, CL and CLM search over any catalog and any pair of vector indexes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

from capsearch.engine.errors import InvalidQuery, UnknownLanguage
from capsearch.engine.fusion import Fused, Side, best_fused
from capsearch.engine.protocols import Catalog, ImageEncoder, TextEncoder, VectorIndex
from capsearch.engine.records import (
    MODES,
    Contributions,
    EncodedText,
    Hit,
    Match,
    Mode,
    Query,
    SearchResult,
    Vectors,
)
from capsearch.engine.vectors import blend, similarity_query


@dataclass(frozen=True, slots=True)
class _Understood:
    """A query after encoding: the vectors to search with, and what was made of it."""

    visual: Vectors  # (D,)
    caption: Vectors | None  # (C,), None when the query has no words
    language: str | None
    mode: Mode
    weight: float
    floor: float
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SearchEngine:
    """Finds images. Holds no state of its own: two engines over one index agree."""

    catalog: Catalog
    images: VectorIndex
    captions: VectorIndex
    image_encoder: ImageEncoder
    text_encoder: TextEncoder

    def search(self, query: Query) -> SearchResult:
        """The page of hits that `query` asks for.

        Raises InvalidQuery for a query with neither words nor image, a mode it cannot
        have, or numbers out of range; UnknownLanguage for a language no model reads.
        """
        _check(query)
        started = perf_counter()
        understood = self._understand(query)
        encoded = perf_counter()
        allowed = self.catalog.select(query.filters) if query.filters else None
        # One more than the page tells whether there is another page.
        wanted = query.offset + query.limit + 1
        fused = self._rank(understood, wanted, allowed)
        if query.min_score is not None:
            fused = tuple(one for one in fused if one.score >= query.min_score)
        page = fused[query.offset : query.offset + query.limit]
        hits = tuple(self._hit(one, query.offset + at + 1) for at, one in enumerate(page))
        done = perf_counter()
        return SearchResult(
            hits=hits,
            more=len(fused) == wanted,
            language=understood.language,
            mode=understood.mode,
            weight=understood.weight if understood.mode == "clm" else None,
            warnings=understood.warnings,
            timings_ms={
                "encode": 1e3 * (encoded - started),
                "search": 1e3 * (done - encoded),
            },
        )

    def _understand(self, query: Query) -> _Understood:
        image = self._image(query)
        if not query.text.strip():
            assert image is not None  # _check saw to it
            return _Understood(image, None, None, "cm", 0.0, 0.0, ())
        language = query.language or self.text_encoder.detect(query.text)
        if language not in self.text_encoder.languages:
            known = ", ".join(self.text_encoder.languages)
            raise UnknownLanguage(f"no model reads '{language}'; choose one of {known}")
        encoded = self.text_encoder.encode([query.text], language)
        visual = encoded.visual[0]
        if image is not None:
            visual = blend(image, visual, query.image_weight)
        weight, mode = query.weight, query.mode
        if mode == "clm" and not len(self.captions):
            mode = "cm"  # nothing to fuse with: the scores stay those of CM
        return _Understood(
            visual=visual,
            caption=encoded.caption[0],
            language=language,
            mode=mode,
            weight=self.text_encoder.clm_weight(language) if weight is None else weight,
            floor=self.text_encoder.cl_floor(language),
            warnings=tuple(self._warnings(encoded, language, query)),
        )

    def _warnings(self, encoded: EncodedText, language: str, query: Query) -> Iterator[str]:
        if not encoded.known[0]:
            yield f"the {language} model knows nothing in {query.text!r}; the order means little"
        if query.mode == "cl" and not len(self.captions):
            yield "no image here has a caption; use mode cm, or index some captions"

    def _image(self, query: Query) -> Vectors | None:
        if query.image is not None:
            vectors = self.image_encoder.project(self.image_encoder.features([query.image]))
            return similarity_query(vectors[0])
        if query.like is None:
            return None
        vector = self.images.vector(query.like)
        if vector is None:
            raise InvalidQuery(f"no image with id {query.like!r} in this index")
        return similarity_query(vector)

    def _rank(
        self, understood: _Understood, count: int, allowed: Collection[str] | None
    ) -> tuple[Fused, ...]:
        visual, caption = understood.visual, understood.caption
        if understood.mode == "cm" or caption is None:
            return _one_sided(self.images.search(visual, count, allowed), "cm")
        if understood.mode == "cl":
            return _one_sided(self.captions.search(caption, count, allowed), "cl")
        return best_fused(
            _side(self.captions, caption, allowed, understood.floor),
            _side(self.images, visual, allowed, 0.0),
            understood.weight,
            count,
        )

    def _hit(self, fused: Fused, rank: int) -> Hit:
        cl, cm = fused.cl, fused.cm
        return Hit(
            fused.image_id,
            fused.score,
            rank,
            Contributions(
                cm=cm.score if cm else None,
                cl=cl.score if cl else None,
                caption=self.catalog.caption(cl.item) if cl else None,
            ),
        )


def _check(query: Query) -> None:
    if query.image is not None and query.like is not None:
        raise InvalidQuery("give one image to compare with, not two")
    if not query.text.strip() and query.image is None and query.like is None:
        raise InvalidQuery("nothing to search for: give some words or an image")
    if query.mode not in MODES:
        raise InvalidQuery(f"mode is one of {', '.join(MODES)}, not {query.mode!r}")
    if query.mode == "cl" and not query.text.strip():
        raise InvalidQuery("captions are searched with words: add some, or use mode cm")
    if query.limit < 1 or query.offset < 0:
        raise InvalidQuery("limit must be at least 1 and offset at least 0")
    if query.weight is not None and not 0.0 <= query.weight <= 1.0:
        raise InvalidQuery(f"the CLM weight lies between 0 and 1, not {query.weight}")
    if not 0.0 <= query.image_weight <= 1.0:
        raise InvalidQuery(f"the image's weight lies between 0 and 1, not {query.image_weight}")


def _side(
    index: VectorIndex, vector: Vectors, allowed: Collection[str] | None, floor: float
) -> Side:
    def top(count: int) -> Sequence[Match]:
        return index.search(vector, count, allowed)

    def exact(image_ids: Sequence[str]) -> Mapping[str, Match]:
        return index.scores(vector, image_ids)

    return Side(top, exact, floor)


def _one_sided(matches: Sequence[Match], mode: Mode) -> tuple[Fused, ...]:
    return tuple(
        Fused(
            match.image_id,
            match.score,
            cl=match if mode == "cl" else None,
            cm=match if mode == "cm" else None,
        )
        for match in matches
    )
