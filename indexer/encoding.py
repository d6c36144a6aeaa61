"""Encoding images and captions in batches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import TAKEN_FROM, ImageRecord, Vectors
from capsearch.indexer.prepare import Outcome, Prepared
from capsearch.indexer.store import EncodedImage, Store

_MAX_FILES_PER_BATCH = 512  # or the batch size; known and refused files count, too


class ImageEncoding:
    """Collects prepared files, encodes new images, and stores them batch by batch."""

    def __init__(self, store: Store, batch_size: int) -> None:
        self._store, self._batch_size = store, batch_size
        self._batch: list[Outcome] = []
        self._new: dict[str, Prepared] = {}
        self.added = self.captions_added = 0

    def add(self, outcome: Outcome) -> None:
        """Adds a file to the batch; a full batch is encoded and stored."""
        self._batch.append(outcome)
        if isinstance(outcome, Prepared) and outcome.decoded is not None:
            self._new.setdefault(outcome.image_id, outcome)
        max_files = max(self._batch_size, _MAX_FILES_PER_BATCH)
        if len(self._new) >= self._batch_size or len(self._batch) >= max_files:
            self.flush()

    def flush(self) -> None:
        """Encodes and stores the batch."""
        if not self._batch:
            return
        encoded = self._store.encoded_ids_among(list(self._new))
        new = [image for image_id, image in self._new.items() if image_id not in encoded]
        self.captions_added += self._store.put(self._encoded(new), self._batch)
        self.added += len(new)
        self._batch, self._new = [], {}

    def _encoded(self, new: Sequence[Prepared]) -> list[EncodedImage]:
        if not new:
            return []
        encoder = self._store.model.image
        # Projected from the float16 features that are stored: a rebuild must get the same.
        pixels = [image.decoded.pixels for image in new if image.decoded]
        features = encoder.features(pixels).astype(np.float16)
        vectors = encoder.project(features.astype(np.float32))
        rows = zip(new, features, vectors, strict=True)
        return [EncodedImage(*row) for row in rows]


def encode_captions(text: TextEncoder, captions: Sequence[tuple[str, str]]) -> list[Vectors | None]:
    """Vectors of (text, language) pairs; None for those without a token the model knows."""
    rows: list[Vectors | None] = [None] * len(captions)
    for language in sorted({language for _, language in captions}):
        numbers = [at for at, (_, one) in enumerate(captions) if one == language]
        encoded = text.encode([captions[at][0] for at in numbers], language)
        documents = text.as_documents(encoded.caption)
        for at, row, known in zip(numbers, documents, encoded.known, strict=True):
            rows[at] = row if known else None
    return rows


def record_of(image: Prepared) -> ImageRecord:
    """What is stored of a new image."""
    decoded = image.decoded
    assert decoded is not None  # only new images are stored
    return ImageRecord(
        image.image_id,
        (image.file.path,),
        decoded.width,
        decoded.height,
        image.file.size,
        decoded.format,
        image.taken_at,
    )


def fields_of(image: Prepared) -> dict[str, str]:
    """The texts of an image's metadata that are neither captions nor tags."""
    fields = {**image.metadata.fields, TAKEN_FROM: image.metadata.taken_from or ""}
    return {key: value for key, value in fields.items() if value}
