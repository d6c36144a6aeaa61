"""Candidates of a search: the best rows by each source of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from capsearch.engine.evidence import ABSENT
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters, Source, Vectors
from capsearch.indexer.embedded import codes
from capsearch.indexer.embedded.arrays import Rows, Slots, VectorFile
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.nearest import Nearest, best_of, exact_scores
from capsearch.indexer.embedded.tag_matches import TagMatches
from capsearch.indexer.embedded.words import (
    GENERATED,
    PEOPLES,
    WordCounts,
    WordMatches,
    match,
    occurrences,
    with_phrases,
)

HAS_FILE = "EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
# Documents that pass a filter: these alone are compared, if they are not many of all.
_FEW, _FEW_SHARE = 5_000, 1 / 20
_SCORED = 2_000  # of these, all are scored
_CAPTIONS_PER_IMAGE = 2  # candidates by captions for each by its image: several belong to one
_DEEP = 25_600  # candidates; if less than a page of these pass a filter, few do


@dataclass(frozen=True, slots=True)
class OpenArrays:
    """The vector files of one state of the catalog, open for search."""

    files: tuple[VectorFile, VectorFile]
    images: Rows
    captions: Rows
    nearest_images: Nearest
    nearest_captions: Nearest

    @classmethod
    def of(cls, catalog: SqliteCatalog, before: OpenArrays | None = None) -> OpenArrays:
        """Opens them, or what has changed since `before`; call inside a snapshot."""
        files = images, captions = catalog.array("vectors"), catalog.array("captions")
        if before is not None and before.files == files:
            return before
        opened = [None, None] if before is None else before._still_valid(files)
        return cls(
            files,
            images.view(),
            captions.view(),
            codes.open_search(images, opened[0]),
            codes.open_search(captions, opened[1]),
        )

    def _still_valid(self, files: Sequence[VectorFile]) -> list[Nearest | None]:
        """Searches over files that have only grown."""
        searches = (self.nearest_images, self.nearest_captions)
        return [
            search if (old.generation, old.width) == (new.generation, new.width) else None
            for old, new, search in zip(self.files, files, searches, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Allowed:
    """Which documents may be hits.

    Few are looked up once, and candidates are taken from these. Where many may be hits,
    candidates are taken from all and checked by `condition`: looking up half of a million takes
    longer than any search.
    """

    condition: tuple[str, Sequence[object]] = ("TRUE", ())  # on images `i`; its values
    few: Slots | None = None  # ascending

    @classmethod
    def by(
        cls, catalog: SqliteCatalog, filters: Filters, phrases: Sequence[Sequence[str]], of: int
    ) -> Allowed:
        """Documents, of so many, that pass the filters and in which the phrases occur."""
        if not filters and not phrases:
            return cls()
        if phrases and not catalog.has_words():
            return cls(few=np.empty(0, np.int64))
        most = max(_SCORED, min(_FEW, int(of * _FEW_SHARE)))
        few: list[tuple[str, Sequence[object]]] = [*catalog.few(filters, most)]
        rare = bool(few)
        if phrases:
            few.append(with_phrases(catalog, phrases))
            rare |= occurrences(catalog, phrases, most) < most
        conditions = [catalog.where(filters), *few]
        checked = cls(
            (
                " AND ".join(condition for condition, _ in conditions),
                [value for _, operands in conditions for value in operands],
            )
        )
        return checked.looked_up(catalog) if rare else checked

    @property
    def all(self) -> bool:
        """Every document may be a hit."""
        return self.few is None and self.condition == ("TRUE", ())

    def looked_up(self, catalog: SqliteCatalog) -> Allowed:
        """The same with its documents looked up."""
        condition, values = self.condition
        sql = f"SELECT slot FROM images i WHERE slot IS NOT NULL AND {condition}"
        rows = catalog.rows(sql, values)
        return Allowed(few=np.sort(np.array([row[0] for row in rows], np.int64)))


@dataclass(frozen=True, slots=True)
class Matches:
    """Where the words of a query occur, in what people and what models wrote, and its tags."""

    words: WordMatches
    generated: WordMatches
    tags: TagMatches

    @classmethod
    def of(
        cls, catalog: SqliteCatalog, query: EncodedQuery, documents: int, known: WordCounts
    ) -> Matches:
        """Looks the words up; tags are looked up where they are needed."""
        tables = (PEOPLES, GENERATED)
        found = [match(catalog, query.words, documents, known, table) for table in tables]
        return cls(found[0], found[1], TagMatches(catalog, query.concepts))


@dataclass(frozen=True, slots=True)
class Pool:
    """Candidates by slot, and the most that a document outside can score by each source.

    `highest` is NaN for a source that no document outside has, and empty if there is none.
    """

    slots: Slots
    highest: Mapping[Source, float]

    @property
    def complete(self) -> bool:
        """There is no document outside."""
        return not self.highest


def gather(
    catalog: SqliteCatalog,
    arrays: OpenArrays,
    query: EncodedQuery,
    matches: Matches,
    allowed: Allowed,
    depth: int,
) -> Pool:
    """The best `depth` rows by every source the fusion uses, and all documents with rare words."""
    if query.blind:
        return _blind(catalog, query, matches, allowed, depth)
    if depth > _DEEP and allowed.few is None and not allowed.all:
        allowed = allowed.looked_up(catalog)
    few = allowed.few
    if few is not None and len(few) <= max(_SCORED, depth):
        return Pool(few, {})
    if depth >= len(arrays.images):
        return Pool(np.arange(len(arrays.images)), {})
    tagged, surest = matches.tags.top(depth)
    highest: dict[Source, float] = {**ABSENT, "tag": surest}
    parts = [_among(one, few) for one in (_with_words(catalog, matches), tagged)]
    if query.image is not None:
        rows = arrays.images
        found = _top(query.image, rows, arrays.nearest_images, few, depth)
        highest["image"] = _least(query.image, rows, found, len(rows) if few is None else len(few))
        parts.append(found)
    if query.caption is not None:
        rows, captions = arrays.captions, None if few is None else _captions_of(catalog, few)
        deep = depth * _CAPTIONS_PER_IMAGE
        found = _top(query.caption, rows, arrays.nearest_captions, captions, deep)
        every = len(rows) if captions is None else len(captions)
        least = _least(query.caption, rows, found, every)
        highest["caption"] = least + _most_offset(query)
        highest["generated"] = highest["caption"]
        parts.append(_captioned(catalog, found))
    return Pool(np.unique(np.concatenate(parts)), highest)


def _blind(
    catalog: SqliteCatalog, query: EncodedQuery, matches: Matches, allowed: Allowed, depth: int
) -> Pool:
    """By words and tags alone: vectors of zeros score every document alike."""
    tagged, surest = matches.tags.top(depth)
    slots = _among(np.union1d(_with_words(catalog, matches), tagged), allowed.few)
    if not surest:
        return Pool(slots, {})
    highest: dict[Source, float] = {**ABSENT, "tag": surest}
    if query.image is not None:
        highest["image"] = 0.0
    if query.caption is not None:
        highest["caption"] = highest["generated"] = _most_offset(query)
    return Pool(slots, highest)


def within(column: str, numbers: Sequence[int]) -> str:
    """A condition with integers written out: there may be more than SQLite has variables."""
    return f"{column} IN ({', '.join(map(str, numbers))})"


def _most_offset(query: EncodedQuery) -> float:
    """What the language of a caption adds to its score, at most."""
    return max([0.0, *query.caption_offsets.values()])


def _among(slots: Slots, few: Slots | None) -> Slots:
    return slots if few is None else np.intersect1d(slots, few)


def _with_words(catalog: SqliteCatalog, matches: Matches) -> Slots:
    sql = "SELECT slot FROM images i WHERE slot IS NOT NULL AND "
    numbers = sorted({*matches.words.weights, *matches.generated.weights})
    return _slots(catalog, sql + within("number", numbers)) if numbers else np.empty(0, np.int64)


def _captioned(catalog: SqliteCatalog, caption_slots: Slots) -> Slots:
    """The images of captions."""
    sql = (
        "SELECT i.slot FROM captions c CROSS JOIN images i ON i.id = c.image_id "
        "WHERE i.slot IS NOT NULL AND "
    )
    return _slots(catalog, sql + within("c.slot", caption_slots.tolist()))


def _captions_of(catalog: SqliteCatalog, images: Slots) -> Slots:
    """The captions of images."""
    sql = (
        "SELECT c.slot FROM images i CROSS JOIN captions c ON c.image_id = i.id "
        "WHERE c.slot IS NOT NULL AND "
    )
    return _slots(catalog, sql + within("i.slot", images.tolist()))


def _slots(catalog: SqliteCatalog, sql: str) -> Slots:
    return np.array([slot for (slot,) in catalog.rows(sql)], np.int64)


def _top(query: Vectors, rows: Rows, nearest: Nearest, few: Slots | None, depth: int) -> Slots:
    """The best rows, or the best of few."""
    return nearest.top(query, depth) if few is None else best_of(query, rows, few, depth)


def _least(query: Vectors, rows: Rows, slots: Slots, count: int) -> float:
    """What no row outside a top list exceeds: the least score inside; NaN if none is outside."""
    return np.nan if len(slots) >= count else float(exact_scores(query, rows, slots).min())
