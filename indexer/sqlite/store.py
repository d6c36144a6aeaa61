"""A run of the pipeline on an index folder: vector files first, then one transaction."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from capsearch.engine.protocols import Head
from capsearch.engine.records import Caption, ImageRecord, Vectors
from capsearch.indexer import thumbnails
from capsearch.indexer.changes import (
    DOCUMENTS_AT_ONCE,
    chunks,
)
from capsearch.indexer.identity import Identity
from capsearch.indexer.pipeline import encode_captions
from capsearch.indexer.prepare import Outcome, Refused
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite import rebuilding
from capsearch.indexer.sqlite.catalog import StoredFacets, below
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.matches import update_words
from capsearch.indexer.sqlite.writer import CatalogWriter, PendingCaption
from capsearch.indexer.store import Descriptions, EncodedImage, FileState, KnownFile, Store

CAPTIONS_A_BATCH = 1024
_KEEP_MISSING = "keep_missing_days"  # meta
_HAS_FILE = "EXISTS (SELECT 1 FROM files WHERE image_id = i.id{})"


class EmbeddedStore(Store):
    """A Store over a Collection that is open for writing."""

    def __init__(self, collection: Collection) -> None:
        super().__init__(collection.model, collection.path)
        self._collection, self._catalog = collection, collection.catalog
        self._writer = self._plain = CatalogWriter(collection.catalog)
        self._documents = CatalogDocuments(self._plain)
        self._rebuild: rebuilding.RebuildWriter | None = None
        self._facets = StoredFacets(self._plain)
        self._skipped: Mapping[str, tuple[ImageFile, str]] = {}

    @property
    def documents(self) -> CatalogDocuments:
        """Rows of the catalog."""
        return self._documents

    # What is known

    def require_same_model(self) -> None:
        """ModelMismatch unless the index was built with the model."""
        self._collection.require_same_model()

    def excludes(self) -> Mapping[Path, tuple[str, ...]]:
        """The roots, with the globs that each leaves out."""
        return self._catalog.excludes()

    def mount_points(self) -> set[Path]:
        """Mount points below the roots."""
        return self._catalog.mount_points()

    def captions_files(self) -> Mapping[Path, FileState]:
        """The captions files read so far."""
        return self._catalog.captions_files()

    def files(self, roots: Sequence[Path]) -> Mapping[str, KnownFile]:
        """The indexed files under `roots`."""
        return self._writer.files(roots)

    def skipped(self, roots: Sequence[Path]) -> Mapping[str, tuple[ImageFile, str]]:
        """The files that were skipped before."""
        self._skipped = self._writer.skipped(roots)
        return self._skipped

    def encoded_ids(self) -> set[str]:
        """The ids of all images that have a vector."""
        return self._writer.encoded_ids()

    def encoded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector."""
        return self._writer.encoded_ids_among(ids)

    def image_paths(self) -> Sequence[tuple[str, str]]:
        """(path, image id) of every file."""
        return self._catalog.image_paths()

    def missing(self) -> int:
        """How many images have no file."""
        return self._catalog.missing()

    # A run

    @contextmanager
    def writing(self, rebuild: bool) -> Iterator[None]:
        """With `rebuild`, vectors go to the next arrays until `complete`; not if it was the schema
        that had to be rebuilt, and the vectors are the model's."""
        same = self._collection.identity.same_vectors(Identity.of(self.model))
        if rebuild and not (self._collection.converted and same):
            self._writer = self._rebuild = rebuilding.start(self._collection)
            self._documents = CatalogDocuments(self._writer)
        yield

    def remember(
        self, excludes: Mapping[Path, Sequence[str]], mount_points: Sequence[Path]
    ) -> None:
        """Adds roots and mount points."""
        with self._writer.transaction(visible=False):
            self._writer.add_roots(excludes)
            self._writer.add_mount_points(mount_points)

    def put(self, new: Sequence[EncodedImage], batch: Sequence[Outcome]) -> int:
        """Facets are counted again now and then, too."""
        added = super().put(new, batch)
        self._facets.refresh_now_and_then()
        return added

    def put_skipped(self, refused: Sequence[Refused], read: Sequence[str]) -> None:
        """In the table of skipped files."""
        fine = [path for path in read if path in self._skipped]
        if refused or fine:
            with self._writer.transaction():
                self._writer.put_skipped([(one.file, one.reason) for one in refused])
                self._writer.forget_skipped(fine)

    def forget_skipped(self, paths: Sequence[str]) -> None:
        """From the table of skipped files."""
        with self._writer.transaction():
            self._writer.forget_skipped(paths)

    def captions_of_file(self, origin: str) -> Mapping[str, set[Caption]]:
        """By index: a captions file may have a million."""
        sql = (
            "SELECT image_id, text, language, source FROM captions c WHERE origin = ? "
            "AND EXISTS (SELECT 1 FROM files WHERE image_id = c.image_id)"
        )
        captions: dict[str, set[Caption]] = defaultdict(set)
        for image_id, *columns in self._catalog.rows(sql, (origin,)):
            captions[image_id].add(Caption(*columns))
        return captions

    def note_captions_file(self, file: Path, state: FileState) -> None:
        """In the table of captions files."""
        with self._writer.transaction(visible=False):
            self._writer.put_captions_file(file, state)

    def pending_captions(self) -> int:
        """How many captions are not encoded."""
        return self._writer.count_pending(self.model.text.languages)

    def encode_captions(self) -> Iterator[int]:
        """Encodes and commits batch by batch."""
        done, languages = 0, self.model.text.languages
        while batch := self._writer.pending_captions(languages, CAPTIONS_A_BATCH):
            self._commit(batch)
            done += len(batch)
            yield done

    def index_words(self) -> Iterator[None]:
        """Indexes the words of images that something was written about."""
        yield from update_words(self._writer, self.model.text.words)

    def descriptions(self) -> EmbeddedDescriptions:
        """What models write about the images."""
        return EmbeddedDescriptions(self)

    def complete(self) -> None:
        """Switches to the vectors of a rebuild."""
        if self._rebuild is not None:
            rebuilding.finish(self._collection, self._rebuild)
            self._writer, self._rebuild = self._plain, None
            self._documents = CatalogDocuments(self._plain)

    def keep_days(self, given: float | None) -> float | None:
        """As given now, which is remembered, or before."""
        if given is None:
            stored = self._catalog.meta(_KEEP_MISSING)
            return float(stored) if stored else None
        with self._plain.transaction(visible=False):
            self._plain.set_meta(_KEEP_MISSING, str(given))
        return given

    def prune(self, days: float) -> int:
        """Deletes images and their thumbnails, and drops vector rows if many are unused."""
        with self._plain.transaction():
            pruned = self._plain.prune(days)
        if pruned:
            thumbnails.prune(self.path, self._catalog.ids())
        rebuilding.compact(self._collection)
        return pruned

    def finish(self) -> None:
        """Refreshes the caches and writes the manifest."""
        self._collection.finish()

    def _commit(self, batch: Sequence[PendingCaption]) -> None:
        rows = encode_captions(self.model.text, [(one.text, one.language) for one in batch])
        array = self._writer.array("captions")
        known = [(one, row) for one, row in zip(batch, rows, strict=True) if row is not None]
        slots = {one.id: slot for slot, (one, _) in enumerate(known, start=array.rows)}
        if known:
            array = array.appended(np.stack([row for _, row in known]))
        with self._writer.transaction():
            self._writer.set_array(array)
            self._writer.set_caption_slots([(one.id, slots.get(one.id)) for one in batch])


class EmbeddedDescriptions(Descriptions):
    """Descriptions of an index folder."""

    def __init__(self, store: EmbeddedStore) -> None:
        super().__init__(store.documents)
        self._store = store
        self._catalog = store.documents.writer.catalog

    def count(self, head: Head, name: str, folders: Sequence[str] = ()) -> int:
        """How many images with a vector and a file the model called `name` has not described."""
        condition, values = _pending(head, name, folders)
        sql = f"SELECT count(*) FROM images i WHERE {condition}"
        return int(self._catalog.rows(sql, values)[0][0])

    def pending(
        self, head: Head, name: str, folders: Sequence[str], after: str, limit: int
    ) -> list[str]:
        """The next of them by id, after one."""
        condition, values = _pending(head, name, folders)
        sql = f"SELECT id FROM images i WHERE {condition} AND id > ? ORDER BY id LIMIT ?"
        return [row[0] for row in self._catalog.rows(sql, [*values, after, limit])]

    def features(self, ids: Sequence[str]) -> Mapping[str, Vectors]:
        """Rows of the vector file."""
        sql = (
            "SELECT id, slot FROM images "
            "WHERE slot IS NOT NULL AND id IN (SELECT value FROM json_each(?))"
        )
        rows = self._catalog.array("features").view()
        slots = self._catalog.rows(sql, (json.dumps(list(ids)),))
        return {image_id: np.array(rows[slot], np.float32) for image_id, slot in slots}

    def records(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Images by id."""
        return self._catalog.images(ids)

    def described(self, folders: Sequence[str]) -> Iterator[Sequence[str]]:
        """Images that any model has described."""
        file, values = _file_below(folders)
        sql = f"SELECT image_id FROM enriched JOIN images i ON i.id = image_id WHERE {file}"
        yield from chunks((row[0] for row in self._catalog.rows(sql, values)), DOCUMENTS_AT_ONCE)

    def make_searchable(self) -> None:
        """Encodes captions, and indexes words."""
        for _ in self._store.encode_captions():
            pass
        for _ in self._store.index_words():
            pass


def _pending(head: Head, name: str, folders: Sequence[str]) -> tuple[str, list[object]]:
    """A condition on images `i` with a vector and a file below these folders."""
    file, values = _file_below(folders)
    done = f"EXISTS (SELECT 1 FROM enriched e WHERE e.image_id = i.id AND e.{head} = ?)"
    return f"slot IS NOT NULL AND {file} AND NOT {done}", [*values, name]


def _file_below(folders: Sequence[str]) -> tuple[str, list[object]]:
    """A condition on images `i` that have a file, in one of these folders if any are given."""
    if not folders:
        return _HAS_FILE.format(""), []
    condition, values = below(folders)
    return _HAS_FILE.format(f" AND {condition}"), values
