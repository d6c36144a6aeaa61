"""The image files of a data set: loose in folders, in .tar or in .tar.gz archives.

Nothing is unpacked. A name from a data set is only looked up among the existing files and
archive members, so it cannot escape from the folders (path traversal).
"""

from __future__ import annotations

import re
import tarfile
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class _Member:
    """An image's bytes inside an uncompressed file: a loose file, or part of a .tar."""

    path: Path
    start: int
    size: int

    def read(self) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.start)
            return file.read(self.size)


@dataclass(frozen=True)
class ImageStore:
    """Images found by name in folders and archives.

    `read` seeks to one image (fast in folders and .tar; a .tar.gz is read from its start).
    `stream` yields many in the order they are stored, reading each archive once.
    Where two folders or archives hold an image of the same name, the earlier one is used.
    """

    folders: tuple[Path, ...] = ()
    archives: tuple[Path, ...] = ()
    _members: dict[Path, Mapping[str, _Member]] = field(default_factory=dict, compare=False)

    def __add__(self, other: ImageStore) -> ImageStore:
        return ImageStore(
            tuple(dict.fromkeys((*self.folders, *other.folders))),
            tuple(dict.fromkeys((*self.archives, *other.archives))),
        )

    def read(self, name: str) -> bytes:
        """The bytes of one image; DataProblem when no folder or archive has it."""
        for index in (self._loose, *(self._index(path) for path in self._plain)):
            member = index.get(name) or index.get(image_key(name))
            if member is not None:
                return member.read()
        for _, content in self._stream_archives({name}, self._compressed):
            return content
        searched = ", ".join(str(path) for path in (*self.folders, *self.archives)) or "nothing"
        raise DataProblem(f"no image {name!r}; searched {searched}")

    def stream(self, names: Collection[str]) -> Iterator[tuple[str, bytes]]:
        """(name, bytes) of the images that exist, each once, in the order of storage."""
        wanted = set(names)
        for name in names:
            member = self._loose.get(name) or self._loose.get(image_key(name))
            if member is not None and name in wanted:
                wanted.discard(name)
                yield name, member.read()
        yield from self._stream_archives(wanted, self.archives)

    def _stream_archives(
        self, names: Collection[str], archives: tuple[Path, ...]
    ) -> Iterator[tuple[str, bytes]]:
        by_key: dict[str, str] = {image_key(name): name for name in names}
        by_key.update({name: name for name in names})  # an exact name takes precedence
        left = set(names)
        for path in archives:
            if not left:
                return
            for member, content in _members_in_order(path):
                name = by_key.get(member) or by_key.get(image_key(member))
                if name in left:
                    left.discard(name)
                    yield name, content()

    @cached_property
    def _loose(self) -> Mapping[str, _Member]:
        found: dict[str, _Member] = {}
        for folder in self.folders:
            for path in sorted(folder.rglob("*")):
                if path.suffix.lower() in IMAGE_SUFFIXES and path.is_file():
                    member = _Member(path, 0, -1)
                    found.setdefault(path.relative_to(folder).as_posix(), member)
                    found.setdefault(path.name, member)
                    found.setdefault(image_key(path.name), member)
        return found

    @property
    def _plain(self) -> tuple[Path, ...]:
        return tuple(path for path in self.archives if path.suffix == ".tar")

    @property
    def _compressed(self) -> tuple[Path, ...]:
        return tuple(path for path in self.archives if path.suffix != ".tar")

    def _index(self, path: Path) -> Mapping[str, _Member]:
        if path not in self._members:
            self._members[path] = _tar_index(path)
        return self._members[path]


def _tar_index(path: Path) -> Mapping[str, _Member]:
    """Where each member of an uncompressed .tar lies; only its headers are read."""
    found: dict[str, _Member] = {}
    with _opened(path, "r:") as archive:
        for info in archive:
            if info.isreg():
                member = _Member(path, info.offset_data, info.size)
                found.setdefault(info.name, member)
                found.setdefault(image_key(info.name), member)
    return found


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
    with _opened(path, "r|*") as archive:
        try:
            for info in archive:
                if info.isreg():
                    yield info.name, _Content(archive, info, path)
        except DAMAGE as error:
            raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataProblem:
    return DataProblem(f"{path} is damaged ({error}); download it again")


def _opened(path: Path, mode: str) -> tarfile.TarFile:
    try:
        return tarfile.open(path, mode)  # type: ignore[call-overload, no-any-return]
    except DAMAGE as error:
        raise DataProblem(f"{path} cannot be read as a tar archive ({error})") from error
