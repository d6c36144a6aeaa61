"""Collections on disk, written as the pipeline writes them but with chosen vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from capsearch.encoders.models.registry import Model
from capsearch.engine.fakes import FakeImageEncoder, FakeTextEncoder
from capsearch.engine.records import Caption, Document, Vectors
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.matches import (
    GENERATED_KIND,
    PEOPLES,
    generated_texts_of,
    texts_of,
    tokens_of,
)
from capsearch.indexer.sqlite.writer import CatalogWriter

WIDTH = 3


def collection_of(
    path: Path,
    documents: Sequence[Document],
    vectors: Mapping[str, Vectors],
    captions: Sequence[tuple[str, Caption, Vectors]],
    spacing: int = 1,
) -> Collection:
    """With `spacing` 2, every other row is unused and would win every search."""
    collection = Collection.create(
        path, Model("fake", "digest", FakeImageEncoder(), FakeTextEncoder())
    )
    writer = CatalogWriter(collection.catalog)
    with writer.transaction():
        _append(collection, writer, "vectors", list(vectors.values()), spacing)
        _append(collection, writer, "captions", [vector for _, _, vector in captions], spacing)
        slots = {image_id: spacing * at for at, image_id in enumerate(vectors)}
        for document in documents:
            _put(writer, document, slots.get(document.record.id))
        for at, (owner, caption, _) in enumerate(captions):
            writer._put_caption(owner, "", caption)
            sql = "SELECT id FROM captions WHERE image_id = ? AND text = ? AND source = ?"
            [(number,)] = collection.catalog.rows(sql, (owner, caption.text, caption.source))
            writer.set_caption_slots([(number, spacing * at)])
        for document in documents:
            for caption in document.captions:  # those without a vector
                writer._put_caption(document.record.id, "", caption)
    index_words(collection)
    return collection


def index_words(collection: Collection) -> None:
    """Brings the words up to date, as a run of the pipeline does at its end."""
    writer = CatalogWriter(collection.catalog)
    stale = writer.stale_words(10_000)
    documents = collection.catalog.documents([image_id for image_id, _ in stale])
    words_of = collection.model.text.words
    with writer.transaction():
        for table, texts in ((PEOPLES, texts_of), (GENERATED_KIND, generated_texts_of)):
            writer.put_words(
                table,
                [(number, tokens_of(documents.get(one), words_of, texts)) for one, number in stale],
            )


def _append(
    collection: Collection, writer: CatalogWriter, name: str, rows: list[Vectors], spacing: int
) -> None:
    table = np.full((spacing * len(rows), WIDTH), 10, np.float32)
    table[::spacing] = np.array(rows, np.float32).reshape(len(rows), WIDTH)
    empty = replace(collection.catalog.array(name), width=WIDTH)
    writer.set_array(empty.appended(table) if rows else empty)


def _put(writer: CatalogWriter, document: Document, slot: int | None) -> None:
    writer.put_image(document.record, slot, (), document.tags)  # type: ignore[arg-type]
    for path in document.record.paths:
        file = ImageFile(path, 1, document.record.size_bytes)
        writer.put_file(file, document.record.id, ())
