"""Thumbnails: small upright JPEG copies of images, cached in the index folder."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

from PIL import Image
from platformdirs import user_cache_path

from capsearch.encoders import atomic
from capsearch.encoders.images.open import flat_rgb, opened, turned
from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import ImageRecord

THUMBNAILS = "thumbnails"  # the folder's name
_NAME = re.compile(r"(?P<id>[0-9a-f]{32})-\d{2,4}\.jpg")
_QUALITY = 85  # JPEG, not WebP: Streamlit serves JPEG unchanged, but converts WebP on every request


def thumbnail(folder: Path, record: ImageRecord, edge: int = 320) -> Path:
    """The path of a JPEG of the image, at most `edge` pixels wide and high, in an index folder.

    If this user cannot write there, it is made in the user's cache. InvalidImage when none of its
    files can be opened.
    """
    if not 16 <= edge <= 4096:
        raise ValueError(f"edge must be between 16 and 4096 pixels, not {edge}")
    if not re.fullmatch("[0-9a-f]{32}", record.id):
        raise InvalidImage(f"{record.id!r} is not the id of an image")
    name = Path(record.id[:2], f"{record.id}-{edge}.jpg")
    made = folder / THUMBNAILS / name
    target = made if made.is_file() or _writable(folder) else user_thumbnails(folder) / name
    if not target.is_file():
        _write(record.paths, edge, target)
    return target


def user_thumbnails(folder: Path) -> Path:
    """Where this user keeps thumbnails of an index that only others can write to."""
    digest = hashlib.blake2b(str(folder.resolve()).encode(), digest_size=8).hexdigest()
    return user_cache_path("capsearch") / THUMBNAILS / digest


def prune(folder: Path, kept: Collection[str]) -> None:
    """Deletes the thumbnails of all images but those that are kept.

    Only files that `thumbnail` names so are deleted, and nothing behind a symbolic link.
    """
    for path, image_id in _thumbnails(folder / THUMBNAILS):
        if image_id not in kept:
            with suppress(OSError):
                path.unlink()


def delete(folder: Path, image_ids: Collection[str]) -> None:
    """Deletes the thumbnails of images, as `prune` does."""
    for path, image_id in _thumbnails(folder / THUMBNAILS):
        if image_id in image_ids:
            with suppress(OSError):
                path.unlink()


def _thumbnails(folder: Path) -> Iterator[tuple[Path, str]]:
    """(path, image id) of the files in a folder of thumbnails."""
    if folder.is_symlink() or not folder.is_dir():
        return
    for part in sorted(folder.iterdir()):
        if re.fullmatch("[0-9a-f]{2}", part.name) and part.is_dir() and not part.is_symlink():
            for path in sorted(part.iterdir()):
                match = _NAME.fullmatch(path.name)
                if match is not None and match["id"].startswith(part.name):
                    yield path, match["id"]


def _writable(folder: Path) -> bool:
    inside = folder / THUMBNAILS
    return os.access(inside if inside.exists() else folder, os.W_OK)


def _write(paths: tuple[str, ...], edge: int, target: Path) -> None:
    small = _first_that_opens(paths, edge)
    with atomic.writing(target):
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
