"""Collections on disk, written as the pipeline writes them but with chosen vectors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from capsearch.encoders.models.registry import Model
from capsearch.engine.fakes import FakeImageEncoder, FakeTextEncoder
from capsearch.engine.records import Caption, Document, Vectors
from capsearch.indexer.document import StoredCaption, StoredDocument
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.matches import update_words
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
    for document in documents:
        own = [caption for owner, caption, _ in captions if owner == document.record.id]
        put(collection, replace(document, captions=(*own, *document.captions)))
    writer = CatalogWriter(collection.catalog)
    with writer.transaction():
        _append(collection, writer, "vectors", list(vectors.values()), spacing)
        _append(collection, writer, "captions", [vector for _, _, vector in captions], spacing)
        known = {document.record.id for document in documents}
        slots = [(image_id, spacing * at) for at, image_id in enumerate(vectors)]
        writer.set_image_slots([slot for slot in slots if slot[0] in known])
        for at, (owner, caption, _) in enumerate(captions):
            set_slot(collection, owner, caption, spacing * at)
    index_words(collection)
    return collection


def put(collection: Collection, document: Document) -> None:
    """Adds a document without vectors, or replaces all but its vectors."""
    change(collection, document.record.id, lambda _: StoredDocument.of(document))


def change(
    collection: Collection,
    image_id: str,
    step: Callable[[StoredDocument], StoredDocument | object],
) -> None:
    """Changes one document in place, or by what `step` returns."""

    def changed(document: StoredDocument | None) -> StoredDocument | None:
        result = step(document)  # type: ignore[arg-type]
        return result if isinstance(result, StoredDocument) else document

    CatalogDocuments(CatalogWriter(collection.catalog)).edit({image_id: changed})


def add_caption(collection: Collection, image_id: str, caption: Caption) -> None:
    stored = StoredCaption(caption)
    change(collection, image_id, lambda document: document.captions.update({stored.key: stored}))


def arrive(collection: Collection, path: str, image_id: str, mtime_ns: int = 1) -> None:
    """A file holds an image."""
    file = ImageFile(path, mtime_ns, 1)
    change(collection, image_id, lambda document: document.arrive(file, ()))


def leave(collection: Collection, path: str) -> None:
    """A file is gone."""
    holders = CatalogDocuments(CatalogWriter(collection.catalog)).holders([path])
    for image_id in holders.values():
        change(collection, image_id, lambda document: document.leave(path))


def set_slot(collection: Collection, image_id: str, caption: Caption, slot: int) -> None:
    """The row of a caption; call inside a transaction."""
    sql = "SELECT id FROM captions WHERE image_id = ? AND text = ? AND source = ?"
    [(number,)] = collection.catalog.rows(sql, (image_id, caption.text, caption.source))
    CatalogWriter(collection.catalog).set_caption_slots([(number, slot)])


def index_words(collection: Collection) -> None:
    """Brings the words up to date, as a run of the pipeline does at its end."""
    for _ in update_words(CatalogWriter(collection.catalog), collection.model.text.words):
        pass


def _append(
    collection: Collection, writer: CatalogWriter, name: str, rows: list[Vectors], spacing: int
) -> None:
    table = np.full((spacing * len(rows), WIDTH), 10, np.float32)
    table[::spacing] = np.array(rows, np.float32).reshape(len(rows), WIDTH)
    empty = replace(collection.catalog.array(name), width=WIDTH)
    writer.set_array(empty.appended(table) if rows else empty)
