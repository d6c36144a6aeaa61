"""Candidates of a search: the best rows by each source of evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from capsearch.engine.evidence import ABSENT
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Source, Vectors
from capsearch.indexer.embedded import codes
from capsearch.indexer.embedded.arrays import Rows, Slots, VectorFile
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.nearest import Nearest, best_of, exact_scores
from capsearch.indexer.embedded.tag_matches import TagMatches
from capsearch.indexer.embedded.words import GENERATED, PEOPLES, WordMatches, match

_FILTERED_EXACTLY = 50_000  # documents that pass a filter: these are all compared


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
class Matches:
    """Where the words of a query occur, in what people and what models wrote, and its tags."""

    words: WordMatches
    generated: WordMatches
    tags: TagMatches

    @classmethod
    def of(cls, catalog: SqliteCatalog, query: EncodedQuery, documents: int) -> Matches:
        """Looks the words up; tags are looked up where they are needed."""
        tables = (PEOPLES, GENERATED)
        found = [match(catalog, query.words, documents, table) for table in tables]
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
    allowed: Slots | None,
    depth: int,
) -> Pool:
    """The best `depth` rows by every source the fusion uses, and all documents with rare words."""
    if query.blind:
        found = np.union1d(_with_words(catalog, matches), matches.tags.top(depth)[0])
        return Pool(found if allowed is None else np.intersect1d(found, allowed), {})
    if allowed is not None and len(allowed) <= max(_FILTERED_EXACTLY, depth):
        return Pool(allowed, {})
    if depth >= len(arrays.images):
        return Pool(np.arange(len(arrays.images)), {})
    tagged, surest = matches.tags.top(depth)
    highest: dict[Source, float] = {**ABSENT, "tag": surest}
    parts = [_with_words(catalog, matches), tagged]
    if query.image is not None:
        found = _top(arrays.images, arrays.nearest_images, query.image, depth, allowed)
        highest["image"] = _least(query.image, arrays.images, found)
        parts.append(found)
    if query.caption is not None:
        found = arrays.nearest_captions.top(query.caption, depth)
        most = max([0.0, *query.caption_offsets.values()])
        highest["caption"] = _least(query.caption, arrays.captions, found) + most
        highest["generated"] = highest["caption"]
        parts.append(_captioned(catalog, found))
    slots = np.unique(np.concatenate(parts))
    return Pool(slots if allowed is None else np.intersect1d(slots, allowed), highest)


def within(column: str, numbers: Sequence[int]) -> str:
    """A condition with integers written out: there may be more than SQLite has variables."""
    return f"{column} IN ({', '.join(str(int(number)) for number in numbers)})"


def _with_words(catalog: SqliteCatalog, matches: Matches) -> Slots:
    sql = "SELECT slot FROM images i WHERE slot IS NOT NULL AND "
    numbers = sorted({*matches.words.weights, *matches.generated.weights})
    rows = catalog.rows(sql + within("number", numbers)) if numbers else []
    return np.array([row[0] for row in rows], np.int64)


def _captioned(catalog: SqliteCatalog, caption_slots: Slots) -> Slots:
    sql = (
        "SELECT i.slot FROM captions c JOIN images i ON i.id = c.image_id "
        "WHERE i.slot IS NOT NULL AND "
    )
    rows = catalog.rows(sql + within("c.slot", caption_slots.tolist()))
    return np.array([row[0] for row in rows], np.int64)


def _top(rows: Rows, nearest: Nearest, query: Vectors, depth: int, allowed: Slots | None) -> Slots:
    """The best rows among those allowed."""
    if allowed is None:
        return nearest.top(query, depth)
    oversampled = depth * len(rows) // max(len(allowed), 1)
    found = np.intersect1d(nearest.top(query, min(2 * oversampled, len(rows))), allowed)
    return found if len(found) >= depth else best_of(query, rows, allowed, depth)


def _least(query: Vectors, rows: Rows, slots: Slots) -> float:
    """What no row outside a top list exceeds: the least score inside; NaN if none is outside."""
    if len(slots) >= len(rows):
        return np.nan
    return float(exact_scores(query, rows, slots).min())
