"""Reading the catalog: records, captions, tags and filters from SQLite."""

from __future__ import annotations

import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from capsearch.engine.errors import IndexProblem
from capsearch.engine.records import GENERATED, Caption, Document, Filters, ImageRecord, Tag
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.filters import sources, where
from capsearch.indexer.embedded.schema import ENRICHED_SCHEMA, WORDS_SCHEMA, close, connect

SEARCHABLE = "searchable"  # meta: "REVISION COUNT"
_FEW = 5_000  # images that are sorted by date quicker than all are walked through
_CHUNK = 500  # ids per statement; every SQLite allows 999 variables


class SqliteCatalog:
    """Reads catalog.sqlite. Threads may share one object."""

    def __init__(self, path: Path, write: bool = False) -> None:
        self.path, self.folder = path, path.parent
        self.connection, self._write = connect(path, write), write
        self.lock = threading.RLock()  # one statement, snapshot or transaction at a time

    def images(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Records by id; ids that are unknown or have no file are left out."""
        paths: dict[str, list[str]] = defaultdict(list)
        for image_id, path in self._rows_by_id(
            "SELECT image_id, path FROM files WHERE image_id IN ({}) ORDER BY path", ids
        ):
            paths[image_id].append(path)
        rows = self._rows_by_id(
            "SELECT id, width, height, size_bytes, format, taken_at FROM images WHERE id IN ({})",
            ids,
        )
        return {row[0]: _record(row, paths[row[0]]) for row in rows if row[0] in paths}

    def captions(self, ids: Sequence[str]) -> Mapping[str, tuple[Caption, ...]]:
        """All captions of each image, those written by people first."""
        rows = self._rows_by_id(
            f"SELECT image_id, text, language, source, {self.confidence()} FROM captions "
            f"WHERE image_id IN ({{}}) ORDER BY source GLOB '{GENERATED}*', id",
            ids,
        )
        return self._grouped(ids, ((row[0], Caption(*row[1:])) for row in rows))

    def tags(self, ids: Sequence[str]) -> Mapping[str, tuple[Tag, ...]]:
        """All tags of each image, by falling confidence."""
        concept = "concept" if self.is_enriched() else "''"
        rows = self._rows_by_id(
            f"SELECT image_id, label, language, confidence, source, {concept} FROM tags "
            "WHERE image_id IN ({}) ORDER BY confidence DESC, label, language, source",
            ids,
        )
        return self._grouped(ids, ((row[0], Tag(*row[1:])) for row in rows))

    def documents(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Images with everything written about them; ids without a file are left out."""
        captions, tags, metadata = self.captions(ids), self.tags(ids), self.metadata(ids)
        return {
            image_id: Document(
                record,
                captions.get(image_id, ()),
                tags.get(image_id, ()),
                metadata.get(image_id, {}),
            )
            for image_id, record in self.images(ids).items()
        }

    def metadata(self, ids: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Texts of each image that are neither captions nor tags, by what they are."""
        found: dict[str, dict[str, str]] = defaultdict(dict)
        if self.has_words():
            sql = "SELECT image_id, key, value FROM metadata WHERE image_id IN ({})"
            for image_id, key, value in self._rows_by_id(sql, ids):
                found[image_id][key] = value
        return found

    def select(self, filters: Filters) -> list[Any]:
        """(id,) of the images that pass filters and have a file."""
        conditions, values = self.where(filters)
        return self.rows(f"SELECT id FROM images i WHERE {conditions}", values)

    def where(self, filters: Filters) -> tuple[str, list[object]]:
        """A condition on images `i` and its values: they have a file and pass the filters."""
        return where(filters, self.is_enriched())

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[str, ...]:
        """Ids by the date the images were taken, latest first, undated last; ties by id."""
        conditions, values = self.where(filters)
        for condition, operands in self.few(filters, _FEW):
            conditions += f" AND {condition}"
            values += operands
        # NULL sorts as the least: undated images come last without saying so, by index.
        sql = (
            f"SELECT id FROM images i WHERE {conditions} "
            "ORDER BY taken_at DESC, id LIMIT ? OFFSET ?"
        )
        return tuple(row[0] for row in self.rows(sql, [*values, limit, offset]))

    def few(self, filters: Filters, limit: int) -> Iterator[tuple[str, list[object]]]:
        """Conditions that less than `limit` images pass, in the form that looks these up.

        Without them SQLite walks through all images.
        """
        for source, operands in sources(filters, self.is_enriched()):
            sql = f"SELECT count(*) FROM (SELECT 1 {source} LIMIT {limit})"
            if self.rows(sql, operands)[0][0] < limit:
                yield f"i.id IN (SELECT image_id {source})", operands

    def array(self, name: str, table: str = "arrays") -> VectorFile:
        """The vector file called `name`, as the table `arrays` or `next_arrays` describes it."""
        sql = f"SELECT name, generation, dtype, width, rows FROM {table} WHERE name = ?"
        [row] = self.rows(sql, (name,))
        return VectorFile(self.folder, *row)

    def arrays(self) -> tuple[VectorFile, ...]:
        """All vector files, also those of a rebuild that is not complete."""
        sql = "SELECT name, generation, dtype, width, rows FROM {}"
        tables = ("arrays", "next_arrays")
        rows = [row for table in tables for row in self.rows(sql.format(table))]
        return tuple(VectorFile(self.folder, *row) for row in rows)

    def last_generation(self, name: str) -> int:
        """The highest generation of a vector file that the catalog names."""
        return max(array.generation for array in self.arrays() if array.name == name)

    def meta(self, key: str) -> str | None:
        """The value of `key` in the table `meta`, or None."""
        rows = self.rows("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def searchable_count(self) -> int:
        """How many images have a file and a vector; counted only if no writer stored it."""
        revision, _, stored = (self.meta(SEARCHABLE) or "").partition(" ")
        if stored and int(revision) == self.revision():
            return int(stored)
        present = "SELECT count(*) FROM (SELECT DISTINCT image_id FROM files)"
        pending = (
            "SELECT count(*) FROM images i WHERE slot IS NULL "
            "AND EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"
        )
        return int(self.rows(present)[0][0]) - int(self.rows(pending)[0][0])

    def has_words(self) -> bool:
        """False in a catalog of an older capsearch that no writer has opened since."""
        return self.schema() >= WORDS_SCHEMA

    def is_enriched(self) -> bool:
        """False in a catalog of an older capsearch: its captions have no probabilities."""
        return self.schema() >= ENRICHED_SCHEMA

    def confidence(self) -> str:
        """The column with the probability of a caption, or what stands for it."""
        return "confidence" if self.is_enriched() else "1.0"

    def schema(self) -> int:
        """The number of migrations applied; an older capsearch may have written the catalog."""
        return int(self.rows("PRAGMA user_version")[0][0])

    def revision(self) -> int:
        """A number that grows with every visible change; caches of older revisions are stale."""
        return int(self.meta("revision") or 0)

    def roots(self) -> tuple[Path, ...]:
        """The folders indexed so far, sorted."""
        return tuple(Path(row[0]) for row in self.rows("SELECT path FROM roots ORDER BY path"))

    def image_paths(self) -> list[tuple[str, str]]:
        """(path, image id) of every file, sorted by path."""
        return self.rows("SELECT path, image_id FROM files ORDER BY path")

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """All rows of one statement. IndexProblem when the database is damaged."""
        try:
            with self.lock:
                return self.connection.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as problem:
            raise IndexProblem(f"{self.folder}: {problem}; is the index damaged?") from problem

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside use one state of the database, even if another process writes."""
        with self.lock:
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("COMMIT")

    def close(self) -> None:
        """Closes the connection."""
        close(self.connection, self.path, self._write)

    def _rows_by_id(self, sql: str, ids: Sequence[str]) -> Iterator[Any]:
        """The rows of a statement with `IN ({})`, which is filled with `ids`, a chunk at a time."""
        unique = list(dict.fromkeys(ids))
        for start in range(0, len(unique), _CHUNK):
            chunk = unique[start : start + _CHUNK]
            yield from self.rows(sql.format(", ".join("?" * len(chunk))), chunk)

    def _grouped(self, ids: Sequence[str], pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
        """Each known id with its entries, equal ones once; () for an image without any."""
        groups: dict[str, dict[Any, None]] = defaultdict(dict)
        for image_id, entry in pairs:
            groups[image_id][entry] = None
        sql = "SELECT id FROM images WHERE id IN ({})"
        known = {row[0] for row in self._rows_by_id(sql, ids)}
        return {image_id: tuple(groups[image_id]) for image_id in ids if image_id in known}


def _record(row: Sequence[Any], paths: Sequence[str]) -> ImageRecord:
    taken_at = datetime.fromisoformat(row[5]) if row[5] else None
    image_id, width, height, size_bytes, kind, _ = row
    return ImageRecord(image_id, tuple(paths), width, height, size_bytes, kind, taken_at)


def within(column: str, numbers: Sequence[int]) -> str:
    """A condition with integers written out: there may be more than SQLite has variables."""
    return f"{column} IN ({', '.join(map(str, numbers))})"
