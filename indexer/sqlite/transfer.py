"""Whole documents out of an embedded index and into one, with their vectors: nothing is encoded.

`provenance` carries what only the pipeline needs, so that a copied index can be updated as the
original could: times and sizes of files, where captions come from, metadata that is no caption. The
list of skipped files stays behind; the next run opens these again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from capsearch.engine.protocols import NewDocument
from capsearch.engine.records import Caption, Vectors
from capsearch.indexer.sqlite.arrays import Rows
from capsearch.indexer.sqlite.catalog import SqliteCatalog
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.enriched import EnrichedTable
from capsearch.indexer.sqlite.manifest import Remembered
from capsearch.indexer.sqlite.matches import update_words
from capsearch.indexer.sqlite.writer import CatalogWriter

BATCH = 500
_FILES = (
    "SELECT image_id, path, mtime_ns, size, sidecars FROM files "
    "WHERE image_id IN ({}) ORDER BY path"
)
_CAPTIONS = (
    "SELECT image_id, text, language, source, origin, encoded, confidence, slot FROM captions "
    "WHERE image_id IN ({}) ORDER BY id"
)
_METADATA = "SELECT image_id, key, value FROM metadata WHERE image_id IN ({}) ORDER BY key, value"


def read(catalog: SqliteCatalog) -> Iterator[list[NewDocument]]:
    """All documents that have a file, by id, in batches; call inside a snapshot."""
    arrays = {name: catalog.array(name).view() for name in ("features", "vectors", "captions")}
    last = ""
    while True:
        sql = f"SELECT id, slot FROM images WHERE id > ? ORDER BY id LIMIT {BATCH}"
        rows = catalog.rows(sql, (last,))
        if not rows:
            return
        yield _documents(catalog, dict(rows), arrays)
        last = rows[-1][0]


def known(catalog: SqliteCatalog, ids: Sequence[str], encoded: bool = False) -> set[str]:
    """Those of `ids` that have a file, or with `encoded` a vector, too."""
    sql = (
        "SELECT id FROM images i WHERE id IN ({}) AND "
        "EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
    ) + (" AND slot IS NOT NULL" if encoded else "")
    return {row[0] for row in _by_id(catalog, sql, ids)}


def write(collection: Collection, documents: Sequence[NewDocument]) -> None:
    """Adds documents that are not there yet: vector files first, then one transaction."""
    catalog, writer = collection.catalog, CatalogWriter(collection.catalog)
    encoded = [one for one in documents if one.vector is not None and one.feature is not None]
    captions = [(new, caption) for new in documents for caption in new.caption_vectors]
    first = {name: catalog.array(name).rows for name in ("vectors", "captions")}
    tables: Mapping[str, list[Vectors | None]] = {
        "features": [one.feature for one in encoded],
        "vectors": [one.vector for one in encoded],
        "captions": [new.caption_vectors[caption] for new, caption in captions],
    }
    arrays = [catalog.array(name).appended(np.stack(rows)) for name, rows in tables.items() if rows]  # type: ignore[arg-type]
    slots = {new.document.record.id: at for at, new in enumerate(encoded, first["vectors"])}
    rows_of: dict[str, dict[Caption, int]] = defaultdict(dict)
    for at, (new, caption) in enumerate(captions, first["captions"]):
        rows_of[new.document.record.id][caption] = at
    with writer.transaction():
        for array in arrays:
            writer.set_array(array)
        for new in documents:
            image_id = new.document.record.id
            _put(writer, new, slots.get(image_id), rows_of[image_id])


def add_roots(collection: Collection, excludes: Mapping[Path, Sequence[str]]) -> None:
    """The folders that the documents come from, with the globs that each leaves out."""
    writer = CatalogWriter(collection.catalog)
    with writer.transaction(visible=False):
        Remembered(collection.catalog).add_roots(excludes)


def index_words(collection: Collection) -> None:
    """Words of the documents that were added."""
    for _ in update_words(CatalogWriter(collection.catalog), collection.model.text.words):
        pass


def _documents(
    catalog: SqliteCatalog, slots: Mapping[str, int | None], arrays: Mapping[str, Rows]
) -> list[NewDocument]:
    ids = list(slots)
    documents = catalog.documents(ids)
    files, captions, metadata = (
        _grouped(_by_id(catalog, sql, ids)) for sql in (_FILES, _CAPTIONS, _METADATA)
    )
    reviewed = EnrichedTable(catalog).states(ids)
    found = []
    for image_id, document in documents.items():
        slot = slots[image_id]
        vectors = {
            Caption(row[0], row[1], row[2], row[5]): _row(arrays["captions"], row[6])
            for row in reversed(captions[image_id])  # of equal captions the first one counts
            if row[6] is not None
        }
        provenance = {
            "files": files[image_id],
            "captions": [row[:6] for row in captions[image_id]],
            "metadata": metadata[image_id],
            "enriched": reviewed.get(image_id),
        }
        feature, vector = (
            None if slot is None else _row(arrays[name], slot) for name in ("features", "vectors")
        )
        found.append(NewDocument(document, feature, vector, vectors, provenance))
    return found


def _put(
    writer: CatalogWriter, new: NewDocument, slot: int | None, rows: Mapping[Caption, int]
) -> None:
    record, connection = new.document.record, writer.catalog.connection
    writer.put_image(record, slot, (), new.document.tags)
    connection.executemany(
        "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
        [(path, record.id, mtime, size, state) for path, mtime, size, state in _files(new)],
    )
    taken: set[Caption] = set()  # a row belongs to one caption, though equal ones may repeat
    for text, language, source, origin, encoded, *confidence in _captions(new):
        caption = Caption(text, language, source, *confidence)  # older copies lack it
        row = None if caption in taken else rows.get(caption)
        taken.add(caption)
        connection.execute(
            "INSERT OR REPLACE INTO captions (image_id, text, language, source, origin, encoded, "
            "confidence, slot) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (record.id, text, language, source, origin, encoded, caption.confidence, row),
        )
    connection.executemany(
        "INSERT OR REPLACE INTO metadata VALUES (?, ?, ?)",
        [(record.id, key, value) for key, value in new.provenance.get("metadata", ())],
    )
    EnrichedTable(writer.catalog).restore(record.id, new.provenance.get("enriched"))


def _files(new: NewDocument) -> list[Any]:
    """(path, mtime_ns, size, sidecars); files of unknown age are opened again by the next run."""
    record = new.document.record
    unknown = [(path, 0, record.size_bytes, "") for path in record.paths]
    return new.provenance.get("files") or unknown


def _captions(new: NewDocument) -> list[Any]:
    """(text, language, source, origin, encoded, confidence)."""
    written = [
        (one.text, one.language, one.source, "", int(one in new.caption_vectors), one.confidence)
        for one in new.document.captions
    ]
    return new.provenance.get("captions") or written


def _row(rows: Rows, slot: int) -> Vectors:
    return np.array(rows[slot], np.float32)


def _by_id(catalog: SqliteCatalog, sql: str, ids: Sequence[str]) -> list[Any]:
    found: list[Any] = []
    for start in range(0, len(ids), BATCH):
        chunk = ids[start : start + BATCH]
        found += catalog.rows(sql.format(", ".join("?" * len(chunk))), chunk)
    return found


def _grouped(rows: Sequence[Any]) -> dict[str, list[list[Any]]]:
    groups: dict[str, list[list[Any]]] = defaultdict(list)
    for image_id, *rest in rows:
        groups[image_id].append(rest)
    return groups
