"""What an index remembers of earlier runs: folders with their globs, and captions files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.filters import under
from capsearch.indexer.embedded.manifest import now
from capsearch.indexer.store import FileState


class Remembered:
    """The tables `roots`, `mount_points` and `captions_files`. Changes belong in transactions."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog, self._connection = catalog, catalog.connection

    def excludes(self) -> dict[Path, tuple[str, ...]]:
        """The globs that each root leaves out."""
        rows = self._catalog.rows("SELECT path, exclude FROM roots ORDER BY path")
        return {Path(path): tuple(json.loads(globs)) for path, globs in rows}

    def add_roots(self, excludes: Mapping[Path, Sequence[str]]) -> None:
        """Adds roots with the globs they leave out; those inside another root are not stored."""
        known = self._catalog.roots()
        for root, globs in excludes.items():
            if any(outer in root.parents for outer in known):
                continue
            self._connection.execute("DELETE FROM roots WHERE path >= ? AND path < ?", under(root))
            self._connection.execute(
                "INSERT OR REPLACE INTO roots (path, indexed_at, exclude) VALUES (?, ?, ?)",
                (str(root), now(), json.dumps(list(globs), ensure_ascii=False)),
            )

    def forget_root(self, root: Path) -> None:
        """Deletes a root and all that was in it: files, their sidecars' captions, skipped files,
        and images found nowhere else, with what was written about them."""
        bounds = (str(root), *under(root))
        there = "WHERE path = ?1 OR (path >= ?2 AND path < ?3)"
        ids = self._catalog.rows(
            f"SELECT image_id FROM files {there} UNION SELECT image_id FROM past_files {there}",
            bounds,
        )
        for table in ("files", "skipped", "past_files", "mount_points"):
            self._connection.execute(f"DELETE FROM {table} {there}", bounds)
        self._connection.execute(
            "DELETE FROM captions WHERE source = 'sidecar' "
            "AND (origin = ?1 OR (origin >= ?2 AND origin < ?3))",
            bounds,
        )
        self._connection.executemany(
            "DELETE FROM images WHERE id = ?1 "
            "AND NOT EXISTS (SELECT 1 FROM files WHERE image_id = ?1)",
            ids,
        )
        self._connection.execute("DELETE FROM roots WHERE path = ?", (str(root),))

    def mount_points(self) -> set[Path]:
        """Folders below roots that were mount points when their images were last seen."""
        return {Path(row[0]) for row in self._catalog.rows("SELECT path FROM mount_points")}

    def add_mount_points(self, folders: Sequence[Path]) -> None:
        """Adds such folders."""
        self._connection.executemany(
            "INSERT OR IGNORE INTO mount_points VALUES (?)", [(str(folder),) for folder in folders]
        )

    def captions_files(self) -> dict[Path, FileState]:
        """The captions files read so far."""
        rows = self._catalog.rows("SELECT path, mtime_ns, size FROM captions_files ORDER BY path")
        return {Path(path): FileState(*state) for path, *state in rows}

    def put_captions_file(self, path: Path, state: FileState) -> None:
        """Remembers a captions file that was read."""
        self._connection.execute(
            "INSERT OR REPLACE INTO captions_files VALUES (?, ?, ?)",
            (str(path), state.mtime_ns, state.size),
        )

    def forget_captions_file(self, path: Path) -> None:
        """Deletes a captions file with its captions."""
        self._connection.execute("DELETE FROM captions_files WHERE path = ?", (str(path),))
        self._connection.execute(
            "DELETE FROM captions WHERE origin = ? AND source IN ('csv', 'coco')", (str(path),)
        )
