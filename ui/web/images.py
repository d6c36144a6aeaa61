"""ImageStore by id and uploads by limit: the only two ways pixels reach the page."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path

from capsearch.encoders.preprocess import decode
from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import Pixels
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.embedded.thumbnails import thumbnail

TILE_EDGE = 480
LARGE_EDGE = 1460  # pixels; Streamlit scales down whatever is wider, at every click
MAX_UPLOAD_PIXELS = 60_000_000
_WORKERS = 4


def image_file(collection: Collection, image_id: str, edge: int) -> Path | None:
    """A cached copy of an image of the collection; None when it cannot be shown.

    The id must be in the catalog; it is never taken for a path, so "../secret" and "/etc" are
    ids nobody has. Its files must lie under the indexed folders, links followed.
    """
    record = collection.catalog.images([image_id]).get(image_id)
    if record is None or not _inside(record.paths, collection.catalog.roots()):
        return None
    try:
        return thumbnail(collection, image_id, edge)
    except (InvalidImage, OSError):
        return None


def tile_files(collection: Collection, image_ids: Sequence[str]) -> tuple[Path | None, ...]:
    """The small copies for a grid, in the order of ids; those not made yet are made at once."""
    make = partial(image_file, collection, edge=TILE_EDGE)
    return tuple(_pool().map(make, image_ids))


@cache
def _pool() -> ThreadPoolExecutor:
    """Kept: starting threads costs more than looking up a page of finished thumbnails."""
    return ThreadPoolExecutor(_WORKERS, thread_name_prefix="thumbnails")


def _inside(paths: Sequence[str], roots: Sequence[Path]) -> bool:
    real = [Path(path).resolve() for path in paths]
    return all(any(path.is_relative_to(root) for root in roots) for path in real)


def upload_pixels(content: bytes, collection: Collection) -> Pixels:
    """An uploaded image as the model wants it; InvalidImage for what is none or too large."""
    return decode(content, collection.model.image.preprocess, MAX_UPLOAD_PIXELS).pixels
