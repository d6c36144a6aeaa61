"""The embedded backend: candidates from vector files and words, documents from SQLite."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from capsearch.engine.protocols import Found, Stats
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Document, Facets, Filters, Vectors
from capsearch.indexer.sqlite import catalog as facets
from capsearch.indexer.sqlite.arrays import VectorFileMissing
from capsearch.indexer.sqlite.catalog import MIN_INTERVAL_S, Counted, SqliteCatalog
from capsearch.indexer.sqlite.matches import WordCounts
from capsearch.indexer.sqlite.search import HAS_FILE, Allowed, Matches, OpenArrays, Search

_STALE_S = 60.0  # a count of a writer that is older and not current is made again
Result = TypeVar("Result")


class EmbeddedBackend:
    """engine.protocols.Backend over an index folder. Threads may share one object."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
        self._arrays: OpenArrays | None = None
        self._opening = threading.Lock()
        self._words = WordCounts()
        self._facets: Counted | None = None
        self._count: tuple[int, int] | None = None

    def __len__(self) -> int:
        revision = self.catalog.revision()
        known = self._count
        if known is None or known[0] != revision:
            known = self._count = (revision, self.catalog.searchable_count())
        return known[1]

    def stats(self) -> Stats:
        """Documents that can be found, and whether any caption has a vector."""
        captioned = self.catalog.rows("SELECT 1 FROM captions WHERE slot IS NOT NULL LIMIT 1")
        return Stats(len(self), bool(captioned))

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """The documents ranked offset + 1 to offset + limit; see engine.protocols."""
        if query.empty:
            return ()

        def page() -> tuple[Found, ...]:
            allowed = Allowed.by(self.catalog, filters, query.phrases, len(self))
            matches = Matches(self.catalog, query, len(self), self._words)
            search = Search(self.catalog, self._open(), query, matches, allowed)
            ranked = search.ranked(offset + limit)
            return search.page(ranked[offset : offset + limit])

        return self._in_snapshot(page)

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; unknown ids are left out."""
        return self.catalog.documents(ids)

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector (D,) of a document, or None."""

        def read() -> Vectors | None:
            sql = f"SELECT slot FROM images i WHERE id = ? AND slot IS NOT NULL AND {HAS_FILE}"
            rows = self.catalog.rows(sql, (image_id,))
            return np.array(self._open().images[rows[0][0]], np.float32) if rows else None

        return self._in_snapshot(read)

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """By the date they were taken, latest first, undated last; ties by id."""
        with self.catalog.snapshot():
            ids = self.catalog.newest(filters, limit, offset)
            found = self.catalog.documents(ids)
        return tuple(found[one] for one in ids)

    def facets(self) -> Facets:
        """What the documents can be filtered by, as a writer last counted it.

        A count that is being made again by a running writer may be some seconds old. Without a
        writer's count, it is made here, not more than once in some seconds.
        """
        revision, known, now = self.catalog.revision(), self._facets, time.time()
        if known is not None and (known.revision == revision or now - known.at < MIN_INTERVAL_S):
            return known.facets
        counted = facets.stored(self.catalog)
        if counted is None or (counted.revision != revision and now - counted.at > _STALE_S):
            counted = Counted(facets.facets(self.catalog), revision, time.time())
        self._facets = counted
        return counted.facets

    def _in_snapshot(self, read: Callable[[], Result]) -> Result:
        """What `read` finds in one state of the catalog.

        Compaction may delete the vector files of a state between its reading and their opening;
        then there is a newer state that names others. If there is none, a file is really missing.
        """
        files = None
        while True:
            try:
                with self.catalog.snapshot():
                    return read()
            except VectorFileMissing:
                before, files = (
                    files,
                    (self.catalog.array("vectors"), self.catalog.array("captions")),
                )
                if files == before:
                    raise

    def _open(self) -> OpenArrays:
        """The vector files as the snapshot has them; call inside one."""
        with self._opening:
            self._arrays = OpenArrays.of(self.catalog, self._arrays)
            return self._arrays
