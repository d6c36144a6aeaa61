"""A run of the pipeline on an index folder: vector files first, then one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from capsearch.indexer import thumbnails
from capsearch.indexer.pipeline import encode_captions, fields_of, record_of
from capsearch.indexer.prepare import Outcome, Prepared
from capsearch.indexer.sources.captions import NamedCaption
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite import rebuilding
from capsearch.indexer.sqlite import rebuilding as maintenance
from capsearch.indexer.sqlite.catalog import StoredFacets
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.enriched import EmbeddedDescriptions
from capsearch.indexer.sqlite.manifest import Identity, Remembered
from capsearch.indexer.sqlite.matches import update_words
from capsearch.indexer.sqlite.writer import CatalogWriter, PendingCaption
from capsearch.indexer.store import EditedSidecars, EncodedImage, FileState, KnownFile

CAPTIONS_A_BATCH = 1024
_KEEP_MISSING = "keep_missing_days"  # meta


class EmbeddedStore:
    """indexer.store.Store over a Collection that is open for writing."""

    def __init__(self, collection: Collection) -> None:
        self._collection, self._catalog = collection, collection.catalog
        self.model, self.path = collection.model, collection.path
        self._plain = CatalogWriter(collection.catalog)
        self._writer = self._plain
        self._rebuild: rebuilding.RebuildWriter | None = None
        self._remembered = Remembered(collection.catalog)
        self._facets = StoredFacets(self._plain)
        self._new_ids: set[str] = set()  # that were not in the catalog when this run began

    # What is known

    def require_same_model(self) -> None:
        """ModelMismatch unless the index was built with the model."""
        self._collection.require_same_model()

    def excludes(self) -> Mapping[Path, tuple[str, ...]]:
        """The roots, with the globs that each leaves out."""
        return self._remembered.excludes()

    def mount_points(self) -> set[Path]:
        """Mount points below the roots."""
        return self._remembered.mount_points()

    def captions_files(self) -> Mapping[Path, FileState]:
        """The captions files read so far."""
        return self._remembered.captions_files()

    def files(self, roots: Sequence[Path]) -> Mapping[str, KnownFile]:
        """The indexed files under `roots`."""
        return self._writer.files(roots)

    def skipped(self, roots: Sequence[Path]) -> Mapping[str, tuple[ImageFile, str]]:
        """The files that were skipped before."""
        return self._writer.skipped(roots)

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
        return self._plain.past_files.count()

    # A run

    @contextmanager
    def writing(self, rebuild: bool) -> Iterator[None]:
        """With `rebuild`, vectors go to the next arrays until `complete`; not if it was the schema
        that had to be rebuilt, and the vectors are the model's."""
        same = self._collection.identity.same_vectors(Identity.of(self.model))
        if rebuild and not (self._collection.converted and same):
            self._writer = self._rebuild = rebuilding.start(self._collection)
        yield

    def remember(
        self, excludes: Mapping[Path, Sequence[str]], mount_points: Sequence[Path]
    ) -> None:
        """Adds roots and mount points."""
        with self._writer.transaction(visible=False):
            self._remembered.add_roots(excludes)
            self._remembered.add_mount_points(mount_points)

    def put(self, new: Sequence[EncodedImage], batch: Sequence[Outcome]) -> int:
        """Appends the vectors, then commits images and files."""
        ids = [one.image.image_id for one in new]
        self._new_ids |= set(ids) - self._writer.ids_among(ids)
        first = self._writer.array("vectors").rows
        tables = {"features": [one.feature for one in new], "vectors": [one.vector for one in new]}
        arrays = [self._writer.array(name).appended(np.stack(rows)) for name, rows in tables.items()
                  if rows]  # fmt: skip
        with self._writer.transaction():
            for array in arrays:
                self._writer.set_array(array)
            added = sum(self._put_image(one.image, slot) for slot, one in enumerate(new, first))
            added += sum(self._put_file(outcome) for outcome in batch)
        self._facets.refresh_now_and_then()
        return added

    def put_sidecars(self, edited: Sequence[EditedSidecars]) -> int:
        """One transaction for all."""
        with self._writer.transaction():
            for one in edited:
                self._writer.metadata.add_tags(one.image_id, one.tags)
            return sum(
                self._writer.put_file(one.file, one.image_id, one.captions) for one in edited
            )

    def put_captions_file(
        self, file: Path, state: FileState, pairs: Sequence[tuple[str, NamedCaption]]
    ) -> int:
        """The captions first; a file is noted when they are there."""
        with self._writer.transaction():
            added = self._writer.replace_named(file, pairs)
        with self._writer.transaction(visible=False):
            self._remembered.put_captions_file(file, state)
        return added

    def remove_files(self, files: Sequence[str], skipped: Sequence[str]) -> None:
        """Removes them; images that have none left are marked."""
        with self._writer.transaction():
            self._writer.remove_files([*files, *skipped])
            self._writer.past_files.mark_missing()

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
        return EmbeddedDescriptions(self._plain, self._make_searchable)

    def complete(self) -> None:
        """Switches to the vectors of a rebuild."""
        if self._rebuild is not None:
            rebuilding.finish(self._collection, self._rebuild)
            self._writer, self._rebuild = self._plain, None

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
            pruned = self._plain.past_files.prune(days)
        if pruned:
            thumbnails.prune(self.path, self._catalog)
        maintenance.compact(self._collection)
        return pruned

    def finish(self) -> None:
        """Refreshes the caches and writes the manifest."""
        self._collection.finish()

    def _make_searchable(self) -> None:
        for _ in self.encode_captions():
            pass
        for _ in self.index_words():
            pass

    def _put_image(self, image: Prepared, slot: int) -> int:
        said = image.metadata
        added = self._writer.put_image(record_of(image), slot, said.captions, said.tags)
        self._writer.metadata.put_fields(image.image_id, fields_of(image))
        return added

    def _put_file(self, outcome: Outcome) -> int:
        file = outcome.file
        if isinstance(outcome, Prepared):
            file = file.without_sidecars() if outcome.problems else file
            new = outcome.image_id in self._new_ids
            return self._writer.put_file(file, outcome.image_id, outcome.sidecar_captions, new)
        if outcome.permanent:
            self._writer.put_skipped(file, outcome.reason)
        return 0

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
