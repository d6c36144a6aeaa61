"""The catalog as a search sees it: records, captions, tags and filters, out of SQLite."""

from __future__ import annotations

import os
import sqlite3
import threading
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from capsearch.engine.errors import IndexProblem
from capsearch.engine.records import GENERATED, Caption, Filters, ImageRecord, Tag
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.schema import connect

_CHUNK = 500  # ids in one statement; SQLite allows at least 999 variables
_MADE_BY = {"people": "NOT GLOB", "models": "GLOB"}


class SqliteCatalog:
    """engine.protocols.Catalog over catalog.sqlite. One object may serve several threads."""

    def __init__(self, path: Path, write: bool = False) -> None:
        self.folder = path.parent
        self.connection = connect(path, write)
        self._lock = threading.RLock()

    def images(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Records by id; unknown ids are left out."""
        paths: dict[str, list[str]] = defaultdict(list)
        for image_id, path in self._about(
            "SELECT image_id, path FROM files WHERE image_id IN ({}) ORDER BY path", ids
        ):
            paths[image_id].append(path)
        rows = self._about(
            "SELECT id, width, height, size_bytes, format, taken_at FROM images WHERE id IN ({})",
            ids,
        )
        return {row[0]: _record(row, paths[row[0]]) for row in rows if row[0] in paths}

    def captions(self, ids: Sequence[str]) -> Mapping[str, tuple[Caption, ...]]:
        """All captions of each image, people's before models'."""
        rows = self._about(
            f"SELECT image_id, text, language, source FROM captions WHERE image_id IN ({{}}) "
            f"ORDER BY source GLOB '{GENERATED}*', id",
            ids,
        )
        return self._grouped(ids, ((row[0], Caption(*row[1:])) for row in rows))

    def tags(self, ids: Sequence[str]) -> Mapping[str, tuple[Tag, ...]]:
        """All tags of each image, surest first."""
        rows = self._about(
            "SELECT image_id, label, language, confidence, source FROM tags "
            "WHERE image_id IN ({}) ORDER BY confidence DESC, label, language, source",
            ids,
        )
        return self._grouped(ids, ((row[0], Tag(*row[1:])) for row in rows))

    def caption(self, item: int) -> Caption:
        """The caption numbered `item`."""
        rows = self.rows("SELECT text, language, source FROM captions WHERE id = ?", (item,))
        if not rows:
            raise IndexProblem("the index changed during the search; search again")
        return Caption(*rows[0])

    def select(self, filters: Filters) -> frozenset[str]:
        """The ids of all images that pass."""
        conditions, values = ["TRUE"], []
        for condition, operands in _conditions(filters):
            conditions.append(condition)
            values.extend(operands)
        sql = f"SELECT id FROM images i WHERE {' AND '.join(conditions)}"
        return frozenset(row[0] for row in self.rows(sql, values))

    def array(self, name: str) -> VectorFile:
        """An array's row of the table `arrays`."""
        sql = "SELECT name, generation, dtype, width, rows FROM arrays WHERE name = ?"
        [row] = self.rows(sql, (name,))
        return VectorFile(self.folder, *row)

    def meta(self, key: str) -> str | None:
        """A value of the table `meta`."""
        rows = self.rows("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def image_count(self) -> int:
        """How many images the catalog holds."""
        return int(self.rows("SELECT count(*) FROM images")[0][0])

    def revision(self) -> int:
        """Grows with every change: what was built from an older one is stale."""
        return int(self.meta("revision") or 0)

    def roots(self) -> tuple[Path, ...]:
        """The folders indexed so far, in order."""
        return tuple(Path(row[0]) for row in self.rows("SELECT path FROM roots ORDER BY path"))

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[Any]:
        """All rows of one statement."""
        try:
            with self._lock:
                return self.connection.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as problem:
            raise IndexProblem(f"{self.folder}: {problem}; is the index damaged?") from problem

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """All reads inside see one state, whatever a writer does meanwhile."""
        with self._lock:
            self.connection.execute("BEGIN")
            try:
                yield
            finally:
                self.connection.execute("COMMIT")

    def close(self) -> None:
        """Closes the connection."""
        self.connection.close()

    def _about(self, sql: str, ids: Sequence[str]) -> Iterator[Any]:
        unique = list(dict.fromkeys(ids))
        for start in range(0, len(unique), _CHUNK):
            chunk = unique[start : start + _CHUNK]
            yield from self.rows(sql.format(", ".join("?" * len(chunk))), chunk)

    def _grouped(self, ids: Sequence[str], pairs: Iterator[tuple[str, Any]]) -> dict[str, Any]:
        """Every known id with its tuple, empty where it has none; equal entries once."""
        groups: dict[str, dict[Any, None]] = defaultdict(dict)
        for image_id, one in pairs:
            groups[image_id][one] = None
        known = {row[0] for row in self._about("SELECT id FROM images WHERE id IN ({})", ids)}
        return {one: tuple(groups[one]) for one in ids if one in known}


def _record(row: Sequence[Any], paths: Sequence[str]) -> ImageRecord:
    taken_at = datetime.fromisoformat(row[5]) if row[5] else None
    image_id, width, height, size_bytes, kind, _ = row
    return ImageRecord(image_id, tuple(paths), width, height, size_bytes, kind, taken_at)


def _conditions(filters: Filters) -> Iterator[tuple[str, list[object]]]:
    """(SQL, values) for each part of a filter that asks for something."""
    if filters.folders:
        ranges = " OR ".join(["path >= ? AND path < ?"] * len(filters.folders))
        bounds: list[object] = [bound for folder in filters.folders for bound in under(folder)]
        yield f"EXISTS (SELECT 1 FROM files WHERE image_id = i.id AND ({ranges}))", bounds
    for label in filters.tags:
        yield "EXISTS (SELECT 1 FROM tags WHERE image_id = i.id AND label = ?)", [label]
    if filters.taken_from is not None:
        yield "taken_at >= ?", [filters.taken_from.isoformat()]
    if filters.taken_until is not None:
        yield "taken_at < ?", [(filters.taken_until + timedelta(days=1)).isoformat()]
    if filters.caption_language is not None or filters.written_by is not None:
        yield _caption_condition(filters)


def _caption_condition(filters: Filters) -> tuple[str, list[object]]:
    """One and the same caption must meet both wishes."""
    wishes, values = ["image_id = i.id"], list[object]()
    if filters.caption_language is not None:
        wishes.append("language = ?")
        values.append(filters.caption_language)
    if filters.written_by is not None:
        wishes.append(f"source {_MADE_BY[filters.written_by]} '{GENERATED}*'")
    return f"EXISTS (SELECT 1 FROM captions WHERE {' AND '.join(wishes)})", values


def under(folder: str | Path) -> tuple[str, str]:
    """The range of paths that lie under a folder: from "/a/" up to, not including, "/a0"."""
    prefix = str(folder).rstrip(os.sep)
    return prefix + os.sep, prefix + chr(ord(os.sep) + 1)
