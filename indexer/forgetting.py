"""Letting go of a root or of a captions file, with what only they brought into the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from capsearch.engine.errors import IndexBusy, IndexProblem
from capsearch.engine.records import GENERATED
from capsearch.indexer.embedded import thumbnails
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.collection import read_stats
from capsearch.indexer.embedded.facets import StoredFacets
from capsearch.indexer.embedded.filters import under
from capsearch.indexer.embedded.own_files import CATALOG, LOCK
from capsearch.indexer.embedded.remembered import Remembered

_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"
# Images of a root (?1, or from ?2 to ?3) that have a file nowhere else.
_ONLY_THERE = (
    "SELECT image_id FROM files GROUP BY image_id "
    "HAVING count(*) = sum(path = ?1 OR (path >= ?2 AND path < ?3))"
)


@dataclass(frozen=True, slots=True)
class Forgettable:
    """A root or a captions file, and what would leave the index with it."""

    path: Path
    images: int
    captions: int  # written by people


@contextmanager
def opened_for_forgetting(index: Path) -> Iterator[SqliteCatalog]:
    """The catalog of an index, for its one writer; its model is not needed.

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
            yield catalog
        finally:
            catalog.close()
    finally:
        lock.release()


def forget(
    catalog: SqliteCatalog, index: Path, path: Path, confirm: Callable[[Forgettable], bool]
) -> Forgettable | None:
    """Lets go of a root or a captions file if `confirm` agrees; None if it does not.

    IndexProblem for a path that is neither.
    """
    writer, remembered = CatalogWriter(catalog), Remembered(catalog)
    path = path.expanduser().resolve()
    delete: Callable[[Path], None] = remembered.forget_root
    if path in catalog.roots():
        known = _root(catalog, path)
    elif path in remembered.captions_files():
        known, delete = _captions_file(catalog, path), remembered.forget_captions_file
    else:
        raise _unknown(catalog, path)
    if not confirm(known):
        return None
    with writer.transaction():
        delete(path)
    StoredFacets(writer).refresh()
    thumbnails.prune(index, catalog)
    return known


def _root(catalog: SqliteCatalog, root: Path) -> Forgettable:
    bounds = (str(root), *under(root))
    [(images,)] = catalog.rows(f"SELECT count(*) FROM ({_ONLY_THERE})", bounds)
    sql = f"SELECT count(*) FROM captions WHERE {_BY_PEOPLE} AND image_id IN ({_ONLY_THERE})"
    return Forgettable(root, images, int(catalog.rows(sql, bounds)[0][0]))


def _captions_file(catalog: SqliteCatalog, path: Path) -> Forgettable:
    sql = "SELECT count(*) FROM captions WHERE origin = ? AND source IN ('csv', 'coco')"
    return Forgettable(path, 0, int(catalog.rows(sql, (str(path),))[0][0]))


def _unknown(catalog: SqliteCatalog, path: Path) -> IndexProblem:
    roots = ", ".join(str(root) for root in catalog.roots()) or "none"
    if any(root in path.parents for root in catalog.roots()):
        return IndexProblem(
            f"{path} is inside an indexed folder; leave it out with `capsearch index --exclude`"
        )
    return IndexProblem(f"{path} was not indexed; the indexed folders are: {roots}")
