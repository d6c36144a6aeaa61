"""One index directory: catalog.sqlite, vector files, manifest.json, and caches.

The catalog is authoritative. The vector files are described in `arrays`; manifest.json shows people
which model the catalog names; `*.codes`, `*.images` and thumbnails/ are caches that may be deleted
at any time.

Which files in an index folder are the index's own: only these are ever deleted.

Statistics of an index: counts, models, and bytes on disk.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from platformdirs import user_data_path

from capsearch.encoders import atomic
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import (
    IndexBusy,
    IndexEmpty,
    IndexMissing,
    IndexProblem,
    ModelMismatch,
    NotAnIndex,
)
from capsearch.engine.records import Filters
from capsearch.engine.search import SearchEngine
from capsearch.indexer.document import now
from capsearch.indexer.identity import Identity
from capsearch.indexer.sqlite import matches, nearest
from capsearch.indexer.sqlite.arrays import ARRAY_TYPES, CODES, IMAGES, SUFFIXES, VectorFile
from capsearch.indexer.sqlite.backend import EmbeddedBackend
from capsearch.indexer.sqlite.catalog import SEARCHABLE, SqliteCatalog, StoredFacets
from capsearch.indexer.sqlite.schema import SCHEMA, convert
from capsearch.indexer.sqlite.writer import CatalogWriter
from capsearch.indexer.store import Closing
from capsearch.indexer.thumbnails import THUMBNAILS

if TYPE_CHECKING:
    from capsearch.indexer.store import Store


CATALOG, LOCK, MANIFEST = "catalog.sqlite", "writer.lock", "manifest.json"
# What a process that was killed while it created an index leaves, and what systems put anywhere.
_BEFORE_THE_CATALOG = frozenset(
    {LOCK, f"{CATALOG}-wal", f"{CATALOG}-shm", f"{CATALOG}-journal"}
    | {"lost+found", ".DS_Store", "Thumbs.db", "desktop.ini"}
)
_VECTOR_FILE = re.compile(r"(?P<name>[a-z]+)-(?P<generation>[1-9]\d{0,8})(?P<suffix>\.[a-z0-9]+)")


def require_own_folder(folder: Path) -> None:
    """NotAnIndex for a folder that holds anything but an index; one that is not there will do."""
    if not folder.exists() or (folder / CATALOG).is_file():
        return
    strange = sorted(path.name for path in folder.iterdir() if path.name not in _BEFORE_THE_CATALOG)
    if strange:
        shown = ", ".join(strange[:3]) + (", ..." if len(strange) > 3 else "")
        raise NotAnIndex(
            f"{folder} is neither empty nor an index: it holds {shown}; an index needs a folder of "
            f"its own, as in --index {folder / 'capsearch.index'}"
        )


def remove_unreferenced(folder: Path, catalog: SqliteCatalog) -> None:
    """Deletes old generations of vector files, their caches, and temporary files of a killed
    writer; nothing that this index did not write."""
    current = {
        path.name
        for array in catalog.arrays()
        for path in (array.path, array.codes_path, array.images_path)
    }
    latest = {name: catalog.last_generation(name) for name in ARRAY_TYPES}
    for path in _own(folder, latest):
        if path.name not in current:
            with suppress(OSError):  # on Windows, open in a reader: the next writer retries
                path.unlink()


def _own(folder: Path, latest: dict[str, int]) -> Iterator[Path]:
    """Vector files up to the generation that a killed writer may have begun; temporary files."""
    for path in folder.iterdir():
        target = atomic.target_name(path.name)
        if _is_vector_file(target or path.name, latest) or target == MANIFEST:
            yield path


def _is_vector_file(file_name: str, latest: dict[str, int]) -> bool:
    match = _VECTOR_FILE.fullmatch(file_name)
    if match is None or match["name"] not in latest:
        return False
    suffixes = (
        SUFFIXES[ARRAY_TYPES[match["name"]]],
        CODES,
        IMAGES,
        ".faiss",
    )  # older versions: .faiss
    return match["suffix"] in suffixes and int(match["generation"]) <= latest[match["name"]] + 1


_PARTS = ("catalog", "features", "vectors", "captions", THUMBNAILS, "cache")


@dataclass(frozen=True, slots=True)
class CollectionStats:
    """Counts of an index's contents, its bytes on disk, and the model it was built with."""

    images: int
    files: int
    captions: int
    captions_by_language: Mapping[str, int]
    captions_by_source: Mapping[str, int]
    tags: int
    skipped: int
    roots: tuple[str, ...]
    bytes_on_disk: Mapping[str, int]
    model: str
    model_digest: str
    backbone: str
    backbone_digest: str
    schema: int
    created_at: str
    updated_at: str
    model_path: str | None  # of a model that was given by path
    missing: int  # images without a file, which are kept for a while
    excludes: Mapping[str, tuple[str, ...]]  # globs of each root
    captions_files: tuple[str, ...]  # read again in every run


def measure(path: Path, catalog: SqliteCatalog, identity: Identity) -> CollectionStats:
    """Counts the rows of the catalog and the bytes of the files in `path`."""

    def count(table: str) -> int:
        return int(catalog.rows(f"SELECT count(*) FROM {table}")[0][0])

    return CollectionStats(
        images=count("images i WHERE EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"),
        files=count("files"),
        captions=count("captions"),
        captions_by_language=_by(catalog, "captions", "language"),
        captions_by_source=_by(catalog, "captions", "source"),
        tags=count("tags"),
        skipped=count("skipped"),
        roots=tuple(str(root) for root in catalog.roots()),
        bytes_on_disk=_sizes(path),
        model=identity.model,
        model_digest=identity.digest,
        backbone=identity.backbone,
        backbone_digest=identity.backbone_digest,
        schema=SCHEMA,
        created_at=catalog.meta("created_at") or "",
        updated_at=catalog.meta("updated_at") or "",
        model_path=identity.path,
        missing=catalog.missing(),
        excludes={str(root): globs for root, globs in catalog.excludes().items() if globs},
        captions_files=tuple(str(path) for path in catalog.captions_files()),
    )


def _by(catalog: SqliteCatalog, table: str, column: str) -> dict[str, int]:
    """The number of rows for each value of a column, the most frequent value first."""
    sql = f"SELECT {column}, count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC, 1"
    return dict(catalog.rows(sql))


def _sizes(path: Path) -> dict[str, int]:
    sizes = dict.fromkeys(_PARTS, 0)
    for file in path.rglob("*"):
        if file.is_file():
            sizes[_part(file.relative_to(path))] += file.stat().st_size
    return sizes


def _part(file: Path) -> str:
    """The entry of _PARTS for a file such as thumbnails/..., catalog.sqlite-wal, vectors-1.f32."""
    if file.suffix in (CODES, IMAGES):
        return "cache"
    first = file.parts[0].split("-")[0].removesuffix(".sqlite")
    return first if first in _PARTS else "cache"


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
        self.converted = False  # the catalog has just been copied out of an older schema
        self.backend = EmbeddedBackend(catalog)

    @classmethod
    def open(cls, path: Path, model: Model | None = None) -> Collection:
        """Opens an index for searching, with its own model unless another is given.

        IndexMissing when there is no index at `path`, SchemaTooNew or SchemaTooOld when another
        capsearch wrote it, ModelMismatch when it was built with another model.
        """
        if not (path / CATALOG).is_file():
            raise _missing(path)
        catalog = SqliteCatalog(path / CATALOG)
        try:
            identity = _identity(catalog)
            if identity is None:
                raise _missing(path)
            collection = cls(path, model or registry.load(identity.source), catalog, None)
            collection._require(identity)
        except BaseException:
            catalog.close()
            raise
        return collection

    @classmethod
    def create(cls, path: Path, model: Model | None = None, rebuild: bool = False) -> Collection:
        """Opens an index for writing, and creates it if there is none.

        `model` defaults to the one the index was built with, or for a new index to the default
        model. With another model, `pipeline.index` raises ModelMismatch unless it rebuilds; an
        index of an older schema is SchemaTooOld unless it is opened to `rebuild` it.
        IndexBusy while another process writes, NotAnIndex for a folder that holds other things.
        """
        require_own_folder(path)
        with atomic.writing(path):
            path.mkdir(parents=True, exist_ok=True)
            lock = writers_lock(path)
        try:
            converted = rebuild and (path / CATALOG).is_file() and convert(path / CATALOG)
            return cls._writer(path, model, lock, converted)
        except BaseException:
            lock.release()
            raise

    @classmethod
    def _writer(
        cls, path: Path, model: Model | None, lock: FileLock, converted: bool
    ) -> Collection:
        catalog = SqliteCatalog(path / CATALOG, write=True)
        try:
            identity = _identity(catalog)
            model = model or registry.load(identity.source if identity else None)
            collection = cls(path, model, catalog, lock)
            collection.converted = converted
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
        self._require(self.identity)

    def _require(self, made: Identity) -> None:
        this = Identity.of(self.model)
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

    def engine(self) -> SearchEngine:
        """A search engine over the current state of the index; IndexEmpty when it has no images."""
        state = self.catalog.state()
        assert state.model is not None  # open and create made sure of it
        self._require(Identity.parse(state.model))
        if not self.backend.documents(state):
            advice = "add some with `capsearch index FOLDER`"
            raise IndexEmpty(f"the index at {self.path} holds no images; {advice}")
        return SearchEngine(self.backend, self.model.image, self.model.text)

    def store(self) -> Store:
        """For one run of the pipeline; the index is open for writing."""
        from capsearch.indexer.sqlite.store import EmbeddedStore

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
        with writer.transaction():
            writer.link_tags()
        with writer.transaction(visible=False):
            writer.set_meta("updated_at", now())
            count = self.catalog.searchable_count()
            writer.set_meta(SEARCHABLE, f"{self.catalog.revision()} {count}")
        StoredFacets(writer).refresh()
        for name in ("vectors", "captions"):
            nearest.refresh(self.catalog.array(name))
        matches.refresh(self.catalog)
        self._write_manifest()

    def close(self) -> None:
        """Closes the catalog and releases the writer's lock."""
        self.catalog.close()
        if self._lock is not None:
            self._lock.release()

    def _prepare(self, new: bool) -> None:
        """Creates the tables of a new index, and removes what a killed writer left behind."""
        if new:
            writer, moment = CatalogWriter(self.catalog), now()
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
        """Called last, so that it only describes whole indexes."""
        identity = self.identity
        content = {
            "schema": SCHEMA,
            "model": {
                "name": identity.model,
                "digest": identity.digest,
                **({"path": identity.path} if identity.path else {}),
            },
            "backbone": {"name": identity.backbone, "digest": identity.backbone_digest},
            "dimensions": {
                "feature": identity.feature_dimension,
                "image": identity.dimension,
                "caption": identity.caption_dimension,
            },
            "created_at": self.catalog.meta("created_at") or "",
            "updated_at": self.catalog.meta("updated_at") or "",
        }
        with atomic.writing(self.path / MANIFEST):
            text = json.dumps(content, indent=2, ensure_ascii=False)
            atomic.write_text(self.path / MANIFEST, text)


def writers_lock(index: Path) -> FileLock:
    """The lock of the one writer of an index, acquired; IndexBusy while another has it."""
    lock = FileLock(index / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise IndexBusy(
            f"another capsearch is writing to {index}; wait until it is done, or stop it"
        ) from None
    return lock


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
    try:
        text = catalog.meta("model")
    except IndexProblem:
        if catalog.rows("SELECT 1 FROM sqlite_master"):
            raise
        return None  # an empty database: a writer was killed before it made the tables
    return Identity.parse(text) if text else None


def _missing(path: Path) -> IndexMissing:
    return IndexMissing(
        f"no index at {path}; make one with `capsearch index FOLDER`, or name another with --index"
    )
