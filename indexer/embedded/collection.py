"""One index directory: catalog.sqlite, vector files, manifest.json, and caches.

The catalog is authoritative. The vector files are described in `arrays`; manifest.json shows people
which model the catalog names; `*.codes`, `*.images` and thumbnails/ are caches that may be deleted
at any time.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from platformdirs import user_data_path

from capsearch.encoders import concepts, models
from capsearch.encoders.models import Model
from capsearch.engine.errors import IndexBusy, IndexEmpty, IndexMissing, ModelMismatch
from capsearch.engine.records import Filters
from capsearch.engine.search import SearchEngine
from capsearch.indexer.closing import Closing
from capsearch.indexer.embedded import caption_images, codes, manifest
from capsearch.indexer.embedded.arrays import ARRAY_TYPES, VectorFile
from capsearch.indexer.embedded.backend import EmbeddedBackend
from capsearch.indexer.embedded.catalog import SEARCHABLE, SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.disk import writing
from capsearch.indexer.embedded.facets import StoredFacets
from capsearch.indexer.embedded.manifest import Identity
from capsearch.indexer.embedded.own_files import (
    CATALOG,
    LOCK,
    remove_unreferenced,
    require_own_folder,
)
from capsearch.indexer.embedded.stats import THUMBNAILS, CollectionStats, measure

if TYPE_CHECKING:
    from capsearch.indexer.store import Store

__all__ = [
    "CATALOG",
    "THUMBNAILS",
    "Collection",
    "CollectionStats",
    "default_index_path",
    "read_stats",
]
# The field of Identity with the width of each vector file. Captions are float16: there are many,
# and their vectors are only ranked.
_WIDTHS = {
    "features": "feature_dimension", "vectors": "dimension", "captions": "caption_dimension",
}  # fmt: skip


class Collection(Closing):
    """An index on disk, open for searching, or for writing by one process at a time."""

    def __init__(
        self, path: Path, model: Model, catalog: SqliteCatalog, lock: FileLock | None
    ) -> None:
        self.path, self.model, self.catalog = path, model, catalog
        self._lock = lock
        self.backend = EmbeddedBackend(catalog)

    @classmethod
    def open(cls, path: Path, model: Model | None = None) -> Collection:
        """Opens an index for searching, with its own model unless another is given.

        IndexMissing when there is no index at `path`, SchemaTooNew when a newer capsearch wrote
        it, ModelMismatch when it was built with another model.
        """
        if not (path / CATALOG).is_file():
            raise _missing(path)
        catalog = SqliteCatalog(path / CATALOG)
        try:
            identity = _identity(catalog)
            if identity is None:
                raise _missing(path)
            collection = cls(path, model or models.load(identity.source), catalog, None)
            collection.require_same_model()
        except BaseException:
            catalog.close()
            raise
        return collection

    @classmethod
    def create(cls, path: Path, model: Model | None = None) -> Collection:
        """Opens an index for writing, and creates it if there is none.

        `model` defaults to the one the index was built with, or for a new index to the default
        model. With another model, `pipeline.index` raises ModelMismatch unless it rebuilds.
        IndexBusy while another process writes, NotAnIndex for a folder that holds other things.
        """
        require_own_folder(path)
        with writing(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = FileLock(path / LOCK, timeout=0)
            try:
                lock.acquire()
            except Timeout:
                raise IndexBusy(
                    f"another capsearch is writing to {path}; wait until it is done, or stop it"
                ) from None
        try:
            return cls._writer(path, model, lock)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _writer(cls, path: Path, model: Model | None, lock: FileLock) -> Collection:
        catalog = SqliteCatalog(path / CATALOG, write=True)
        try:
            identity = _identity(catalog)
            model = model or models.load(identity.source if identity else None)
            collection = cls(path, model, catalog, lock)
            collection._prepare(new=identity is None)
        except BaseException:
            catalog.close()
            raise
        return collection

    @property
    def identity(self) -> Identity:
        """The model this index was built with, which may differ from `model`."""
        identity = _identity(self.catalog)
        assert identity is not None  # open and create made sure of it
        return identity

    def require_same_model(self) -> None:
        """ModelMismatch unless this index was built with `model`."""
        made, this = self.identity, Identity.of(self.model)
        if not made.same_vectors(this):
            same = made.same_backbone(this)
            work = "images are not encoded again" if same else "every image is encoded again"
            other = "" if made.model == this.model else f" or search with --model {made.source}"
            raise ModelMismatch(
                f"{self.path} was built with {made}, this is {this}; run "
                f"`capsearch index --model {this.source} --rebuild` ({work}){other}"
            )

    def image_paths(self, filters: Filters) -> Sequence[tuple[str, str]]:
        """(first path, id) of the images that pass filters and have a file, sorted."""
        first = {image_id: path for path, image_id in reversed(self.catalog.image_paths())}
        return sorted((first[image_id], image_id) for (image_id,) in self.catalog.select(filters))

    def for_writing(self) -> Collection:
        """The same collection, opened for writing; IndexBusy while another process writes."""
        return Collection.create(self.path, self.model)

    def engine(self) -> SearchEngine:
        """A search engine over the current state of the index; IndexEmpty when it has no images."""
        self.require_same_model()
        if not len(self.backend):
            advice = "add some with `capsearch index FOLDER`"
            raise IndexEmpty(f"the index at {self.path} holds no images; {advice}")
        return SearchEngine(self.backend, self.model.image, self.model.text)

    def store(self) -> Store:
        """For one run of the pipeline; the index is open for writing."""
        from capsearch.indexer.embedded.store import EmbeddedStore  # a search needs no Pillow

        return EmbeddedStore(self)

    def roots(self) -> tuple[Path, ...]:
        """The folders indexed so far, sorted."""
        return self.catalog.roots()

    def stats(self) -> CollectionStats:
        """Counts, the model, and bytes on disk."""
        return measure(self.path, self.catalog, self.identity)

    def finish(self) -> None:
        """Ends a run: sets the time of the update, refreshes the caches, writes the manifest."""
        writer = CatalogWriter(self.catalog)
        if writer.metadata.linked_with() != concepts.version():
            with writer.transaction():
                writer.metadata.link()
        with writer.transaction(visible=False):
            writer.set_meta("updated_at", manifest.now())
            count = self.catalog.searchable_count()
            writer.set_meta(SEARCHABLE, f"{self.catalog.revision()} {count}")
        StoredFacets(writer).refresh()
        for name in ("vectors", "captions"):
            codes.refresh(self.catalog.array(name))
        caption_images.refresh(self.catalog)
        self._write_manifest()

    def close(self) -> None:
        """Closes the catalog and releases the writer's lock."""
        self.catalog.close()
        if self._lock is not None:
            self._lock.release()

    def _prepare(self, new: bool) -> None:
        """Creates the tables of a new index, and removes what a killed writer left behind."""
        if new:
            writer, moment = CatalogWriter(self.catalog), manifest.now()
            identity = Identity.of(self.model)
            with writer.transaction():
                for array in empty_arrays(self.path, identity):
                    writer.set_array(array)
                writer.set_meta("created_at", moment)
                writer.set_meta("updated_at", moment)
                writer.set_meta("model", identity.text())
        self._remember_path()
        remove_unreferenced(self.path, self.catalog)
        for array in self.catalog.arrays():
            array.trim()
        self._write_manifest()

    def _remember_path(self) -> None:
        """Notes where the model of this index is now, if that has changed."""
        made, this = self.identity, Identity.of(self.model)
        if made.same_vectors(this) and made.source != this.source:
            writer = CatalogWriter(self.catalog)
            with writer.transaction(visible=False):
                writer.set_meta("model", this.text())

    def _write_manifest(self) -> None:
        created, updated = self.catalog.meta("created_at"), self.catalog.meta("updated_at")
        manifest.write(self.path, self.identity, created or "", updated or "")


def read_stats(path: Path) -> CollectionStats:
    """The statistics of an index without opening its model, which may be missing."""
    if not (path / CATALOG).is_file():
        raise _missing(path)
    catalog = SqliteCatalog(path / CATALOG)
    try:
        identity = _identity(catalog)
        if identity is None:
            raise _missing(path)
        return measure(path, catalog, identity)
    finally:
        catalog.close()


def default_index_path() -> Path:
    """$CAPSEARCH_INDEX if set, else "default" in the user's data directory."""
    chosen = os.environ.get("CAPSEARCH_INDEX")
    return Path(chosen).expanduser() if chosen else user_data_path("capsearch") / "default"


def empty_arrays(folder: Path, identity: Identity, generation: int = 1) -> list[VectorFile]:
    """Empty vector files of the widths that a model needs."""
    return [
        VectorFile(folder, name, generation, dtype, getattr(identity, _WIDTHS[name]), 0)
        for name, dtype in ARRAY_TYPES.items()
    ]


def _identity(catalog: SqliteCatalog) -> Identity | None:
    if not catalog.rows("SELECT 1 FROM sqlite_master WHERE name = 'meta'"):
        return None
    text = catalog.meta("model")
    return Identity.parse(text) if text else None


def _missing(path: Path) -> IndexMissing:
    return IndexMissing(
        f"no index at {path}; make one with `capsearch index FOLDER`, or name another with --index"
    )
