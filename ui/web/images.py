"""Files of images for the page: thumbnails, and originals as downloads, lists and a zip.

Only files under the indexed folders, links followed, ever leave this module.
"""

from __future__ import annotations

import csv
import io
import mimetypes
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import ImageRecord
from capsearch.library import Library
from capsearch.ui.values import printable

TILE_EDGE = 480
LARGE_EDGE = 1460  # pixels; Streamlit would scale down anything wider in every run
_WORKERS = 4


def image_file(library: Library, image_id: str, edge: int) -> Path | None:
    """A cached copy of an image of the library; None when it cannot be shown.

    The id must be in the library and is never used as a path, so "../secret" and "/etc" are
    merely unknown ids. The image's files must lie under the indexed folders, links followed.
    """
    document = library.lookup([image_id]).get(image_id)
    return None if document is None else record_file(library, document.record, edge)


def record_file(library: Library, record: ImageRecord, edge: int) -> Path | None:
    """The same for an image whose record is at hand."""
    if not inside(record.paths, library.roots()):
        return None
    try:
        return library.thumbnail(record, edge)
    except (InvalidImage, OSError):
        return None


def tile_files(library: Library, records: Sequence[ImageRecord]) -> tuple[Path | None, ...]:
    """Thumbnails for a grid, in order; missing ones are created in parallel."""
    make = partial(record_file, library, edge=TILE_EDGE)
    return tuple(_pool().map(make, records))


@cache
def _pool() -> ThreadPoolExecutor:
    """Created once: starting threads takes longer than finding a page of cached thumbnails."""
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="thumbnails")


def inside(paths: Sequence[str], roots: Sequence[Path]) -> bool:
    """True if all paths lie under the indexed folders, links followed."""
    real = [Path(path).resolve() for path in paths]
    return all(any(path.is_relative_to(root) for root in roots) for path in real)


MAX_DOWNLOAD_BYTES = 500_000_000  # Streamlit keeps a download in memory
_COLUMNS = ("path", "width", "height", "size_bytes", "format", "taken_at")
_LEFT_OUT = "left out.txt"


def original(library: Library, record: ImageRecord) -> Path | None:
    """The image's first file that is still there; None if there is none."""
    roots = library.roots()
    paths = (Path(path) for path in record.paths if inside([path], roots))
    return next((path for path in paths if path.is_file()), None)


def read_original(library: Library, record: ImageRecord) -> bytes:
    """The bytes of the original, looked up now; FileNotFoundError if it is gone."""
    path = original(library, record)
    if path is None:
        raise FileNotFoundError(record.path)
    return path.read_bytes()


def mime_type(path: Path) -> str:
    """The type of an image file by its suffix."""
    guessed = mimetypes.guess_type(path.name)[0] or ""
    return guessed if guessed.startswith("image/") else "application/octet-stream"


def records_of(library: Library, image_ids: Sequence[str]) -> tuple[ImageRecord, ...]:
    """The records of images in this order; those no longer in the library are left out."""
    documents = library.lookup(image_ids)
    return tuple(documents[image_id].record for image_id in image_ids if image_id in documents)


def paths_as_text(records: Sequence[ImageRecord]) -> bytes:
    """One path a line, byte for byte as in the file system."""
    return b"".join(os.fsencode(record.path) + b"\n" for record in records)


def paths_as_csv(records: Sequence[ImageRecord]) -> bytes:
    """A table of paths, sizes and dates; UTF-8 with a byte order mark, which Excel needs."""
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(_COLUMNS)
    for record in records:
        taken_at = record.taken_at.isoformat() if record.taken_at else ""
        size = (record.width, record.height, record.size_bytes)
        writer.writerow((record.path, *size, record.format, taken_at))
    return table.getvalue().encode("utf-8-sig", "surrogateescape")


def total_bytes(records: Sequence[ImageRecord]) -> int:
    """The size of all originals together, as indexed."""
    return sum(record.size_bytes for record in records)


def zip_originals(
    library: Library, records: Sequence[ImageRecord], max_bytes: int = MAX_DOWNLOAD_BYTES
) -> bytes:
    """A zip of the originals. Files that are gone or no longer fit are listed inside it."""
    left_out: list[str] = []
    with tempfile.TemporaryFile() as target:
        with zipfile.ZipFile(target, "w", strict_timestamps=False) as archive:
            for record, name in zip(records, _names(records), strict=True):
                path = original(library, record)
                if path is None or not _add(archive, path, name, max_bytes - target.tell()):
                    left_out.append(record.path)
            if left_out:
                archive.writestr(_LEFT_OUT, "".join(f"{printable(path)}\n" for path in left_out))
        target.seek(0)
        return target.read()


def _add(archive: zipfile.ZipFile, path: Path, name: str, space: int) -> bool:
    """Copy a file into the archive, uncompressed as images already are; False if it cannot be."""
    try:
        with path.open("rb") as source:
            entry = zipfile.ZipInfo.from_file(path, name, strict_timestamps=False)
            if entry.file_size > space:
                return False
            with archive.open(entry, "w") as target:
                shutil.copyfileobj(source, target)
    except OSError:
        return False
    return True


def _names(records: Sequence[ImageRecord]) -> Iterator[str]:
    """A file name for each image, made different by numbers; without folders."""
    taken = {_LEFT_OUT.lower()}
    for record in records:
        path = Path(printable(Path(record.path).name))
        name, number = path.name, 2
        while name.lower() in taken:  # Windows and macOS ignore case
            name, number = f"{path.stem} ({number}){path.suffix}", number + 1
        taken.add(name.lower())
        yield name
