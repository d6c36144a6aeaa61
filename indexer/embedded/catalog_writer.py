"""The catalog as the pipeline writes it: every change inside a transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from capsearch.engine.records import Caption, ImageRecord, Tag
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.catalog import SqliteCatalog, under
from capsearch.indexer.sources.scan import ImageFile

if TYPE_CHECKING:  # a search does not need Pillow
    from capsearch.indexer.sources.captions import NamedCaption

SIDECAR = "sidecar"
EMBEDDED = ("exif", "iptc", "xmp")


@dataclass(frozen=True, slots=True)
class KnownFile:
    """An image file as the last run saw it."""

    path: str
    image_id: str
    mtime_ns: int
    size: int
    sidecars: str
    embedded: bool


@dataclass(frozen=True, slots=True)
class PendingCaption:
    """A caption that has no vector yet."""

    id: int
    text: str
    language: str


class CatalogWriter:
    """All changes to a catalog. Call its verbs between `with writer.transaction()`."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
        self._connection = catalog.connection

    @contextmanager
    def transaction(self, visible: bool = True) -> Iterator[None]:
        """All or nothing. A change that a search can see moves the revision on."""
        self._connection.execute("BEGIN IMMEDIATE")
        before = self._connection.total_changes
        try:
            yield
            if visible and self._connection.total_changes > before:
                self.set_meta("revision", str(self.catalog.revision() + 1))
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    # What is known

    def files(self, roots: Sequence[Path]) -> dict[str, KnownFile]:
        """The files under some roots, or the roots themselves, by path."""
        sql = (
            "SELECT path, image_id, mtime_ns, f.size, sidecars, slot IS NOT NULL "
            "FROM files f JOIN images ON id = image_id "
            "WHERE path = ? OR (path >= ? AND path < ?)"
        )
        rows = [row for root in roots for row in self.catalog.rows(sql, (str(root), *under(root)))]
        return {row[0]: KnownFile(*row) for row in rows}

    def skipped(self, roots: Sequence[Path]) -> dict[str, tuple[ImageFile, str]]:
        """The files under some roots that were refused before, with their state and reason."""
        sql = (
            "SELECT path, mtime_ns, size, reason FROM skipped "
            "WHERE path = ? OR (path >= ? AND path < ?)"
        )
        rows = [row for root in roots for row in self.catalog.rows(sql, (str(root), *under(root)))]
        return {row[0]: (ImageFile(*row[:3]), row[3]) for row in rows}

    def embedded_ids(self) -> set[str]:
        """The images that have a vector."""
        sql = "SELECT id FROM images WHERE slot IS NOT NULL"
        return {row[0] for row in self.catalog.rows(sql)}

    def embedded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector by now."""
        sql = "SELECT slot IS NOT NULL FROM images WHERE id = ?"
        return {one for one in ids if self.catalog.rows(sql, (one,)) == [(1,)]}

    def count_pending(self, readable: Sequence[str]) -> int:
        """How many captions of languages a model reads wait to be encoded."""
        marks = ", ".join("?" * len(readable))
        sql = f"SELECT count(*) FROM captions WHERE encoded = 0 AND language IN ({marks})"
        return int(self.catalog.rows(sql, readable)[0][0])

    def pending_captions(self, readable: Sequence[str], limit: int) -> list[PendingCaption]:
        """Captions to encode, oldest first, of languages a model reads."""
        marks = ", ".join("?" * len(readable))
        sql = (
            "SELECT id, text, language FROM captions "
            f"WHERE encoded = 0 AND language IN ({marks}) ORDER BY id LIMIT ?"
        )
        return [PendingCaption(*row) for row in self.catalog.rows(sql, (*readable, limit))]

    # Changes

    def set_meta(self, key: str, value: str) -> None:
        """Sets a value of the table `meta`."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def set_array(self, array: VectorFile) -> None:
        """Makes `array` the one that counts."""
        row = (array.name, array.generation, array.dtype, array.width, array.rows)
        self._connection.execute("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?, ?)", row)

    def remember_roots(self, roots: Sequence[Path]) -> None:
        """Adds roots, and keeps none that lies inside another."""
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
        known = self.catalog.roots()
        for root in roots:
            if any(outer in root.parents for outer in known):
                continue
            self._connection.execute("DELETE FROM roots WHERE path >= ? AND path < ?", under(root))
            self._connection.execute(
                "INSERT OR REPLACE INTO roots VALUES (?, ?)", (str(root), moment)
            )

    def put_image(
        self, record: ImageRecord, slot: int, captions: Sequence[Caption], tags: Sequence[Tag]
    ) -> int:
        """Adds an embedded image with what its file says; the number of new captions."""
        taken_at = record.taken_at.isoformat() if record.taken_at else None
        self._connection.execute(
            "INSERT INTO images VALUES (?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT (id) DO UPDATE SET slot = excluded.slot, taken_at = excluded.taken_at",
            (
                record.id, record.width, record.height, record.size_bytes, record.format,
                taken_at, slot,
            ),
        )  # fmt: skip
        self._put_tags(record.id, tags)
        return self._replace_captions(record.id, EMBEDDED, "", captions)

    def put_file(self, found: ImageFile, image_id: str, captions: Sequence[Caption]) -> int:
        """Says that a file holds an image and its sidecars hold captions; the number new."""
        self._forget(found.path, except_image=image_id)
        self._connection.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
            (found.path, image_id, found.mtime_ns, found.size, found.stamp),
        )
        return self._replace_captions(image_id, (SIDECAR,), found.path, captions)

    def put_skipped(self, found: ImageFile, reason: str) -> None:
        """Remembers a refused file, so that it is not opened again until it changes."""
        self._forget(found.path)
        self._connection.execute("DELETE FROM files WHERE path = ?", (found.path,))
        self._connection.execute(
            "INSERT OR REPLACE INTO skipped VALUES (?, ?, ?, ?)",
            (found.path, found.mtime_ns, found.size, reason),
        )

    def remove_files(self, paths: Sequence[str]) -> None:
        """Forgets files that are gone."""
        for path in paths:
            self._forget(path)
            self._connection.execute("DELETE FROM files WHERE path = ?", (path,))

    def remove_orphans(self) -> None:
        """Drops images that no file holds any more, with their captions and tags."""
        self._connection.execute("DELETE FROM images WHERE id NOT IN (SELECT image_id FROM files)")

    def replace_named(self, origin: Path, matched: Sequence[tuple[str, NamedCaption]]) -> int:
        """Makes (image id, caption) pairs the only captions from a captions file."""
        keep = {(image_id, named.caption.text) for image_id, named in matched}
        sql = "SELECT id, image_id, text FROM captions WHERE origin = ?"
        gone = [
            (number,)
            for number, image_id, text in self.catalog.rows(sql, (str(origin),))
            if (image_id, text) not in keep
        ]
        self._connection.executemany("DELETE FROM captions WHERE id = ?", gone)
        return sum(self._put_caption(one, str(origin), named.caption) for one, named in matched)

    def set_caption_slots(self, slots: Sequence[tuple[int, int | None]]) -> None:
        """(caption id, row or None) of captions that went through the text encoder."""
        self._connection.executemany(
            "UPDATE captions SET encoded = 1, slot = ? WHERE id = ?",
            [(slot, number) for number, slot in slots],
        )

    def renumber(self, table: str, slots: Sequence[int]) -> None:
        """After compaction: what was at slots[n] is now at n. `slots` ascend."""
        self._connection.executemany(
            f"UPDATE {table} SET slot = ? WHERE slot = ?",
            [(new, old) for new, old in enumerate(slots) if new != old],
        )

    def forget_refusals(self) -> None:
        """Gives every file that was refused another chance."""
        self._connection.execute("DELETE FROM skipped")

    def forget_vectors(self, *tables: str) -> None:
        """Marks all of "images" or "captions" as not encoded yet."""
        for table in tables:
            self._connection.execute(f"UPDATE {table} SET slot = NULL")
            if table == "captions":
                self._connection.execute("UPDATE captions SET encoded = 0")

    def _forget(self, path: str, except_image: str = "") -> None:
        """Drops what was known of a path: an old refusal, and another image's sidecars."""
        self._connection.execute("DELETE FROM skipped WHERE path = ?", (path,))
        self._connection.execute(
            "DELETE FROM captions WHERE origin = ? AND source = ? AND image_id != ?",
            (path, SIDECAR, except_image),
        )

    def _put_tags(self, image_id: str, tags: Sequence[Tag]) -> None:
        marks = ", ".join("?" * len(EMBEDDED))
        self._connection.execute(
            f"DELETE FROM tags WHERE image_id = ? AND source IN ({marks})", (image_id, *EMBEDDED)
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO tags VALUES (?, ?, ?, ?, ?)",
            [(image_id, tag.label, tag.language, tag.confidence, tag.source) for tag in tags],
        )

    def _replace_captions(
        self, image_id: str, sources: Sequence[str], origin: str, captions: Sequence[Caption]
    ) -> int:
        """Makes `captions` the only ones of these sources; those that stay keep their vectors."""
        keep = {(caption.source, caption.text) for caption in captions}
        sql = "SELECT id, source, text FROM captions WHERE image_id = ? AND origin = ?"
        gone = [
            (number,)
            for number, source, text in self.catalog.rows(sql, (image_id, origin))
            if source in sources and (source, text) not in keep
        ]
        self._connection.executemany("DELETE FROM captions WHERE id = ?", gone)
        return sum(self._put_caption(image_id, origin, caption) for caption in captions)

    def _put_caption(self, image_id: str, origin: str, caption: Caption) -> int:
        """Adds a caption unless it is there; 1 if it was new or changed its language."""
        cursor: sqlite3.Cursor = self._connection.execute(
            "INSERT INTO captions (image_id, text, language, source, origin) "
            "VALUES (?, ?, ?, ?, ?) ON CONFLICT (image_id, source, origin, text) DO UPDATE "
            "SET language = excluded.language, encoded = 0, slot = NULL "
            "WHERE language != excluded.language",
            (image_id, caption.text, caption.language, caption.source, origin),
        )
        return cursor.rowcount
