"""Documents as rows of the catalog: read, changed and compared, and only what differs is written.

Vectors go to the vector files first, then one transaction refers to them. A caption that stays
keeps its row there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias

import numpy as np

from capsearch.engine.records import Caption, ImageRecord, Tag
from capsearch.indexer.changes import Change
from capsearch.indexer.document import StoredCaption, StoredDocument
from capsearch.indexer.sqlite.writer import CatalogWriter

Key: TypeAlias = tuple[Any, ...]
Rows: TypeAlias = dict[Key, Key]  # values by key
READ_AT_ONCE = 500  # documents with their vectors
_GIVEN = "(SELECT value FROM json_each(?))"


@dataclass(frozen=True, slots=True)
class _Table:
    """What an image may have several of: `key` tells them apart, `values` may change.

    Whatever is indexed as words belongs to the key: only rows that come or go make words stale.
    """

    name: str
    key: tuple[str, ...]
    values: tuple[str, ...]
    order: str
    rows_of: Callable[[StoredDocument], Rows]
    also: str = ""  # is set with the values

    @property
    def select(self) -> str:
        columns = ", ".join(("image_id", *self.key, *self.values))
        return f"SELECT {columns} FROM {self.name} WHERE image_id IN {_GIVEN} ORDER BY {self.order}"

    @property
    def insert(self) -> str:
        columns = ("image_id", *self.key, *self.values)
        marks = ", ".join("?" * len(columns))
        return f"INSERT INTO {self.name} ({', '.join(columns)}) VALUES ({marks})"

    @property
    def delete(self) -> str:
        return f"DELETE FROM {self.name} WHERE {self._chosen}"

    @property
    def update(self) -> str:
        values = ", ".join(f"{column} = ?" for column in self.values)
        return f"UPDATE {self.name} SET {values}{self.also} WHERE {self._chosen}"

    @property
    def _chosen(self) -> str:
        return " AND ".join(f"{column} = ?" for column in ("image_id", *self.key))


def _captions(document: StoredDocument) -> Rows:
    return {
        key: (stored.caption.language, stored.caption.confidence, int(stored.encoded))
        for key, stored in document.captions.items()
    }


def _tags(document: StoredDocument) -> Rows:
    return {(*key, tag.concept): (tag.confidence,) for key, tag in document.tags.items()}


def _models(document: StoredDocument) -> Rows:
    models = document.tagger, document.captioner
    return {(): models} if any(models) else {}


_TABLES = (
    _Table("files", ("path",), ("mtime_ns", "size", "sidecars"), "path",
           lambda document: {(path,): state for path, state in document.files.items()}),
    _Table("past_files", ("path",), (), "id",
           lambda document: {(path,): () for path in document.past}),
    _Table("captions", ("source", "origin", "text"), ("language", "confidence", "encoded"), "id",
           _captions, also=", slot = iif(?3, slot, NULL)"),
    _Table("tags", ("label", "language", "source", "concept"), ("confidence",),
           "confidence DESC, label, language, source", _tags),
    _Table("metadata", ("key", "value"), (), "key",
           lambda document: dict.fromkeys(document.metadata.items(), ())),
    _Table("enriched", (), ("tagger", "captioner"), "image_id", _models),
    _Table("rejected", ("text",), (), "text",
           lambda document: {(text,): () for text in document.rejected}),
)  # fmt: skip
_IMAGES = "SELECT id, width, height, size_bytes, format, taken_at, missing_since FROM images "
_NEW_IMAGE = (
    "INSERT INTO images (id, width, height, size_bytes, format, taken_at, missing_since, number) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, (SELECT coalesce(max(number), 0) + 1 FROM images))"
)


@dataclass(slots=True)
class _Row:
    """An image as the catalog has it: its columns, and the rows of each table."""

    columns: Key  # as _IMAGES selects them
    tables: dict[str, Rows]

    @classmethod
    def of(cls, document: StoredDocument) -> _Row:
        record = document.record
        taken_at = record.taken_at.isoformat() if record.taken_at else None
        columns = (
            record.id, record.width, record.height, record.size_bytes, record.format, taken_at,
            document.missing_since,
        )  # fmt: skip
        return cls(columns, {table.name: table.rows_of(document) for table in _TABLES})

    def document(self) -> StoredDocument:
        """Without vectors: a store leaves those that are not given as they are."""
        image_id, width, height, size_bytes, kind, taken_at, missing_since = self.columns
        taken = datetime.fromisoformat(taken_at) if taken_at else None
        rows = self.tables
        paths = tuple(path for (path,) in rows["files"])
        captions = [
            StoredCaption(Caption(text, language, source, confidence), origin, bool(encoded))
            for (source, origin, text), (language, confidence, encoded) in rows["captions"].items()
        ]
        tags = [
            Tag(label, language, confidence, source, concept)
            for (label, language, source, concept), (confidence,) in rows["tags"].items()
        ]
        [(tagger, captioner)] = rows["enriched"].values() or [("", "")]
        return StoredDocument(
            ImageRecord(image_id, paths, width, height, size_bytes, kind, taken),
            None,
            None,
            {path: (mtime, size, state) for (path,), (mtime, size, state) in rows["files"].items()},
            {stored.key: stored for stored in captions},
            {(tag.label, tag.language, tag.source): tag for tag in tags},
            dict(iter(rows["metadata"])),
            {path: "" for (path,) in rows["past_files"]},
            missing_since,
            tagger,
            captioner,
            frozenset(text for (text,) in rows["rejected"]),
        )


class CatalogDocuments:
    """changes.Documents over a catalog; what writes needs one that is open for writing."""

    def __init__(self, writer: CatalogWriter) -> None:
        self.writer, self._catalog = writer, writer.catalog

    def edit(self, changes: Mapping[str, Change], new: Collection[str] = ()) -> None:
        """One transaction."""
        before = self._rows([image_id for image_id in changes if image_id not in new])
        documents = []
        for image_id, change in changes.items():
            row = before.get(image_id)
            document = change(None if row is None else row.document())
            if document is not None:
                documents.append(document)
        self._write(documents, before)

    def read(self, ids: Sequence[str], vectors: bool = False) -> dict[str, StoredDocument]:
        """Documents by id, with their vectors on request; unknown ids are left out."""
        documents = {image_id: row.document() for image_id, row in self._rows(ids).items()}
        if vectors:
            self._read_vectors(documents)
        return documents

    def batches(self) -> Iterator[list[StoredDocument]]:
        """All documents that have a file, by id, with their vectors; call inside a snapshot."""
        sql = (
            "SELECT id FROM images i WHERE id > ? AND EXISTS "
            f"(SELECT 1 FROM files WHERE image_id = i.id) ORDER BY id LIMIT {READ_AT_ONCE}"
        )
        last = ""
        while ids := [row[0] for row in self._catalog.rows(sql, (last,))]:
            yield list(self.read(ids, vectors=True).values())
            last = ids[-1]

    def existing(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that are in the catalog."""
        return self._ids(f"SELECT id FROM images WHERE id IN {_GIVEN}", ids)

    def found(self, ids: Sequence[str], encoded: bool = False) -> set[str]:
        """Those of `ids` that have a file, or with `encoded` a vector, too."""
        sql = f"SELECT image_id FROM files JOIN images i ON i.id = image_id WHERE i.id IN {_GIVEN}"
        return self._ids(sql + (" AND slot IS NOT NULL" if encoded else ""), ids)

    def holders(self, paths: Sequence[str]) -> dict[str, str]:
        """The image that each path holds."""
        sql = f"SELECT path, image_id FROM files WHERE path IN {_GIVEN}"
        return dict(self._catalog.rows(sql, (json.dumps(paths),)))

    def past_holders(self, paths: Sequence[str]) -> dict[str, str]:
        """The image that was last at each path."""
        sql = f"SELECT path, image_id FROM past_files WHERE path IN {_GIVEN} ORDER BY id"
        return dict(self._catalog.rows(sql, (json.dumps(paths),)))

    def _ids(self, sql: str, ids: Sequence[str]) -> set[str]:
        return {row[0] for row in self._catalog.rows(sql, (json.dumps(ids),))}

    def _rows(self, ids: Sequence[str]) -> dict[str, _Row]:
        given = (json.dumps(ids),)
        found = {
            row[0]: _Row(tuple(row), {table.name: {} for table in _TABLES})
            for row in self._catalog.rows(f"{_IMAGES} WHERE id IN {_GIVEN} ORDER BY id", given)
        }
        for table in _TABLES:
            stop = 1 + len(table.key)
            for row in self._catalog.rows(table.select, given) if found else ():
                found[row[0]].tables[table.name][row[1:stop]] = row[stop:]
        return found

    def _read_vectors(self, documents: Mapping[str, StoredDocument]) -> None:
        features, vectors, captions = (
            self._catalog.array(name).view() for name in ("features", "vectors", "captions")
        )
        given, chosen = (json.dumps(list(documents)),), f"IN {_GIVEN} AND slot IS NOT NULL"
        sql = f"SELECT id, slot FROM images WHERE id {chosen}"
        for image_id, slot in self._catalog.rows(sql, given):
            documents[image_id].feature = np.array(features[slot], np.float32)
            documents[image_id].vector = np.array(vectors[slot], np.float32)
        sql = f"SELECT image_id, source, origin, text, slot FROM captions WHERE image_id {chosen}"
        for image_id, *key, slot in self._catalog.rows(sql, given):
            stored = documents[image_id].captions[key[0], key[1], key[2]]
            stored.vector = np.array(captions[slot], np.float32)

    def _write(self, documents: Sequence[StoredDocument], before: Mapping[str, _Row]) -> None:
        encoded = [one for one in documents if one.feature is not None and one.vector is not None]
        captions = [
            (document.record.id, *stored.key, stored.vector)
            for document in documents
            for stored in document.captions.values()
            if stored.vector is not None
        ]
        first = {name: self.writer.array(name).rows for name in ("vectors", "captions")}
        rows: Mapping[str, list[Any]] = {
            "features": [document.feature for document in encoded],
            "vectors": [document.vector for document in encoded],
            "captions": [vector for *_, vector in captions],
        }
        arrays = [
            self.writer.array(name).appended(np.stack(vectors))
            for name, vectors in rows.items()
            if vectors
        ]
        with self.writer.transaction():
            for array in arrays:
                self.writer.set_array(array)
            self._write_rows({one.record.id: _Row.of(one) for one in documents}, before)
            slots = enumerate((document.record.id for document in encoded), first["vectors"])
            self.writer.set_image_slots([(image_id, slot) for slot, image_id in slots])
            self._catalog.connection.executemany(
                "UPDATE captions SET encoded = 1, slot = ? "
                "WHERE image_id = ? AND source = ? AND origin = ? AND text = ?",
                [(slot, *key) for slot, (*key, _) in enumerate(captions, first["captions"])],
            )

    def _write_rows(self, after: Mapping[str, _Row], before: Mapping[str, _Row]) -> None:
        many = self._catalog.connection.executemany
        many(_NEW_IMAGE, [row.columns for image_id, row in after.items() if image_id not in before])
        many(
            "UPDATE images SET taken_at = ?, missing_since = ? WHERE id = ?",
            [
                (*row.columns[-2:], image_id)
                for image_id, row in after.items()
                if image_id in before and row.columns[-2:] != before[image_id].columns[-2:]
            ],
        )
        for table in _TABLES:
            gone, new, changed = list[Key](), list[Key](), list[Key]()
            for image_id, row in after.items():
                old = before[image_id].tables[table.name] if image_id in before else {}
                rows = row.tables[table.name]
                if rows == old:
                    continue
                gone += [(image_id, *key) for key in old.keys() - rows.keys()]
                new += [(image_id, *key, *rows[key]) for key in rows if key not in old]
                changed += [
                    (*values, image_id, *key)
                    for key, values in rows.items()
                    if key in old and old[key] != values
                ]
            many(table.delete, gone)  # of all images first: a path may go from one to another
            many(table.insert, new)
            if changed:
                many(table.update, changed)
