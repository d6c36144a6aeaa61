"""Which files are images, and which sidecar files say something about them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from pathlib import Path, PurePath

from capsearch.encoders.image_files import HEIF_SUFFIXES, IMAGE_SUFFIXES, heif_supported
from capsearch.engine.errors import RootUnavailable

SIDECARS = (".txt", ".json")
_INDEX_FILES = frozenset({"catalog.sqlite", "manifest.json"})  # a folder with both is an index


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that is not in the index, and why."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file as its folder lists it.

    `sidecars` names each caption file beside it as (path, mtime_ns, size): a caption edited
    later is noticed without opening the image.
    """

    path: str
    mtime_ns: int
    size: int
    sidecars: tuple[tuple[str, int, int], ...] = ()

    def unsettled(self) -> ImageFile:
        """The same without its sidecars' state, so that the next run reads them again."""
        return replace(self, sidecars=())

    @property
    def stamp(self) -> str:
        """The sidecars' state as one comparable string."""
        return ";".join(f"{Path(path).name}:{mtime}:{size}" for path, mtime, size in self.sidecars)


@dataclass(slots=True)
class Scan:
    """All images under some roots in the order of their paths.

    `unread` are folders and files that are there but could not be looked at: whether a
    image is gone from them nobody knows.
    """

    found: list[ImageFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


def scan(
    roots: Sequence[Path],
    exclude: Sequence[str] = (),
    avoid: Path | None = None,
    follow_symlinks: bool = False,
) -> Scan:
    """Everything that looks like an image under `roots`, each file once.

    Hidden files and folders, what matches an `exclude` glob (by name, by path from the root,
    or by whole path), the folder `avoid` and other indexes are left out. Linked folders are
    entered only with `follow_symlinks`, and none twice. RootUnavailable for a root that is
    not there.
    """
    result = Scan()
    walk = _Walk(
        tuple(exclude), os.path.realpath(avoid) if avoid else None, follow_symlinks, result
    )
    for root in outermost(roots):
        walk.root(root)
    result.found.sort(key=lambda one: one.path)
    result.skipped.sort(key=lambda one: one.path)
    return result


def outermost(roots: Sequence[Path]) -> tuple[Path, ...]:
    """The roots as absolute real paths, sorted, without those that lie inside another."""
    kept: list[Path] = []
    for root in sorted({root.expanduser().resolve() for root in roots}):
        if not any(root.is_relative_to(outer) for outer in kept):
            kept.append(root)
    return tuple(kept)


@dataclass(slots=True)
class _Walk:
    exclude: tuple[str, ...]
    avoid: str | None
    follow_symlinks: bool
    result: Scan
    entered: set[tuple[int, int]] = field(default_factory=set)

    def root(self, root: Path) -> None:
        if not root.exists():
            raise RootUnavailable(
                f"{root} is not there; the index was left as it is. "
                "Mount the drive or correct the path, then run `capsearch index` again"
            )
        if root.is_dir():
            self._folder(str(root), str(root))
        else:
            siblings = self._list(str(root.parent)) or []
            self._files([one for one in siblings if one.path == str(root)], siblings)

    def _folder(self, top: str, root: str) -> None:
        pending = [top]  # an explicit stack: folders may nest deeper than Python recurses
        while pending:
            folder = pending.pop()
            if not self._first_visit(folder):
                continue
            entries = self._list(folder)
            if entries is None or {entry.name for entry in entries} >= _INDEX_FILES:
                continue
            wanted = [
                one for one in entries if not self._left_out(one, root) and self._nameable(one)
            ]
            pending.extend(one.path for one in wanted if self._is_folder(one))
            self._files(wanted, entries)

    def _first_visit(self, folder: str) -> bool:
        if os.path.realpath(folder) == self.avoid:
            return False
        try:
            status = Path(folder).stat()
        except OSError as problem:
            self._unread(folder, problem)
            return False
        identity = (status.st_dev, status.st_ino)
        new = identity not in self.entered
        self.entered.add(identity)
        return new

    def _list(self, folder: str) -> list[os.DirEntry[str]] | None:
        try:
            with os.scandir(folder) as entries:
                return sorted(entries, key=lambda entry: entry.name)
        except OSError as problem:
            self._unread(folder, problem)
            return None

    def _unread(self, folder: str, problem: OSError) -> None:
        self.result.unread.append(folder)
        reason = f"folder cannot be read: {problem.strerror or problem}"
        self.result.skipped.append(Skipped(folder, reason))

    def _left_out(self, entry: os.DirEntry[str], root: str) -> bool:
        if entry.name.startswith("."):
            return True
        relative = os.path.relpath(entry.path, root).replace(os.sep, "/")
        names = (entry.name, relative, entry.path)
        return any(fnmatch(name, glob.rstrip("/")) for glob in self.exclude for name in names)

    def _nameable(self, entry: os.DirEntry[str]) -> bool:
        """File names on Linux may be any bytes; the catalog keeps text."""
        try:
            entry.name.encode()
        except UnicodeEncodeError:
            shown = entry.path.encode(errors="backslashreplace").decode()
            self.result.skipped.append(Skipped(shown, "the name is not valid UTF-8; rename it"))
            return False
        return True

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir(follow_symlinks=self.follow_symlinks)
        except OSError:
            return False

    def _files(
        self, entries: Sequence[os.DirEntry[str]], siblings: Sequence[os.DirEntry[str]]
    ) -> None:
        by_name = {entry.name: entry for entry in siblings}
        for entry in entries:
            suffix = PurePath(entry.name).suffix.lower()
            if suffix in HEIF_SUFFIXES and not heif_supported():
                reason = "HEIC needs an extra: pip install 'capsearch[heif]'"
                self.result.skipped.append(Skipped(entry.path, reason))
                self.result.unread.append(entry.path)
            elif suffix in IMAGE_SUFFIXES | HEIF_SUFFIXES:
                self._image(entry, by_name)

    def _image(self, entry: os.DirEntry[str], by_name: dict[str, os.DirEntry[str]]) -> None:
        try:
            status = entry.stat()
        except OSError as problem:  # a link to nowhere, a loop of links, or just deleted
            reason = f"cannot be read: {problem.strerror or problem}"
            self.result.skipped.append(Skipped(entry.path, reason))
            if not isinstance(problem, FileNotFoundError):
                self.result.unread.append(entry.path)
            return
        if entry.is_file():
            sidecars = tuple(_sidecars(entry.name, by_name))
            found = ImageFile(entry.path, status.st_mtime_ns, status.st_size, sidecars)
            self.result.found.append(found)


def _sidecars(name: str, by_name: dict[str, os.DirEntry[str]]) -> Iterator[tuple[str, int, int]]:
    """NAME.txt, NAME.json, and the same with the image's own suffix kept."""
    for base in (PurePath(name).stem, name):
        for suffix in SIDECARS:
            entry = by_name.get(base + suffix)
            if entry is None:
                continue
            try:
                status = entry.stat()
            except OSError:
                continue
            yield entry.path, status.st_mtime_ns, status.st_size
