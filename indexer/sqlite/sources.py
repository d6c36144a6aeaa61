"""The roots and captions files of an index folder, to let go of one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from capsearch.engine.errors import IndexBusy
from capsearch.engine.records import GENERATED
from capsearch.indexer import thumbnails
from capsearch.indexer.forgetting import Forgettable
from capsearch.indexer.sqlite.catalog import SqliteCatalog, StoredFacets, under
from capsearch.indexer.sqlite.collection import CATALOG, LOCK, read_stats
from capsearch.indexer.sqlite.manifest import Remembered
from capsearch.indexer.sqlite.writer import CatalogWriter

_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"
# Images of a root (?1, or from ?2 to ?3) that have a file nowhere else.
_ONLY_THERE = (
    "SELECT image_id FROM files GROUP BY image_id "
    "HAVING count(*) = sum(path = ?1 OR (path >= ?2 AND path < ?3))"
)


@contextmanager
def opened_sources(index: Path) -> Iterator[EmbeddedSources]:
    """Those of an index, for its one writer; its model is not needed.

    IndexMissing where there is none, IndexBusy while another process writes.
    """
    read_stats(index)  # IndexMissing
    lock = FileLock(index / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise IndexBusy(f"another capsearch is writing to {index}; wait until it is done") from None
    try:
        catalog = SqliteCatalog(index / CATALOG, write=True)
        try:
            yield EmbeddedSources(catalog, index)
        finally:
            catalog.close()
    finally:
        lock.release()


class EmbeddedSources:
    """indexer.forgetting.Sources over a catalog that is open for writing."""

    def __init__(self, catalog: SqliteCatalog, index: Path) -> None:
        self._catalog, self._index = catalog, index
        self._writer, self._remembered = CatalogWriter(catalog), Remembered(catalog)

    def roots(self) -> Collection[Path]:
        """The folders indexed so far."""
        return self._catalog.roots()

    def captions_files(self) -> Collection[Path]:
        """The captions files read so far."""
        return self._remembered.captions_files()

    def root(self, path: Path) -> Forgettable:
        """What would go with a root."""
        bounds = (str(path), *under(path))
        [(images,)] = self._catalog.rows(f"SELECT count(*) FROM ({_ONLY_THERE})", bounds)
        sql = f"SELECT count(*) FROM captions WHERE {_BY_PEOPLE} AND image_id IN ({_ONLY_THERE})"
        return Forgettable(path, images, int(self._catalog.rows(sql, bounds)[0][0]))

    def captions_file(self, path: Path) -> Forgettable:
        """What would go with a captions file."""
        sql = "SELECT count(*) FROM captions WHERE origin = ? AND source IN ('csv', 'coco')"
        return Forgettable(path, 0, int(self._catalog.rows(sql, (str(path),))[0][0]))

    def forget_root(self, path: Path) -> None:
        """One transaction; then facets and thumbnails follow."""
        with self._writer.transaction():
            self._remembered.forget_root(path)
        self._clean()

    def forget_captions_file(self, path: Path) -> None:
        """One transaction; then facets follow."""
        with self._writer.transaction():
            self._remembered.forget_captions_file(path)
        self._clean()

    def _clean(self) -> None:
        StoredFacets(self._writer).refresh()
        thumbnails.prune(self._index, self._catalog)
