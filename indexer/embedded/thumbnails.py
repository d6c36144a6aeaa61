"""Thumbnails: small upright JPEG copies of images, cached in the index folder."""

from __future__ import annotations

import re
from pathlib import Path

from PIL import Image

from capsearch.encoders import atomic
from capsearch.encoders.image_files import flat_rgb, opened, turned
from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import ImageRecord
from capsearch.indexer.embedded.collection import THUMBNAILS

_QUALITY = 85  # JPEG, not WebP: Streamlit serves JPEG unchanged, but converts WebP on every request


def thumbnail(folder: Path, record: ImageRecord, edge: int = 320) -> Path:
    """The path of a JPEG of the image, at most `edge` pixels wide and high, in an index folder.

    InvalidImage when none of its files can be opened.
    """
    if not 16 <= edge <= 4096:
        raise ValueError(f"edge must be between 16 and 4096 pixels, not {edge}")
    if not re.fullmatch("[0-9a-f]{32}", record.id):
        raise InvalidImage(f"{record.id!r} is not the id of an image")
    target = folder / THUMBNAILS / record.id[:2] / f"{record.id}-{edge}.jpg"
    if not target.is_file():
        _write(record.paths, edge, target)
    return target


def _write(paths: tuple[str, ...], edge: int, target: Path) -> None:
    small = _first_that_opens(paths, edge)
    target.parent.mkdir(parents=True, exist_ok=True)
    with atomic.replacing(target) as temporary:
        small.save(temporary, "JPEG", quality=_QUALITY, optimize=True)


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
