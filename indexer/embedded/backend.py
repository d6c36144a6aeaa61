"""The embedded backend: candidates from vector files and words, documents from SQLite."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from capsearch.engine.fusion import Evidence, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Caption, Document, Facets, Filters, Source, Vectors
from capsearch.indexer.embedded import codes, facets, words
from capsearch.indexer.embedded.arrays import Rows, Slots
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.nearest import Nearest, best_of, exact_scores

MIN_DEPTH = 400  # candidates by each source; with codes, enough for recall@10 of .99 and more
_FILTERED_EXACTLY = 50_000  # documents that pass a filter: these are all compared
_IMAGES = (
    "SELECT id, slot, number FROM images i WHERE {} "
    "AND EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
)
_CAPTIONS = (
    "SELECT c.slot, i.slot, c.text, c.language, c.source FROM captions c "
    "JOIN images i ON i.id = c.image_id WHERE c.slot IS NOT NULL AND {} ORDER BY c.id"
)


@dataclass(frozen=True, slots=True)
class _Arrays:
    """The vector files of one revision, open for search."""

    revision: int
    images: Rows
    captions: Rows
    nearest_images: Nearest
    nearest_captions: Nearest


@dataclass(frozen=True, slots=True)
class _Pool:
    """Candidates, and the most that a document outside can score by each source."""

    slots: Slots
    highest: Mapping[Source, float]
    complete: bool  # there is no document outside


@dataclass(frozen=True, slots=True)
class _Ranked:
    """A candidate with its score."""

    score: float
    image_id: str
    row: int


class EmbeddedBackend:
    """engine.protocols.Backend over an index folder. Threads may share one object."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
        self._opening = threading.Lock()
        self._opened: _Arrays | None = None
        self._facets: tuple[int, Facets] | None = None

    def __len__(self) -> int:
        return self.catalog.image_count()

    def captioned(self) -> bool:
        """Whether any caption has a vector."""
        return bool(self.catalog.rows("SELECT 1 FROM captions WHERE slot IS NOT NULL LIMIT 1"))

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """The documents ranked offset + 1 to offset + limit; see engine.protocols.

        Candidates of every source are scored from their rows (Fagin's threshold algorithm): no
        document outside the pool can exceed the bound, so once enough candidates do, the page
        is settled. Where codes find the candidates this holds but for what codes miss.
        """
        with self.catalog.snapshot():
            return self._search(query, filters, offset, offset + limit)

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; unknown ids are left out."""
        return self.catalog.documents(ids)

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector (D,) of a document, or None."""
        with self.catalog.snapshot():
            sql = "SELECT slot FROM images WHERE id = ? AND slot IS NOT NULL"
            rows = self.catalog.rows(sql, (image_id,))
            return np.asarray(self._arrays().images[rows[0][0]], np.float32) if rows else None

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """By the date they were taken, latest first, undated last; ties by id."""
        ids = self.catalog.newest(filters, limit, offset)
        found = self.catalog.documents(ids)
        return tuple(found[one] for one in ids if one in found)

    def facets(self) -> Facets:
        """What the documents can be filtered by; counted again only after a change."""
        revision = self.catalog.revision()
        if self._facets is None or self._facets[0] != revision:
            self._facets = (revision, facets.facets(self.catalog))
        return self._facets[1]

    def _arrays(self) -> _Arrays:
        """The vector files as the catalog's revision has them; call inside a snapshot."""
        with self._opening:
            revision = self.catalog.revision()
            if self._opened is None or self._opened.revision != revision:
                images, captions = self.catalog.array("vectors"), self.catalog.array("captions")
                self._opened = _Arrays(
                    revision,
                    images.view(),
                    captions.view(),
                    codes.open_search(images),
                    codes.open_search(captions),
                )
            return self._opened

    def _search(
        self, query: EncodedQuery, filters: Filters, start: int, stop: int
    ) -> tuple[Found, ...]:
        if _says_nothing(query):
            return ()
        arrays = self._arrays()
        matches = words.match(self.catalog, query.words, len(self))
        allowed = self._allowed(query, filters)
        depth = max(4 * stop, MIN_DEPTH)
        while True:
            pool = self._pool(arrays, query, matches, allowed, depth)
            evidence, images, best = self._evidence(arrays, query, matches, pool.slots)
            ranked = self._rank(query, evidence, images)
            bound = query.fusion.bound(pool.highest)
            settled = len(ranked) >= stop and ranked[stop - 1].score > bound
            if pool.complete or settled or bound < query.min_score:
                return self._page(query, evidence, ranked[start:stop], best)
            depth *= 4

    def _allowed(self, query: EncodedQuery, filters: Filters) -> Slots | None:
        """The slots of documents that pass, ascending; None for all."""
        if not filters and not query.phrases:
            return None
        rows = self.catalog.select(filters, "slot, number")
        if query.phrases:
            numbers = set(words.with_phrases(self.catalog, query.phrases))
            rows = [row for row in rows if row[1] in numbers]
        return np.sort(np.array([row[0] for row in rows if row[0] is not None], np.int64))

    def _pool(
        self,
        arrays: _Arrays,
        query: EncodedQuery,
        matches: words.WordMatches,
        allowed: Slots | None,
        depth: int,
    ) -> _Pool:
        """Candidates of every source the fusion uses."""
        if allowed is not None and len(allowed) <= max(_FILTERED_EXACTLY, depth):
            return _Pool(allowed, {}, complete=True)
        total = len(arrays.images) if allowed is None else len(allowed)
        if depth >= total:
            slots = np.arange(len(arrays.images)) if allowed is None else allowed
            return _Pool(slots, {}, complete=True)
        highest: dict[Source, float] = {
            "image": -np.inf, "caption": -np.inf, "generated": -np.inf, "words": 0.0,
        }  # fmt: skip
        parts = [self._word_slots(matches)]
        if query.image is not None and "image" in query.fusion.sources:
            found = _top(arrays.images, arrays.nearest_images, query.image, depth, allowed)
            highest["image"] = _least(query.image, arrays.images, found)
            parts.append(found)
        if query.caption is not None and len(arrays.captions):
            found = arrays.nearest_captions.top(query.caption, depth)
            least = _least(query.caption, arrays.captions, found)
            highest["caption"] = highest["generated"] = least
            parts.append(self._owners(found))
        slots = np.unique(np.concatenate(parts))
        return _Pool(slots if allowed is None else np.intersect1d(slots, allowed), highest, False)

    def _word_slots(self, matches: words.WordMatches) -> Slots:
        marks = _in("i.number", sorted(matches.all))
        rows = self.catalog.rows(_IMAGES.format(marks)) if matches.all else []
        return np.array([row[1] for row in rows if row[1] is not None], np.int64)

    def _owners(self, caption_slots: Slots) -> Slots:
        rows = self.catalog.rows(_CAPTIONS.format(_in("c.slot", caption_slots.tolist())))
        return np.array([row[1] for row in rows if row[1] is not None], np.int64)

    def _evidence(
        self,
        arrays: _Arrays,
        query: EncodedQuery,
        matches: words.WordMatches,
        slots: Slots,
    ) -> tuple[Evidence, list[str], dict[int, Caption]]:
        """Exact scores of the candidates that have a file, their ids, and their best captions."""
        found = self.catalog.rows(_IMAGES.format(_in("i.slot", slots.tolist())))
        found.sort()
        row_of = {slot: row for row, (_, slot, _) in enumerate(found)}
        values: dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]] = {
            "words": np.array([matches.coverage(number) for _, _, number in found], float)
        }
        chosen = np.array([slot for _, slot, _ in found], np.int64)
        if query.image is not None:
            values["image"] = exact_scores(query.image, arrays.images, chosen)
        best: dict[int, Caption] = {}
        if query.caption is not None:
            captions = self._scored_captions(arrays, query.caption, chosen)
            values |= _best_captions(captions, row_of, len(found), best)
        return Evidence.of(len(found), **values), [image_id for image_id, _, _ in found], best

    def _scored_captions(
        self, arrays: _Arrays, query: Vectors, slots: Slots
    ) -> list[tuple[float, int, Caption]]:
        """(score, slot of the image, caption) of all captions of some images."""
        rows = self.catalog.rows(_CAPTIONS.format(_in("i.slot", slots.tolist())))
        scores = exact_scores(query, arrays.captions, np.array([row[0] for row in rows], np.int64))
        return [
            (float(score), row[1], Caption(*row[2:]))
            for score, row in zip(scores, rows, strict=True)
        ]

    def _rank(self, query: EncodedQuery, evidence: Evidence, ids: Sequence[str]) -> list[_Ranked]:
        """Candidates at or above the cut-off, best first, ties by id."""
        scores = query.fusion.scores(evidence)
        keep = np.flatnonzero((scores > -np.inf) & (scores >= query.min_score))
        ranked = [_Ranked(float(scores[row]), ids[row], row) for row in keep.tolist()]
        return sorted(ranked, key=lambda one: (-one.score, one.image_id))

    def _page(
        self,
        query: EncodedQuery,
        evidence: Evidence,
        page: Sequence[_Ranked],
        best: Mapping[int, Caption],
    ) -> tuple[Found, ...]:
        documents = self.catalog.documents([one.image_id for one in page])
        rows = np.array([one.row for one in page], np.int64)
        shown = evidence.at(rows)
        parts = query.fusion.log_odds(shown)
        sources = query.fusion.sources
        return tuple(
            Found(
                documents[one.image_id],
                one.score,
                contributions(shown, parts, at, sources, best.get(one.row)),
            )
            for at, one in enumerate(page)
        )


def _says_nothing(query: EncodedQuery) -> bool:
    """No vector and no word: every document would score the same."""
    vectors = [one for one in (query.image, query.caption) if one is not None]
    return not any(one.any() for one in vectors) and not query.words and not query.phrases


def _top(rows: Rows, nearest: Nearest, query: Vectors, depth: int, allowed: Slots | None) -> Slots:
    """The best rows among those allowed."""
    if allowed is None:
        return nearest.top(query, depth)
    oversampled = depth * len(rows) // max(len(allowed), 1)
    found = np.intersect1d(nearest.top(query, min(2 * oversampled, len(rows))), allowed)
    return found if len(found) >= depth else best_of(query, rows, allowed, depth)


def _least(query: Vectors, rows: Rows, slots: Slots) -> float:
    """What no row outside a top list exceeds: the least score inside."""
    return float(exact_scores(query, rows, slots).min(initial=np.inf))


def _best_captions(
    captions: Sequence[tuple[float, int, Caption]],
    row_of: Mapping[int, int],
    count: int,
    best: dict[int, Caption],
) -> dict[str, np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """The best scores by who wrote the caption; `best` gets the caption of each row."""
    values = {"caption": np.full(count, np.nan), "generated": np.full(count, np.nan)}
    highest = np.full(count, -np.inf)
    for score, slot, caption in captions:
        row = row_of[slot]
        name = "generated" if caption.generated else "caption"
        values[name][row] = np.fmax(values[name][row], score)
        if score > highest[row]:
            highest[row], best[row] = score, caption
    return values


def _in(column: str, numbers: Sequence[int]) -> str:
    """A condition with integers written out: there may be more than SQLite has variables."""
    return f"{column} IN ({', '.join(str(int(number)) for number in numbers)})"
