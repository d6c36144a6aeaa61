"""Which files in an index folder are the index's own: only these are ever deleted."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from capsearch.encoders import atomic
from capsearch.engine.errors import NotAnIndex
from capsearch.indexer.embedded.arrays import ARRAY_TYPES, CODES, IMAGES, SUFFIXES
from capsearch.indexer.embedded.catalog import SqliteCatalog

CATALOG, LOCK, MANIFEST = "catalog.sqlite", "writer.lock", "manifest.json"
# What a process that was killed while it created an index leaves, and what systems put anywhere.
_BEFORE_THE_CATALOG = frozenset(
    {LOCK, f"{CATALOG}-wal", f"{CATALOG}-shm", f"{CATALOG}-journal"}
    | {"lost+found", ".DS_Store", "Thumbs.db", "desktop.ini"}
)
_VECTOR_FILE = re.compile(r"(?P<name>[a-z]+)-(?P<generation>[1-9]\d{0,8})(?P<suffix>\.[a-z0-9]+)")


def require_own_folder(folder: Path) -> None:
    """NotAnIndex for a folder that holds anything but an index; one that is not there will do."""
    if not folder.exists() or (folder / CATALOG).is_file():
        return
    strange = sorted(path.name for path in folder.iterdir() if path.name not in _BEFORE_THE_CATALOG)
    if strange:
        shown = ", ".join(strange[:3]) + (", ..." if len(strange) > 3 else "")
        raise NotAnIndex(
            f"{folder} is neither empty nor an index: it holds {shown}; an index needs a folder of "
            f"its own, as in --index {folder / 'capsearch.index'}"
        )


def remove_unreferenced(folder: Path, catalog: SqliteCatalog) -> None:
    """Deletes old generations of vector files, their caches, and temporary files of a killed
    writer; nothing that this index did not write."""
    current = {
        path.name
        for array in catalog.arrays()
        for path in (array.path, array.codes_path, array.images_path)
    }
    latest = {name: catalog.last_generation(name) for name in ARRAY_TYPES}
    for path in _own(folder, latest):
        if path.name not in current:
            with suppress(OSError):  # on Windows, open in a reader: the next writer retries
                path.unlink()


def _own(folder: Path, latest: dict[str, int]) -> Iterator[Path]:
    """Vector files up to the generation that a killed writer may have begun; temporary files."""
    for path in folder.iterdir():
        target = atomic.target_name(path.name)
        if _is_vector_file(target or path.name, latest) or target == MANIFEST:
            yield path


def _is_vector_file(file_name: str, latest: dict[str, int]) -> bool:
    match = _VECTOR_FILE.fullmatch(file_name)
    if match is None or match["name"] not in latest:
        return False
    suffixes = (
        SUFFIXES[ARRAY_TYPES[match["name"]]],
        CODES,
        IMAGES,
        ".faiss",
    )  # older versions: .faiss
    return match["suffix"] in suffixes and int(match["generation"]) <= latest[match["name"]] + 1
