"""Small upright copies of images, made once and kept inside the index folder."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

from PIL import Image

from capsearch.encoders.image_files import flat_rgb, opened, turned
from capsearch.engine.errors import InvalidImage
from capsearch.indexer.embedded.collection import THUMBNAILS, Collection

_QUALITY = 85  # JPEG, not WebP: Streamlit passes JPEG on as it is, but converts WebP every time


def thumbnail(collection: Collection, image_id: str, edge: int = 320) -> Path:
    """A JPEG of the image, at most `edge` pixels each way.

    InvalidImage for an id the catalog does not have, or when no file of it opens any more.
    """
    if not 16 <= edge <= 4096:
        raise ValueError(f"edge lies between 16 and 4096 pixels, not {edge}")
    record = collection.catalog.images([image_id]).get(image_id)
    if record is None or not re.fullmatch("[0-9a-f]{32}", image_id):
        raise InvalidImage(f"no image with id {image_id!r} in this index")
    target = collection.path / THUMBNAILS / image_id[:2] / f"{image_id}-{edge}.jpg"
    if not target.is_file():
        _make(record.paths, edge, target)
    return target


def _make(paths: tuple[str, ...], edge: int, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.stem}.{os.getpid()}.{threading.get_ident()}")
    small = _first_that_opens(paths, edge)
    small.save(temporary, "JPEG", quality=_QUALITY, optimize=True)
    temporary.replace(target)


def _first_that_opens(paths: tuple[str, ...], edge: int) -> Image.Image:
    problems = []
    for path in paths:
        try:
            with opened(Path(path)) as image:
                image.draft("RGB", (2 * edge, 2 * edge))
                small = flat_rgb(image)
                small.thumbnail((edge, edge), Image.Resampling.BICUBIC)
                return turned(small, image)
        except InvalidImage as problem:
            problems.append(f"{path}: {problem}")
    raise InvalidImage("; ".join(problems))
