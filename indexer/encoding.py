"""Batches through the models and into the index: arrays first, then one transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from capsearch.encoders.preprocess import DecodedImage
from capsearch.engine.records import ImageRecord, Vectors
from capsearch.indexer.embedded.catalog_writer import CatalogWriter, PendingCaption
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.prepare import Outcome, Prepared

_FILES_A_BATCH = 512  # known and refused files wait for a commit no longer than this
_CAPTIONS_A_BATCH = 1024


class Embedding:
    """Takes prepared files, embeds those that are new, and commits them batch by batch."""

    def __init__(self, collection: Collection, writer: CatalogWriter, batch_size: int) -> None:
        self._collection, self._ledger, self._batch_size = collection, writer, batch_size
        self._waiting: list[Outcome] = []
        self._new: dict[str, Prepared] = {}
        self.added = self.captions_added = 0

    def take(self, one: Outcome) -> None:
        """Adds a file to the batch, which is committed when full."""
        self._waiting.append(one)
        if isinstance(one, Prepared) and one.decoded is not None:
            self._new.setdefault(one.image_id, one)
        if len(self._new) >= self._batch_size or len(self._waiting) >= _FILES_A_BATCH:
            self.flush()

    def flush(self) -> None:
        """Commits what is waiting."""
        if not self._waiting:
            return
        embedded = self._ledger.embedded_ids_among(list(self._new))
        new = {one: file for one, file in self._new.items() if one not in embedded}
        first = self._append([file.decoded for file in new.values() if file.decoded])
        with self._ledger.transaction():
            for name in ("features", "vectors") if new else ():
                self._ledger.set_array(self._arrays[name])
            for slot, file in enumerate(new.values(), start=first):
                self.captions_added += self._put_image(file, slot)
            for one in self._waiting:
                self._put_file(one)
        self.added += len(new)
        self._waiting, self._new = [], {}

    def _append(self, images: Sequence[DecodedImage]) -> int:
        """Features and vectors safely on disk; the row of the first."""
        catalog = self._collection.catalog
        features, vectors = catalog.array("features"), catalog.array("vectors")
        first = features.rows
        if images:
            image = self._collection.model.image
            # Projected from what is stored, so that projecting again later gives the same.
            stored = image.features([one.pixels for one in images]).astype(features.dtype)
            features = features.appended(stored)
            vectors = vectors.appended(image.project(stored.astype(np.float32)))
        self._arrays = {"features": features, "vectors": vectors}
        return first

    def _put_image(self, file: Prepared, slot: int) -> int:
        decoded = file.decoded
        assert decoded is not None  # only new images get here
        record = ImageRecord(
            file.image_id,
            (file.found.path,),
            decoded.width,
            decoded.height,
            file.found.size,
            decoded.format,
            file.taken_at,
        )
        return self._ledger.put_image(record, slot, file.inside.captions, file.inside.tags)

    def _put_file(self, one: Outcome) -> None:
        if isinstance(one, Prepared):
            found = one.found.unsettled() if one.problems else one.found
            self.captions_added += self._ledger.put_file(found, one.image_id, one.sidecar_captions)
        elif one.lasting:
            self._ledger.put_skipped(one.found, one.reason)


class CaptionEncoding:
    """Gives vectors to captions that have none yet."""

    def __init__(self, collection: Collection, writer: CatalogWriter) -> None:
        self._collection, self._ledger = collection, writer
        self._text = collection.model.text

    def waiting(self) -> int:
        """How many captions of languages the model reads have no vector yet."""
        return self._ledger.count_pending(self._text.languages)

    def batches(self) -> Iterator[int]:
        """Encodes and commits batch by batch; yields how many are done."""
        done = 0
        while batch := self._ledger.pending_captions(self._text.languages, _CAPTIONS_A_BATCH):
            self._commit(batch)
            done += len(batch)
            yield done

    def _commit(self, batch: Sequence[PendingCaption]) -> None:
        rows = self._encoded(batch)
        array = self._collection.catalog.array("captions")
        known = [caption for caption in batch if caption.id in rows]
        slots: dict[int, int] = {caption.id: array.rows + at for at, caption in enumerate(known)}
        if known:
            array = array.appended(np.stack([rows[caption.id] for caption in known]))
        with self._ledger.transaction():
            self._ledger.set_array(array)
            self._ledger.set_caption_slots([(one.id, slots.get(one.id)) for one in batch])

    def _encoded(self, batch: Sequence[PendingCaption]) -> dict[int, Vectors]:
        """Vectors by caption id, without those that say nothing the model knows."""
        rows: dict[int, Vectors] = {}
        for language in sorted({caption.language for caption in batch}):
            mine = [caption for caption in batch if caption.language == language]
            encoded = self._text.encode([caption.text for caption in mine], language)
            offered = self._text.as_documents(encoded.caption)
            triples = zip(mine, offered, encoded.known, strict=True)
            rows |= {caption.id: row for caption, row, known in triples if known}
        return rows
