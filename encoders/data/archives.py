"""The image files of a data set: loose in folders, in .tar or in .tar.gz archives.

Nothing is unpacked. A name from a data set is only looked up among the existing files and
archive members, so it cannot escape from the folders (path traversal).
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, cast

from capsearch.encoders.images.open import IMAGE_SUFFIXES
from capsearch.engine.errors import DataProblem

ARCHIVES = (".tar", ".tar.gz", ".tgz")
DAMAGE = (tarfile.TarError, EOFError, OSError, zlib.error)
COCO_NAME = re.compile(r"(?:COCO_[A-Za-z]+\d{4}_)?(\d{12})")


def image_key(name: str) -> str:
    """An image's name without folder, suffix, COCO's prefix and leading zeros.

    COCO_val2014_000000000009.jpg, 000000000009.webp and val/000000000009.jpg all give "9".
    """
    stem = PurePosixPath(name).name.rsplit(".", 1)[0]
    coco = COCO_NAME.fullmatch(stem)
    return str(int(coco.group(1))) if coco else stem


def is_archive(path: Path) -> bool:
    """True for the kinds of archive that ImageStore reads."""
    return path.name.lower().endswith(ARCHIVES)


@dataclass(frozen=True)
class ImageStore:
    """Images found by name in folders and archives.

    Where two folders or archives hold an image of the same name, the earlier one is used.
    """

    folders: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()

    def __add__(self, other: ImageStore) -> ImageStore:
        return ImageStore(
            tuple(dict.fromkeys((*self.folders, *other.folders))),
            tuple(dict.fromkeys((*self.archives, *other.archives))),
        )

    def stream(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """(name, bytes) of the images that exist, each once, in the order of storage.

        Each archive is read once.
        """
        missing = set(names)
        for name in names:
            path = self._loose.get(name) or self._loose.get(image_key(name))
            if path is not None and name in missing:
                missing.discard(name)
                yield name, path.read_bytes()
        names_of = {image_key(name): name for name in missing}
        names_of.update({name: name for name in missing})  # an exact name takes precedence
        for archive in self.archives:
            if not missing:
                return
            for member, content in _members_in_order(archive):
                name = names_of.get(member) or names_of.get(image_key(member), "")
                if name in missing:
                    missing.discard(name)
                    yield name, content()

    @cached_property
    def _loose(self) -> Mapping[str, Path]:
        """The images in folders by path, by name and by `image_key`."""
        by_name: dict[str, Path] = {}
        for folder in self.folders:
            for path in sorted(folder.rglob("*")):
                if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                    for name in (path.relative_to(folder).as_posix(), path.name):
                        by_name.setdefault(name, path)
                    by_name.setdefault(image_key(path.name), path)
        return by_name


@dataclass(frozen=True, slots=True)
class _Content:
    """Reads a member while the archive is positioned at it; members not needed are not copied."""

    archive: tarfile.TarFile
    info: tarfile.TarInfo
    path: Path

    def __call__(self) -> bytes:
        try:
            return cast("IO[bytes]", self.archive.extractfile(self.info)).read()
        except DAMAGE as error:
            raise _damaged(self.path, error) from error


def _members_in_order(path: Path) -> Iterator[tuple[str, _Content]]:
    try:
        archive = tarfile.open(path, "r|*")  # noqa: SIM115, closed below
    except DAMAGE as error:
        raise DataProblem(f"{path} cannot be read as a tar archive ({error})") from error
    with archive:
        try:
            for info in archive:
                if info.isreg():
                    yield info.name, _Content(archive, info, path)
        except DAMAGE as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataProblem:
    return DataProblem(f"{path} is damaged ({error}); download it again")
