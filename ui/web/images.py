"""Image files for the page by id, and uploads as pixels: the only two ways images come in."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from capsearch.encoders.preprocess import decode
from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import ImageRecord, Pixels
from capsearch.indexer.embedded.thumbnails import thumbnail
from capsearch.ui.opening import AnyCollection

TILE_EDGE = 480
LARGE_EDGE = 1460  # pixels; Streamlit would scale down anything wider in every run
MAX_UPLOAD_PIXELS = 60_000_000
_WORKERS = 4


def image_file(collection: AnyCollection, image_id: str, edge: int) -> Path | None:
    """A cached copy of an image of the collection; None when it cannot be shown.

    The id must be in the catalog and is never used as a path, so "../secret" and "/etc" are
    merely unknown ids. The image's files must lie under the indexed folders, links followed.
    """
    document = collection.backend.lookup([image_id]).get(image_id)
    return None if document is None else record_file(collection, document.record, edge)


def record_file(collection: AnyCollection, record: ImageRecord, edge: int) -> Path | None:
    """The same for an image whose record is at hand."""
    if not inside(record.paths, collection.roots()):
        return None
    try:
        return thumbnail(collection.path, record, edge)
    except (InvalidImage, OSError):
        return None


def tile_files(
    collection: AnyCollection, records: Sequence[ImageRecord]
) -> tuple[Path | None, ...]:
    """Thumbnails for a grid, in order; missing ones are created in parallel."""
    make = partial(record_file, collection, edge=TILE_EDGE)
    return tuple(_pool().map(make, records))


@cache
def _pool() -> ThreadPoolExecutor:
    """Created once: starting threads takes longer than finding a page of cached thumbnails."""
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="thumbnails")


def inside(paths: Sequence[str], roots: Sequence[Path]) -> bool:
    """True if all paths lie under the indexed folders, links followed."""
    real = [Path(path).resolve() for path in paths]
    return all(any(path.is_relative_to(root) for root in roots) for path in real)


def upload_pixels(content: bytes, collection: AnyCollection) -> Pixels:
    """An uploaded image, preprocessed for the model; InvalidImage if it is none or too large."""
    return decode(content, collection.model.image.preprocess, MAX_UPLOAD_PIXELS).pixels
