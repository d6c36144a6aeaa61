"""Writing the catalog, inside transactions; documents are written by sqlite.documents."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from capsearch.encoders.text import concepts
from capsearch.engine.errors import IndexProblem
from capsearch.engine.records import GENERATED
from capsearch.indexer.document import days_ago, now
from capsearch.indexer.sources.scan import ImageFile, under
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.catalog import SqliteCatalog, below
from capsearch.indexer.sqlite.schema import disk_failed, is_disk_error
from capsearch.indexer.store import FileState, KnownFile

_LINKED = "concepts"  # meta: the version of the concept table that people's tags are linked with
_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"
_GIVEN = "(SELECT value FROM json_each(?))"


@dataclass(frozen=True, slots=True)
class PendingCaption:
    """A caption that has no vector yet."""

    id: int
    text: str
    language: str


class CatalogWriter:
    """Changes to a catalog. Methods that change something belong inside `transaction()`."""

    _ENCODED = "slot IS NOT NULL"  # of an image i
    _PENDING = "encoded = 0"  # of a caption c

    def __init__(self, catalog: SqliteCatalog) -> None:
        self.catalog = catalog
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
        condition, bounds = below(roots)
        sql = (
            f"SELECT path, image_id, mtime_ns, f.size, sidecars, {self._ENCODED} "
            f"FROM files f JOIN images i ON i.id = image_id WHERE {condition}"
        )
        return {row[0]: KnownFile(*row) for row in self.catalog.rows(sql, bounds)}

    def skipped(self, roots: Sequence[Path]) -> dict[str, tuple[ImageFile, str]]:
        """The files under `roots` that were skipped before, each with its state and the reason."""
        condition, bounds = below(roots)
        sql = f"SELECT path, mtime_ns, size, reason FROM skipped WHERE {condition}"
        return {row[0]: (ImageFile(*row[:3]), row[3]) for row in self.catalog.rows(sql, bounds)}

    def encoded_ids(self) -> set[str]:
        """The ids of all images that have a vector."""
        sql = f"SELECT id FROM images i WHERE {self._ENCODED}"
        return {row[0] for row in self.catalog.rows(sql)}

    def encoded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector."""
        sql = f"SELECT id FROM images i WHERE id IN {_GIVEN} AND {self._ENCODED}"
        return {row[0] for row in self.catalog.rows(sql, (json.dumps(ids),))}

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

    def set_image_slots(self, slots: Sequence[tuple[str, int]]) -> None:
        """Marks images as encoded: (id, row)."""
        self._connection.executemany(
            "UPDATE images SET slot = ? WHERE id = ?",
            [(slot, image_id) for image_id, slot in slots],
        )

    def add_roots(self, excludes: Mapping[Path, Sequence[str]]) -> None:
        """Adds roots with the globs they leave out; those inside another root are not stored."""
        known = self.catalog.roots()
        for root, globs in excludes.items():
            if any(outer in root.parents for outer in known):
                continue
            self._connection.execute("DELETE FROM roots WHERE path >= ? AND path < ?", under(root))
            self._connection.execute(
                "INSERT OR REPLACE INTO roots (path, indexed_at, exclude) VALUES (?, ?, ?)",
                (str(root), now(), json.dumps(list(globs), ensure_ascii=False)),
            )

    def add_mount_points(self, folders: Sequence[Path]) -> None:
        """Adds folders that are mount points."""
        self._connection.executemany(
            "INSERT OR IGNORE INTO mount_points VALUES (?)", [(str(folder),) for folder in folders]
        )

    def put_captions_file(self, path: Path, state: FileState) -> None:
        """Remembers a captions file that was read."""
        self._connection.execute(
            "INSERT OR REPLACE INTO captions_files VALUES (?, ?, ?)",
            (str(path), state.mtime_ns, state.size),
        )

    def put_skipped(self, files: Sequence[tuple[ImageFile, str]]) -> None:
        """Notes files with the reasons, so that they are not opened again until they change."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO skipped VALUES (?, ?, ?, ?)",
            [(file.path, file.mtime_ns, file.size, reason) for file, reason in files],
        )

    def forget_skipped(self, paths: Sequence[str]) -> None:
        """These files are gone, or are skipped no longer."""
        self._connection.executemany(
            "DELETE FROM skipped WHERE path = ?", [(path,) for path in paths]
        )

    def prune(self, days: float) -> int:
        """Deletes images that have been without a file for so long; returns how many."""
        sql = "DELETE FROM images WHERE missing_since <= ?"
        return self._connection.execute(sql, (days_ago(days),)).rowcount

    def link_tags(self) -> None:
        """Sets the concepts of people's tags anew where the concept table has changed."""
        if self.catalog.meta(_LINKED) == concepts.version():
            return
        for (label,) in self.catalog.rows(f"SELECT DISTINCT label FROM tags WHERE {_BY_PEOPLE}"):
            named = concepts.likeliest(label)
            self._connection.execute(
                f"UPDATE tags SET concept = ?1 WHERE label = ?2 AND concept != ?1 AND {_BY_PEOPLE}",
                (named.id if named else "", label),
            )
        self.set_meta(_LINKED, concepts.version())

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
