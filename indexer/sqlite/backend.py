"""The embedded backend: candidates from vector files and words, documents from SQLite."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from capsearch.engine.protocols import Found, Stats
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Document, Facets, Filters, Vectors
from capsearch.indexer.sqlite import catalog as facets
from capsearch.indexer.sqlite.arrays import VectorFileMissing
from capsearch.indexer.sqlite.catalog import MIN_INTERVAL_S, Counted, SqliteCatalog, State
from capsearch.indexer.sqlite.search import HAS_FILE, Allowed, Revision, Search

_STALE_S = 60.0  # a count of a writer that is older and not current is made again
Result = TypeVar("Result")


class EmbeddedBackend:
    """engine.protocols.Backend over an index folder. Threads may share one object."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
        self._revision: Revision | None = None
        self._facets: Counted | None = None
        self._count: tuple[int, int] = (-1, 0)  # of documents, and the revision that has so many

    def __len__(self) -> int:
        return self.stats().documents

    def stats(self) -> Stats:
        """Documents that can be found, and whether any caption has a vector."""
        state = self.catalog.state()
        return Stats(self.documents(state), state.captioned)

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """The documents ranked offset + 1 to offset + limit; see engine.protocols."""
        if query.empty:
            return ()

        def page(revision: Revision) -> tuple[Found, ...]:
            documents = self.documents(revision.state)
            allowed = Allowed.by(self.catalog, filters, query.phrases, documents)
            search = Search(self.catalog, revision, query, allowed, documents)
            return search.page(search.ranked(offset + limit)[offset : offset + limit])

        return self._in_snapshot(page)

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; unknown ids are left out."""
        return self.catalog.documents(ids)

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector (D,) of a document, or None."""

        def read(revision: Revision) -> Vectors | None:
            sql = f"SELECT slot FROM images i WHERE id = ? AND slot IS NOT NULL AND {HAS_FILE}"
            rows = self.catalog.rows(sql, (image_id,))
            return np.array(revision.images.rows[rows[0][0]], np.float32) if rows else None

        return self._in_snapshot(read)

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """By the date they were taken, latest first, undated last; ties by id."""
        with self.catalog.snapshot():
            ids = self.catalog.newest(filters, limit, offset)
            documents = self.catalog.documents(ids)
        return tuple(documents[image_id] for image_id in ids)

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

    def documents(self, state: State) -> int:
        """How many documents a search can find; counted once where no writer did."""
        if state.searchable is not None:
            return state.searchable
        if self._count[0] != state.revision:
            self._count = state.revision, self.catalog.searchable_count()
        return self._count[1]

    def _in_snapshot(self, read: Callable[[Revision], Result]) -> Result:
        """What `read` finds in one state of the catalog.

        Compaction may delete the vector files of a state between its reading and their opening;
        then there is a newer state that names others. If there is none, a file is really missing.
        """
        before = None
        while True:
            try:
                with self.catalog.snapshot():
                    return read(self._open(self.catalog.state()))
            except VectorFileMissing:
                files, before = before, self.catalog.state().arrays
                if files == before:
                    raise

    def _open(self, state: State) -> Revision:
        """The revision of a snapshot; a snapshot holds the catalog's lock."""
        if self._revision is None or self._revision.state != state:
            self._revision = Revision(self.catalog, state, self._revision)
        return self._revision
