"""What a search starts from: open vector files, the documents that pass, matched words and tags."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from capsearch.engine.evidence import Floats
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.indexer.embedded import codes
from capsearch.indexer.embedded.arrays import Rows, Slots, VectorFile
from capsearch.indexer.embedded.caption_images import CaptionImages
from capsearch.indexer.embedded.catalog import SqliteCatalog, within
from capsearch.indexer.embedded.nearest import Nearest
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
_FEW, _FEW_SHARE = 20_000, 1 / 20
_SCORED = 2_000  # of these, all are scored


@dataclass(frozen=True, slots=True)
class OpenArrays:
    """The vector files of one state of the catalog, open for search."""

    files: tuple[VectorFile, VectorFile]
    images: Rows
    captions: Rows
    nearest_images: Nearest
    nearest_captions: Nearest
    caption_images: CaptionImages

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
            CaptionImages.open(captions, images),
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

    def listed(self, depth: int) -> Slots | None:
        """The documents, if they are so few that all of them are scored."""
        return self.few if self.few is not None and len(self.few) <= max(_SCORED, depth) else None

    def looked_up(self, catalog: SqliteCatalog) -> Allowed:
        """The same with its documents looked up."""
        condition, values = self.condition
        sql = f"SELECT slot FROM images i WHERE slot IS NOT NULL AND {condition}"
        rows = catalog.rows(sql, values)
        return Allowed(few=np.sort(np.array([row[0] for row in rows], np.int64)))


class Matches:
    """Where the words of a query occur, in what people and what models wrote, and its tags.

    Everything is looked up where it is first needed: counting a word takes as long as a scan of the
    codes, which goes on meanwhile.
    """

    def __init__(
        self, catalog: SqliteCatalog, query: EncodedQuery, documents: int, known: WordCounts
    ) -> None:
        self._catalog, self._query = catalog, query
        self._documents, self._known = documents, known
        self.tags = TagMatches(catalog, query.concepts)

    @cached_property
    def words(self) -> WordMatches:
        """In what people wrote."""
        return self._match(PEOPLES)

    @cached_property
    def generated(self) -> WordMatches:
        """In what models wrote."""
        return self._match(GENERATED)

    @cached_property
    def numbers(self) -> Mapping[int, int]:
        """Of the documents with rare words, by slot."""
        numbers = sorted({*self.words.weights, *self.generated.weights})
        sql = "SELECT slot, number FROM images WHERE slot IS NOT NULL AND "
        return dict(self._catalog.rows(sql + within("number", numbers)) if numbers else ())

    def _match(self, table: str) -> WordMatches:
        return match(self._catalog, self._query.words, self._documents, self._known, table)

    def worded(self) -> Slots:
        """The documents with rare words."""
        return np.array(sorted(self.numbers), np.int64)

    def coverage(self, words: WordMatches, slots: Iterable[int]) -> Floats:
        """(n,) the share of the query's words that each document has."""
        return np.array([words.coverage(self.numbers.get(slot)) for slot in slots], float)
