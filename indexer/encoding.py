"""Encoding images and captions in batches: vector files are written first, then the catalog."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from capsearch.encoders.preprocess import DecodedImage
from capsearch.engine.records import TAKEN_FROM, ImageRecord, Vectors
from capsearch.indexer.embedded.catalog_writer import CatalogWriter, PendingCaption
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.prepare import Outcome, Prepared

_MAX_FILES_PER_BATCH = 512  # or the batch size; known and refused files count, too
_CAPTIONS_PER_BATCH = 1024


class ImageEncoding:
    """Collects prepared files, encodes new images, and commits them batch by batch."""

    def __init__(self, collection: Collection, writer: CatalogWriter, batch_size: int) -> None:
        self._collection, self._writer, self._batch_size = collection, writer, batch_size
        self._batch: list[Outcome] = []
        self._new: dict[str, Prepared] = {}
        self._unknown: set[str] = set()  # ids that were not in the catalog when this run began
        self.added = self.captions_added = 0

    def add(self, outcome: Outcome) -> None:
        """Adds a file to the batch; a full batch is encoded and committed."""
        self._batch.append(outcome)
        if isinstance(outcome, Prepared) and outcome.decoded is not None:
            self._new.setdefault(outcome.image_id, outcome)
        max_files = max(self._batch_size, _MAX_FILES_PER_BATCH)
        if len(self._new) >= self._batch_size or len(self._batch) >= max_files:
            self.flush()

    def flush(self) -> None:
        """Encodes and commits the batch."""
        if not self._batch:
            return
        encoded = self._writer.encoded_ids_among(list(self._new))
        new = [image for image_id, image in self._new.items() if image_id not in encoded]
        self._unknown |= set(self._new) - self._writer.ids_among(list(self._new))
        first = self._append([image.decoded for image in new if image.decoded])
        with self._writer.transaction():
            for name in ("features", "vectors") if new else ():
                self._writer.set_array(self._arrays[name])
            for slot, image in enumerate(new, start=first):
                self.captions_added += self._put_image(image, slot)
            for outcome in self._batch:
                self._put_file(outcome)
        self.added += len(new)
        self._batch, self._new = [], {}

    def _append(self, images: Sequence[DecodedImage]) -> int:
        """Encodes images and writes their features and vectors to disk; the row of the first."""
        features, vectors = self._writer.array("features"), self._writer.array("vectors")
        first = features.rows
        if images:
            encoder = self._collection.model.image
            # Projected from the float16 features on disk: maintenance.rebuild must get the same.
            stored = encoder.features([image.pixels for image in images]).astype(features.dtype)
            features = features.appended(stored)
            vectors = vectors.appended(encoder.project(stored.astype(np.float32)))
        self._arrays = {"features": features, "vectors": vectors}
        return first

    def _put_image(self, image: Prepared, slot: int) -> int:
        decoded = image.decoded
        assert decoded is not None  # only new images get here
        record = ImageRecord(
            image.image_id,
            (image.file.path,),
            decoded.width,
            decoded.height,
            image.file.size,
            decoded.format,
            image.taken_at,
        )
        said = image.metadata
        added = self._writer.put_image(record, slot, said.captions, said.tags)
        fields = {**said.fields, TAKEN_FROM: said.taken_from or ""}
        self._writer.metadata.put_fields(record.id, {k: v for k, v in fields.items() if v})
        return added

    def _put_file(self, outcome: Outcome) -> None:
        file = outcome.file
        if isinstance(outcome, Prepared):
            file = file.without_sidecars() if outcome.problems else file
            self.captions_added += self._writer.put_file(
                file,
                outcome.image_id,
                outcome.sidecar_captions,
                new=outcome.image_id in self._unknown,
            )
        elif outcome.permanent:
            self._writer.put_skipped(file, outcome.reason)


class CaptionEncoding:
    """Encodes the captions that have not been encoded."""

    def __init__(self, collection: Collection, writer: CatalogWriter) -> None:
        self._collection, self._writer = collection, writer
        self._text = collection.model.text

    def pending(self) -> int:
        """How many captions in the model's languages have not been encoded."""
        return self._writer.count_pending(self._text.languages)

    def batches(self) -> Iterator[int]:
        """Encodes and commits batch by batch; yields the number of captions done so far."""
        done = 0
        while batch := self._writer.pending_captions(self._text.languages, _CAPTIONS_PER_BATCH):
            self._commit(batch)
            done += len(batch)
            yield done

    def _commit(self, batch: Sequence[PendingCaption]) -> None:
        rows = self._encoded(batch)
        array = self._writer.array("captions")
        known = [caption for caption in batch if caption.id in rows]
        slots = {caption.id: slot for slot, caption in enumerate(known, start=array.rows)}
        if known:
            array = array.appended(np.stack([rows[caption.id] for caption in known]))
        with self._writer.transaction():
            self._writer.set_array(array)
            self._writer.set_caption_slots(
                [(caption.id, slots.get(caption.id)) for caption in batch]
            )

    def _encoded(self, batch: Sequence[PendingCaption]) -> dict[int, Vectors]:
        """Vectors by caption id, without captions that have no token the model knows."""
        rows: dict[int, Vectors] = {}
        for language in sorted({caption.language for caption in batch}):
            captions = [caption for caption in batch if caption.language == language]
            encoded = self._text.encode([caption.text for caption in captions], language)
            documents = self._text.as_documents(encoded.caption)
            triples = zip(captions, documents, encoded.known, strict=True)
            rows |= {caption.id: row for caption, row, known in triples if known}
        return rows
