"""What models wrote about images, which model did it, and what people said about that.

A model's captions and tags have a source that starts with "model:" and are replaced when another
model describes the image. What a person accepted or corrected is a person's from then on (source
"hand"); a caption that was rejected does not come back, whichever model writes it.

What models write about the images of an index folder, one transaction for each batch.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import astuple
from typing import Any

import numpy as np

from capsearch.engine.protocols import Head
from capsearch.engine.records import GENERATED, HAND, Caption, ImageRecord, Tag, Vectors
from capsearch.indexer.sqlite.catalog import SqliteCatalog, StoredFacets, under
from capsearch.indexer.sqlite.writer import CatalogWriter

_BY_MODELS = f"source GLOB '{GENERATED}*'"
_HAS_FILE = "EXISTS (SELECT 1 FROM files WHERE image_id = i.id{})"


def undecided(
    captions: Sequence[Caption], rejected: Collection[str], languages: Collection[str]
) -> list[Caption]:
    """Generated captions but for those that are empty or that people rejected, and those in
    languages in which a person has accepted or written one by hand."""
    return [
        one
        for one in captions
        if one.text and one.text not in rejected and one.language not in languages
    ]


class EnrichedTable:
    """Reads and writes it; call what writes inside a transaction."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog, self._connection = catalog, catalog.connection

    # What is left to do

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

    def reset(self, folders: Sequence[str] = ()) -> None:
        """Makes all images, or those below folders, pending for every model."""
        file, values = _below(folders)
        self._connection.execute(
            "DELETE FROM enriched WHERE image_id IN "
            f"(SELECT id FROM images i WHERE {_HAS_FILE.format(file)})",
            values,
        )

    # What models write

    def put_tags(self, image_id: str, model: str, tags: Sequence[Tag]) -> None:
        """Makes these the only generated tags of an image; of equal labels the first one counts."""
        self._connection.execute(
            f"DELETE FROM tags WHERE image_id = ? AND {_BY_MODELS}", (image_id,)
        )
        self._connection.executemany(
            "INSERT OR IGNORE INTO tags (image_id, label, language, confidence, source, concept) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(image_id, *astuple(tag)) for tag in tags],
        )
        self._mark(image_id, "tagger", model)

    def put_captions(self, image_id: str, model: str, captions: Sequence[Caption]) -> int:
        """Makes these the only generated captions of an image, but for what people decided.

        Left out are captions that were rejected or are empty, and languages in which a person has
        accepted or written one by hand. A caption that is there already keeps its vector. Returns
        how many the image has now.
        """
        sql = "SELECT text FROM rejected WHERE image_id = ?"
        rejected = {row[0] for row in self._catalog.rows(sql, (image_id,))}
        sql = "SELECT language FROM captions WHERE image_id = ? AND source = ?"
        decided = {row[0] for row in self._catalog.rows(sql, (image_id, HAND))}
        kept = undecided(captions, rejected, decided)
        sql = f"SELECT id, text, language, source FROM captions WHERE image_id = ? AND {_BY_MODELS}"
        current = {(one.text, one.language, one.source) for one in kept}
        outdated = [
            (number,)
            for number, *columns in self._catalog.rows(sql, (image_id,))
            if tuple(columns) not in current
        ]
        self._connection.executemany("DELETE FROM captions WHERE id = ?", outdated)
        self._connection.executemany(
            "INSERT INTO captions (image_id, text, language, source, origin, confidence) "
            "VALUES (?, ?, ?, ?, '', ?) ON CONFLICT (image_id, source, origin, text) "
            "DO UPDATE SET confidence = excluded.confidence",
            [(image_id, one.text, one.language, one.source, one.confidence) for one in kept],
        )
        self._mark(image_id, "captioner", model)
        return len(kept)

    # What people say about it

    def accept(self, image_id: str, caption: Caption, text: str, language: str) -> None:
        """A generated caption becomes a person's, as it is or with another `text`."""
        self._delete(image_id, caption)
        self._connection.execute(
            "INSERT INTO captions (image_id, text, language, source, origin) "
            "VALUES (?, ?, ?, ?, '') ON CONFLICT DO NOTHING",
            (image_id, text, language, HAND),
        )
        if text != caption.text:  # a corrected one was wrong
            self._reject(image_id, caption.text)

    def reject(self, image_id: str, caption: Caption) -> None:
        """A generated caption goes and does not come back."""
        self._delete(image_id, caption)
        self._reject(image_id, caption.text)

    # Copies of an index

    def states(self, ids: Sequence[str]) -> Mapping[str, dict[str, Any]]:
        """What is stored about images besides captions and tags; left out where there is none."""
        found: dict[str, dict[str, Any]] = {}
        chosen = json.dumps(list(ids))
        inside = "image_id IN (SELECT value FROM json_each(?))"
        sql = f"SELECT image_id, tagger, captioner FROM enriched WHERE {inside}"
        for image_id, tagger, captioner in self._catalog.rows(sql, (chosen,)):
            found[image_id] = {"tagger": tagger, "captioner": captioner}
        sql = f"SELECT image_id, text FROM rejected WHERE {inside} ORDER BY text"
        for image_id, text in self._catalog.rows(sql, (chosen,)):
            found.setdefault(image_id, {}).setdefault("rejected", []).append(text)
        return found

    def restore(self, image_id: str, state: Mapping[str, Any] | None) -> None:
        """The inverse of `states`."""
        for head in ("tagger", "captioner"):
            if state and state.get(head):
                self._mark(image_id, head, state[head])
        for text in (state or {}).get("rejected", ()):
            self._reject(image_id, text)

    def _mark(self, image_id: str, head: Head, model: str) -> None:
        self._connection.execute(
            f"INSERT INTO enriched (image_id, {head}) VALUES (?, ?) "
            f"ON CONFLICT (image_id) DO UPDATE SET {head} = excluded.{head}",
            (image_id, model),
        )

    def _delete(self, image_id: str, caption: Caption) -> None:
        self._connection.execute(
            "DELETE FROM captions WHERE image_id = ? AND text = ? AND source = ?",
            (image_id, caption.text, caption.source),
        )

    def _reject(self, image_id: str, text: str) -> None:
        self._connection.execute("INSERT OR IGNORE INTO rejected VALUES (?, ?)", (image_id, text))


def _pending(head: Head, name: str, folders: Sequence[str]) -> tuple[str, list[object]]:
    """A condition on images `i`."""
    file, values = _below(folders)
    done = f"EXISTS (SELECT 1 FROM enriched e WHERE e.image_id = i.id AND e.{head} = ?)"
    return f"slot IS NOT NULL AND {_HAS_FILE.format(file)} AND NOT {done}", [*values, name]


def _below(folders: Sequence[str]) -> tuple[str, list[object]]:
    """A condition on files: one of these, or below one of these folders; none for all files."""
    if not folders:
        return "", []
    bounds: list[object] = [bound for folder in folders for bound in (folder, *under(folder))]
    return " AND (" + " OR ".join(
        ["path = ? OR (path >= ? AND path < ?)"] * len(folders)
    ) + ")", bounds


_SLOTS = "SELECT id, slot FROM images WHERE slot IS NOT NULL AND id IN ({})"
_GIVEN = "SELECT value FROM json_each(?)"


class EmbeddedDescriptions:
    """indexer.store.Descriptions over a catalog; `make_searchable` encodes and indexes captions."""

    def __init__(self, writer: CatalogWriter, make_searchable: Callable[[], None]) -> None:
        self._writer, self._make_searchable = writer, make_searchable
        self._catalog = writer.catalog
        self._table, self._facets = EnrichedTable(writer.catalog), StoredFacets(writer)

    def count(self, head: Head, name: str, folders: Sequence[str] = ()) -> int:
        """How many images the model called `name` has not described."""
        return self._table.count(head, name, folders)

    def pending(
        self, head: Head, name: str, folders: Sequence[str], after: str, limit: int
    ) -> list[str]:
        """The next of them by id, after one."""
        return self._table.pending(head, name, folders, after, limit)

    def features(self, ids: Sequence[str]) -> Mapping[str, Vectors]:
        """Rows of the vector file."""
        found = self._catalog.rows(_SLOTS.format(_GIVEN), (json.dumps(list(ids)),))
        rows = self._catalog.array("features").view()
        return {image_id: np.array(rows[slot], np.float32) for image_id, slot in found}

    def records(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Images by id."""
        return self._catalog.images(ids)

    def reset(self, folders: Sequence[str] = ()) -> None:
        """Makes images pending for every model."""
        with self._writer.transaction(visible=False):
            self._table.reset(folders)

    def put_tags(self, model: str, tags: Mapping[str, Sequence[Tag]]) -> None:
        """Makes these the only generated tags of images."""
        with self._writer.transaction():
            for image_id, found in tags.items():
                self._table.put_tags(image_id, model, found)

    def put_captions(self, model: str, captions: Mapping[str, Sequence[Caption]]) -> int:
        """Makes these the only generated captions of images, but for what people decided."""
        with self._writer.transaction():
            kept = sum(
                self._table.put_captions(image_id, model, found)
                for image_id, found in captions.items()
            )
        self._facets.refresh_now_and_then()
        return kept

    def accept(self, image_id: str, caption: Caption, text: str, language: str) -> bool:
        """A generated caption becomes a person's."""
        return self._review(
            image_id, caption, lambda: self._table.accept(image_id, caption, text, language)
        )

    def reject(self, image_id: str, caption: Caption) -> bool:
        """A generated caption goes and does not come back."""
        return self._review(image_id, caption, lambda: self._table.reject(image_id, caption))

    def _review(self, image_id: str, caption: Caption, change: Callable[[], None]) -> bool:
        if caption not in self._catalog.captions([image_id]).get(image_id, ()):
            return False
        with self._writer.transaction():
            change()
        self._make_searchable()
        return True
