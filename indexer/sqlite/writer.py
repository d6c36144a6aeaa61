"""Writing the catalog: every change of the pipeline, inside transactions.

What is kept of images whose files went: by content for a while, by path for what comes there.

An image without a file is not found by any search, but keeps its vectors, captions and tags: it
comes back at once when a file with the same content does. When a file gets new content (edited
EXIF, a crop), what people wrote about the old content follows to the new one.

Tags and other texts out of an image file's metadata, as the catalog keeps them.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import TYPE_CHECKING

from capsearch.encoders.text import concepts
from capsearch.engine.errors import IndexProblem
from capsearch.engine.records import GENERATED, Caption, ImageRecord, Tag
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.catalog import SqliteCatalog, under
from capsearch.indexer.sqlite.schema import disk_failed, is_disk_error
from capsearch.indexer.store import KnownFile

if TYPE_CHECKING:
    from capsearch.indexer.sources.captions import NamedCaption


SIDECAR = "sidecar"
METADATA_SOURCES = ("exif", "iptc", "xmp")
# Sidecars and metadata are read from the new content; models describe only what they have seen.
_READ_ANEW = ", ".join(f"'{source}'" for source in (SIDECAR, *METADATA_SOURCES))
_BY_PEOPLE = f"source NOT IN ({_READ_ANEW}) AND source NOT GLOB '{GENERATED}*'"


class PastFiles:
    """Images that files left. Methods that change something belong inside a transaction."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog, self._connection = catalog, catalog.connection

    def leave(self, path: str, except_image: str = "") -> None:
        """Notes that a path no longer holds the image it had.

        The captions of its sidecars stay if the image has no other file: both may return.
        """
        sql = "SELECT image_id FROM files WHERE path = ? AND image_id != ?"
        for (image_id,) in self._catalog.rows(sql, (path, except_image)):
            self._connection.execute(
                "INSERT OR REPLACE INTO past_files (path, image_id) VALUES (?, ?)",
                (path, image_id),
            )
            # Not left to INSERT OR REPLACE, which fires no trigger for the row it replaces.
            self._connection.execute("DELETE FROM files WHERE path = ?", (path,))
            self._delete_other_sidecars(image_id)

    def follow(self, path: str, image_id: str) -> int:
        """Copies what people wrote about the image that was last at `path` to the one there now.

        Returns the number of new captions.
        """
        sql = "SELECT image_id FROM past_files WHERE path = ? ORDER BY id DESC LIMIT 1"
        rows = self._catalog.rows(sql, (path,))
        if not rows or rows[0][0] == image_id:
            return 0
        before = rows[0][0]
        self._connection.execute(
            "INSERT OR IGNORE INTO tags (image_id, label, language, confidence, source, concept) "
            "SELECT ?, label, language, confidence, source, concept FROM tags "
            f"WHERE image_id = ? AND {_BY_PEOPLE}",
            (image_id, before),
        )
        self._connection.execute(
            "INSERT OR IGNORE INTO rejected SELECT ?, text FROM rejected WHERE image_id = ?",
            (image_id, before),
        )
        cursor = self._connection.execute(
            "INSERT OR IGNORE INTO captions (image_id, text, language, source, origin) "
            f"SELECT ?, text, language, source, origin FROM captions "
            f"WHERE image_id = ? AND {_BY_PEOPLE} ORDER BY id",
            (image_id, before),
        )
        return cursor.rowcount

    def arrive(self, path: str, image_id: str) -> None:
        """Notes that `path`, which is in the table of files, holds this image."""
        self._connection.execute(
            "UPDATE images SET missing_since = NULL WHERE id = ? AND missing_since IS NOT NULL",
            (image_id,),
        )
        self._connection.execute(
            "DELETE FROM past_files WHERE path = ? AND image_id = ?", (path, image_id)
        )
        self._delete_other_sidecars(image_id)

    def mark_missing(self) -> None:
        """Sets the time on images that have no file since this run."""
        self._connection.execute(
            "UPDATE images SET missing_since = ? WHERE missing_since IS NULL "
            "AND id NOT IN (SELECT image_id FROM files)",
            (_now().isoformat(timespec="seconds"),),
        )

    def prune(self, keep_days: float) -> int:
        """Deletes images that have been without a file for so long; returns how many."""
        latest = (_now() - timedelta(days=keep_days)).isoformat(timespec="seconds")
        cursor = self._connection.execute("DELETE FROM images WHERE missing_since <= ?", (latest,))
        return cursor.rowcount

    def count(self) -> int:
        """How many images have no file."""
        sql = "SELECT count(*) FROM images WHERE missing_since IS NOT NULL"
        return int(self._catalog.rows(sql)[0][0])

    def _delete_other_sidecars(self, image_id: str) -> None:
        """Deletes captions of sidecars of paths that left, unless the image has no file at all."""
        self._connection.execute(
            "DELETE FROM captions WHERE image_id = ?1 AND source = ?2 "
            "AND origin NOT IN (SELECT path FROM files WHERE image_id = ?1) "
            "AND EXISTS (SELECT 1 FROM files WHERE image_id = ?1)",
            (image_id, SIDECAR),
        )


def _now() -> datetime:
    return datetime.now(timezone.utc)


_LINKED = "concepts"  # meta
_TAGS_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"


class MetadataTable:
    """Writes them; call inside a transaction."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog, self._connection = catalog, catalog.connection

    def linked_with(self) -> str | None:
        """The version of the concept table that people's tags are linked with; None: not yet."""
        return self._catalog.meta(_LINKED)

    def link(self) -> None:
        """Sets the concepts of people's tags anew, after the table has changed."""
        sql = f"SELECT DISTINCT label FROM tags WHERE {_TAGS_BY_PEOPLE}"
        for (label,) in self._catalog.rows(sql):
            named = concepts.likeliest(label)
            self._connection.execute(
                "UPDATE tags SET concept = ?1 WHERE label = ?2 AND concept != ?1 "
                f"AND {_TAGS_BY_PEOPLE}",
                (named.id if named else "", label),
            )
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", (_LINKED, concepts.version())
        )

    def put_tags(self, image_id: str, tags: Sequence[Tag]) -> None:
        """Makes these the only tags from the metadata of an image."""
        marks = ", ".join("?" * len(METADATA_SOURCES))
        self._connection.execute(
            f"DELETE FROM tags WHERE image_id = ? AND source IN ({marks})",
            (image_id, *METADATA_SOURCES),
        )
        self.add_tags(image_id, tags)

    def add_tags(self, image_id: str, tags: Sequence[Tag]) -> None:
        """More tags from the metadata of an image."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO tags (image_id, label, language, confidence, source, concept) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(image_id, *astuple(tag)) for tag in tags],
        )

    def put_fields(self, image_id: str, fields: Mapping[str, str]) -> None:
        """Makes these the only other texts of an image: headline, byline, camera, ..."""
        self._connection.execute("DELETE FROM metadata WHERE image_id = ?", (image_id,))
        self._connection.executemany(
            "INSERT INTO metadata VALUES (?, ?, ?)",
            [(image_id, key, value) for key, value in fields.items()],
        )


@dataclass(frozen=True, slots=True)
class PendingCaption:
    """A caption that has no vector yet."""

    id: int
    text: str
    language: str


class CatalogWriter:
    """All changes to a catalog. Methods that change something belong inside `transaction()`."""

    _ENCODED = "slot IS NOT NULL"  # of an image i
    _PENDING = "encoded = 0"  # of a caption c

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
        self.past_files = PastFiles(catalog)
        self.metadata = MetadataTable(catalog)
        self._connection = catalog.connection

    @contextmanager
    def transaction(self, visible: bool = True) -> Iterator[None]:
        """Commits all changes made inside, or none of them after an error.

        Changes that a search can return (`visible`) raise the catalog's revision. Searches in
        other threads wait: a connection has one transaction at a time.
        """
        with self.catalog.lock, self._naming_disk_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._connection.total_changes
            try:
                yield
                if visible and self._connection.total_changes > before:
                    self.set_meta("revision", str(self.catalog.revision() + 1))
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:  # a full disk has ended it already
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _naming_disk_errors(self) -> Iterator[None]:
        """WriteFailed when the disk is full or fails; `rows` reports it as an IndexProblem."""
        try:
            yield
        except (sqlite3.Error, IndexProblem) as problem:
            cause = problem if isinstance(problem, sqlite3.Error) else problem.__cause__
            if isinstance(cause, sqlite3.Error) and is_disk_error(cause):
                raise disk_failed(self.catalog.path, cause) from problem
            raise

    # Reading

    def array(self, name: str) -> VectorFile:
        """The vector file that new rows are appended to."""
        return self.catalog.array(name)

    def files(self, roots: Sequence[Path]) -> dict[str, KnownFile]:
        """The indexed files under `roots` by path; a root may itself be a file."""
        sql = (
            f"SELECT path, image_id, mtime_ns, f.size, sidecars, {self._ENCODED} "
            "FROM files f JOIN images i ON i.id = image_id "
            "WHERE path = ? OR (path >= ? AND path < ?)"
        )
        rows = [row for root in roots for row in self.catalog.rows(sql, (str(root), *under(root)))]
        return {row[0]: KnownFile(*row) for row in rows}

    def skipped(self, roots: Sequence[Path]) -> dict[str, tuple[ImageFile, str]]:
        """The files under `roots` that were skipped before, each with its state and the reason."""
        sql = (
            "SELECT path, mtime_ns, size, reason FROM skipped "
            "WHERE path = ? OR (path >= ? AND path < ?)"
        )
        rows = [row for root in roots for row in self.catalog.rows(sql, (str(root), *under(root)))]
        return {row[0]: (ImageFile(*row[:3]), row[3]) for row in rows}

    def encoded_ids(self) -> set[str]:
        """The ids of all images that have a vector."""
        sql = f"SELECT id FROM images i WHERE {self._ENCODED}"
        return {row[0] for row in self.catalog.rows(sql)}

    def ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that are in the catalog."""
        sql = "SELECT 1 FROM images WHERE id = ?"
        return {image_id for image_id in ids if self.catalog.rows(sql, (image_id,))}

    def encoded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector."""
        sql = f"SELECT {self._ENCODED} FROM images i WHERE id = ?"
        return {image_id for image_id in ids if self.catalog.rows(sql, (image_id,)) == [(1,)]}

    def count_pending(self, languages: Sequence[str]) -> int:
        """How many captions in these languages have not been encoded."""
        marks = ", ".join("?" * len(languages))
        sql = f"SELECT count(*) FROM captions c WHERE {self._PENDING} AND language IN ({marks})"
        return int(self.catalog.rows(sql, languages)[0][0])

    def pending_captions(self, languages: Sequence[str], limit: int) -> list[PendingCaption]:
        """The first `limit` captions in these languages that have not been encoded."""
        marks = ", ".join("?" * len(languages))
        sql = (
            "SELECT id, text, language FROM captions c "
            f"WHERE {self._PENDING} AND language IN ({marks}) ORDER BY id LIMIT ?"
        )
        return [PendingCaption(*row) for row in self.catalog.rows(sql, (*languages, limit))]

    # Writing

    def set_meta(self, key: str, value: str) -> None:
        """Sets a value of the table `meta`."""
        self._connection.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (key, value))

    def set_array(self, array: VectorFile) -> None:
        """Makes `array` the current vector file of its name."""
        row = (array.name, array.generation, array.dtype, array.width, array.rows)
        self._connection.execute("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?, ?)", row)

    def put_image(
        self,
        record: ImageRecord,
        slot: int | None,
        captions: Sequence[Caption],
        tags: Sequence[Tag],
    ) -> int:
        """Adds an image (`slot` None: not encoded) with the captions and tags of its metadata.

        Returns the number of new captions.
        """
        taken_at = record.taken_at.isoformat() if record.taken_at else None
        self._connection.execute(
            "INSERT INTO images (id, width, height, size_bytes, format, taken_at, number) "
            "VALUES (?, ?, ?, ?, ?, ?, (SELECT coalesce(max(number), 0) + 1 FROM images)) "
            "ON CONFLICT (id) DO UPDATE SET taken_at = excluded.taken_at",
            (record.id, record.width, record.height, record.size_bytes, record.format, taken_at),
        )
        self._set_image_slot(record.id, slot)
        self.metadata.put_tags(record.id, tags)
        return self._replace_captions(record.id, METADATA_SOURCES, "", captions)

    def put_file(
        self, file: ImageFile, image_id: str, captions: Sequence[Caption], new: bool = False
    ) -> int:
        """Stores that a file contains an image, and the captions of its sidecars.

        What people wrote about the image that the file had before follows to a `new` one; one
        that was known has captions of its own. Returns the number of new captions.
        """
        self._clear_path(file.path, except_image=image_id)
        followed = self.past_files.follow(file.path, image_id) if new else 0
        self._connection.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, ?)",
            (file.path, image_id, file.mtime_ns, file.size, file.sidecar_state),
        )
        self.past_files.arrive(file.path, image_id)
        return followed + self._replace_captions(image_id, (SIDECAR,), file.path, captions)

    def put_skipped(self, file: ImageFile, reason: str) -> None:
        """Stores that a file was skipped, so that it is not opened again until it changes."""
        self._clear_path(file.path)
        self._connection.execute(
            "INSERT OR REPLACE INTO skipped VALUES (?, ?, ?, ?)",
            (file.path, file.mtime_ns, file.size, reason),
        )

    def remove_files(self, paths: Sequence[str]) -> None:
        """Deletes files that no longer exist."""
        for path in paths:
            self._clear_path(path)

    def replace_named(self, origin: Path, matched: Sequence[tuple[str, NamedCaption]]) -> int:
        """Makes `matched`, (image id, caption) pairs, the only captions of a captions file.

        Images without a file match no name and keep theirs. Returns the number of new captions.
        """
        current = {(image_id, named.caption.text) for image_id, named in matched}
        sql = (
            "SELECT id, image_id, text FROM captions c WHERE origin = ? "
            "AND EXISTS (SELECT 1 FROM files WHERE image_id = c.image_id)"
        )
        outdated = [
            (number,)
            for number, image_id, text in self.catalog.rows(sql, (str(origin),))
            if (image_id, text) not in current
        ]
        self._connection.executemany("DELETE FROM captions WHERE id = ?", outdated)
        return sum(
            self._put_caption(image_id, str(origin), named.caption) for image_id, named in matched
        )

    def stale_words(self, limit: int) -> list[tuple[str, int]]:
        """(image id, number) of images whose words are not up to date."""
        sql = "SELECT id, number FROM images WHERE words_current = 0 ORDER BY number LIMIT ?"
        return self.catalog.rows(sql, (limit,))

    def put_words(self, table: str, words: Sequence[tuple[int, str]]) -> None:
        """Replaces the words of images: (number, tokens with spaces between them)."""
        self._connection.executemany(
            f"INSERT OR REPLACE INTO {table} (rowid, tokens) VALUES (?, ?)", words
        )
        self._connection.executemany(
            "UPDATE images SET words_current = 1 WHERE number = ?",
            [(number,) for number, _ in words],
        )

    def set_caption_slots(self, slots: Sequence[tuple[int, int | None]]) -> None:
        """Marks captions as encoded: (caption id, its row, or None without a known token)."""
        self._connection.executemany(
            "UPDATE captions SET encoded = 1, slot = ? WHERE id = ?",
            [(slot, number) for number, slot in slots],
        )

    def renumber(self, table: str, slots: Sequence[int]) -> None:
        """After compaction: the row at slots[n], ascending, is now row n."""
        self._connection.executemany(
            f"UPDATE {table} SET slot = ? WHERE slot = ?",
            [(new, old) for new, old in enumerate(slots) if new != old],
        )

    def clear_skipped(self) -> None:
        """Deletes the list of skipped files, so that the next run opens them again."""
        self._connection.execute("DELETE FROM skipped")

    def _set_image_slot(self, image_id: str, slot: int | None) -> None:
        self._connection.execute("UPDATE images SET slot = ? WHERE id = ?", (slot, image_id))

    def _clear_path(self, path: str, except_image: str = "") -> None:
        """Deletes a path from the skipped files, and from those of the image it had before."""
        self._connection.execute("DELETE FROM skipped WHERE path = ?", (path,))
        self.past_files.leave(path, except_image)

    def _replace_captions(
        self, image_id: str, sources: Sequence[str], origin: str, captions: Sequence[Caption]
    ) -> int:
        """Makes `captions` the only ones of these sources; unchanged ones keep their vectors.

        Returns the number of new captions.
        """
        current = {(caption.source, caption.text) for caption in captions}
        sql = "SELECT id, source, text FROM captions WHERE image_id = ? AND origin = ?"
        outdated = [
            (number,)
            for number, source, text in self.catalog.rows(sql, (image_id, origin))
            if source in sources and (source, text) not in current
        ]
        self._connection.executemany("DELETE FROM captions WHERE id = ?", outdated)
        return sum(self._put_caption(image_id, origin, caption) for caption in captions)

    def _put_caption(self, image_id: str, origin: str, caption: Caption) -> int:
        """Adds a caption; returns 0 if it already exists, 1 if it or its language is new."""
        cursor: sqlite3.Cursor = self._connection.execute(
            "INSERT INTO captions (image_id, text, language, source, origin, confidence) "
            "VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (image_id, source, origin, text) DO UPDATE "
            "SET language = excluded.language, encoded = 0, slot = NULL "
            "WHERE language != excluded.language",
            (image_id, *_columns(caption), origin, caption.confidence),
        )
        return cursor.rowcount


def _columns(caption: Caption) -> tuple[str, str, str]:
    return caption.text, caption.language, caption.source
