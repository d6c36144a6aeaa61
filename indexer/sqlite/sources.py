"""The roots and captions files of an index folder, to let go of one."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from capsearch.engine.records import GENERATED
from capsearch.indexer import thumbnails
from capsearch.indexer.changes import Edits
from capsearch.indexer.document import CAPTIONS_FILES
from capsearch.indexer.roots import Forgettable
from capsearch.indexer.sqlite.catalog import SqliteCatalog, StoredFacets, below
from capsearch.indexer.sqlite.collection import CATALOG, read_stats, writers_lock
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.writer import CatalogWriter

_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"
_NAMED = f"origin = ? AND source IN {CAPTIONS_FILES}"


@contextmanager
def opened_sources(index: Path) -> Iterator[EmbeddedSources]:
    """Those of an index, for its one writer; its model is not needed.

    IndexMissing where there is none, IndexBusy while another process writes.
    """
    read_stats(index)  # IndexMissing
    with writers_lock(index):
        catalog = SqliteCatalog(index / CATALOG, write=True)
        try:
            yield EmbeddedSources(catalog, index)
        finally:
            catalog.close()


class EmbeddedSources:
    """indexer.roots.Sources over a catalog that is open for writing."""

    def __init__(self, catalog: SqliteCatalog, index: Path) -> None:
        self._catalog, self._index = catalog, index
        self._writer = CatalogWriter(catalog)
        self._documents = CatalogDocuments(self._writer)

    def roots(self) -> Collection[Path]:
        """The folders indexed so far."""
        return self._catalog.roots()

    def captions_files(self) -> Collection[Path]:
        """The captions files read so far."""
        return self._catalog.captions_files()

    def root(self, path: Path) -> Forgettable:
        """What would go with a root."""
        there, bounds = below([path])
        only_there = f"SELECT image_id FROM files GROUP BY image_id HAVING count(*) = sum({there})"
        [(images,)] = self._catalog.rows(f"SELECT count(*) FROM ({only_there})", bounds)
        sql = f"SELECT count(*) FROM captions WHERE {_BY_PEOPLE} AND image_id IN ({only_there})"
        return Forgettable(path, images, int(self._catalog.rows(sql, bounds)[0][0]))

    def captions_file(self, path: Path) -> Forgettable:
        """What would go with a captions file."""
        sql = f"SELECT count(*) FROM captions WHERE {_NAMED}"
        return Forgettable(path, 0, int(self._catalog.rows(sql, (str(path),))[0][0]))

    def forget_root(self, path: Path) -> None:
        """Images of this root alone are deleted at once, others lose their files there; the root
        goes last, so that one that was stopped can be run again."""
        there, bounds = below([path])
        was_there = (
            f"SELECT image_id FROM files WHERE {there} "
            f"UNION SELECT image_id FROM past_files WHERE {there}"
        )
        elsewhere = f"SELECT 1 FROM files WHERE image_id = images.id AND NOT {there}"
        with self._writer.transaction():
            self._catalog.connection.execute(
                f"DELETE FROM images WHERE id IN ({was_there}) AND NOT EXISTS ({elsewhere})",
                bounds * 3,
            )
        edits = Edits()
        for (image_id,) in self._catalog.rows(was_there, bounds * 2):
            edits.forget_files(image_id, path)
        edits.make_in_parts(self._documents)
        with self._writer.transaction():
            for table in ("skipped", "mount_points", "roots"):
                self._catalog.connection.execute(f"DELETE FROM {table} WHERE {there}", bounds)
        self._clean()

    def forget_captions_file(self, path: Path) -> None:
        """Its captions first."""
        edits, sql = Edits(), f"SELECT DISTINCT image_id FROM captions WHERE {_NAMED}"
        for (image_id,) in self._catalog.rows(sql, (str(path),)):
            edits.forget_captions(image_id, str(path))
        edits.make_in_parts(self._documents)
        with self._writer.transaction(visible=False):
            self._catalog.connection.execute(
                "DELETE FROM captions_files WHERE path = ?", (str(path),)
            )
        self._clean()

    def _clean(self) -> None:
        StoredFacets(self._writer).refresh()
        thumbnails.prune(self._index, self._catalog.ids())
