"""Statistics of an index: counts, models, and bytes on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from capsearch.indexer.embedded.arrays import CODES, IMAGES
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.manifest import Identity
from capsearch.indexer.embedded.past_files import PastFiles
from capsearch.indexer.embedded.remembered import Remembered
from capsearch.indexer.embedded.schema import FACETS_SCHEMA, SCHEMA

THUMBNAILS = "thumbnails"
_PARTS = ("catalog", "features", "vectors", "captions", THUMBNAILS, "cache")


@dataclass(frozen=True, slots=True)
class CollectionStats:
    """Counts of an index's contents, its bytes on disk, and the model it was built with."""

    images: int
    files: int
    captions: int
    captions_by_language: Mapping[str, int]
    captions_by_source: Mapping[str, int]
    tags: int
    skipped: int
    roots: tuple[str, ...]
    bytes_on_disk: Mapping[str, int]
    model: str
    model_digest: str
    backbone: str
    backbone_digest: str
    schema: int
    created_at: str
    updated_at: str
    model_path: str | None = None  # of a model that was given by path
    missing: int = 0  # images without a file, which are kept for a while
    excludes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # globs of each root
    captions_files: tuple[str, ...] = ()  # read again in every run


def measure(path: Path, catalog: SqliteCatalog, identity: Identity) -> CollectionStats:
    """Counts the rows of the catalog and the bytes of the files in `path`."""

    def count(table: str) -> int:
        return int(catalog.rows(f"SELECT count(*) FROM {table}")[0][0])

    return CollectionStats(
        images=count("images i WHERE EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"),
        files=count("files"),
        captions=count("captions"),
        captions_by_language=_by(catalog, "captions", "language"),
        captions_by_source=_by(catalog, "captions", "source"),
        tags=count("tags"),
        skipped=count("skipped"),
        roots=tuple(str(root) for root in catalog.roots()),
        bytes_on_disk=_sizes(path),
        model=identity.model,
        model_digest=identity.digest,
        backbone=identity.backbone,
        backbone_digest=identity.backbone_digest,
        schema=SCHEMA,
        created_at=catalog.meta("created_at") or "",
        updated_at=catalog.meta("updated_at") or "",
        model_path=identity.path,
        **_remembered(catalog),
    )


def _remembered(catalog: SqliteCatalog) -> dict[str, Any]:
    """What catalogs of older versions do not have."""
    if catalog.schema() < FACETS_SCHEMA:
        return {}
    remembered = Remembered(catalog)
    return {
        "missing": PastFiles(catalog).count(),
        "excludes": {str(root): globs for root, globs in remembered.excludes().items() if globs},
        "captions_files": tuple(str(path) for path in remembered.captions_files()),
    }


def _by(catalog: SqliteCatalog, table: str, column: str) -> dict[str, int]:
    """The number of rows for each value of a column, the most frequent value first."""
    sql = f"SELECT {column}, count(*) FROM {table} GROUP BY 1 ORDER BY 2 DESC, 1"
    return dict(catalog.rows(sql))


def _sizes(path: Path) -> dict[str, int]:
    sizes = dict.fromkeys(_PARTS, 0)
    for file in path.rglob("*"):
        if file.is_file():
            sizes[_part(file.relative_to(path))] += file.stat().st_size
    return sizes


def _part(file: Path) -> str:
    """The entry of _PARTS for a file such as thumbnails/..., catalog.sqlite-wal, vectors-1.f32."""
    if file.suffix in (CODES, IMAGES):
        return "cache"
    first = file.parts[0].split("-")[0].removesuffix(".sqlite")
    return first if first in _PARTS else "cache"
