"""The model an index was built with: stored in the catalog, and in manifest.json for people.

What an index remembers of earlier runs: folders with their globs, and captions files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path

from capsearch.encoders import atomic
from capsearch.encoders.models.registry import Model
from capsearch.indexer.sqlite.catalog import SqliteCatalog, under
from capsearch.indexer.sqlite.schema import SCHEMA
from capsearch.indexer.store import FileState

NAME = "manifest.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """What decides whether stored numbers can be compared.

    Features are comparable when they come from the same backbone, vectors when they come from
    the same model. `path` is where a model is that its name does not find.
    """

    model: str
    digest: str
    backbone: str
    backbone_digest: str
    feature_dimension: int
    dimension: int
    caption_dimension: int
    path: str | None = None

    @classmethod
    def of(cls, model: Model) -> Identity:
        """The identity of the vectors `model` produces."""
        image = model.image
        return cls(
            model.name,
            model.digest,
            image.name,
            image.digest,
            image.feature_dimension,
            image.dimension,
            model.text.caption_dimension,
            None if model.path is None else str(model.path),
        )

    @classmethod
    def parse(cls, text: str) -> Identity:
        """The inverse of `text()`."""
        return cls(**json.loads(text))

    def text(self) -> str:
        """The JSON stored in the catalog; without a path if there is none, as older versions."""
        stored = {key: value for key, value in asdict(self).items() if value is not None}
        return json.dumps(stored, sort_keys=True)

    @property
    def source(self) -> str:
        """What `models.load` opens this model with: its path or its name."""
        return self.path or self.model

    def same_backbone(self, other: Identity) -> bool:
        """True when stored features can be reused: no image needs to be encoded again."""
        return (self.backbone_digest, self.feature_dimension) == (
            other.backbone_digest,
            other.feature_dimension,
        )

    def same_vectors(self, other: Identity) -> bool:
        """True when vectors of both may be in one index."""
        return (self.digest, self.dimension, self.caption_dimension) == (
            other.digest,
            other.dimension,
            other.caption_dimension,
        )

    def __str__(self) -> str:
        return f"{self.model}@{self.digest[:8]}"


def now() -> str:
    """The current UTC time as stored in the catalog and the manifest."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def write(folder: Path, identity: Identity, created_at: str, updated_at: str) -> None:
    """Replaces manifest.json atomically. Called last, so that it only describes whole indexes."""
    content = {
        "schema": SCHEMA,
        "model": {
            "name": identity.model,
            "digest": identity.digest,
            **({"path": identity.path} if identity.path else {}),
        },
        "backbone": {"name": identity.backbone, "digest": identity.backbone_digest},
        "dimensions": {
            "feature": identity.feature_dimension,
            "image": identity.dimension,
            "caption": identity.caption_dimension,
        },
        "created_at": created_at,
        "updated_at": updated_at,
    }
    with atomic.writing(folder / NAME):
        atomic.write_text(folder / NAME, json.dumps(content, indent=2, ensure_ascii=False))


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
