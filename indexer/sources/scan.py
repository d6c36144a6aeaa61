"""Finding image files in folders, and the sidecar files with captions beside them.

File names in composed (NFC) and decomposed (NFD) Unicode.

macOS decomposes the names it copies to other disks: が is two code points there, one elsewhere.
Names are compared composed; paths are stored and opened as the disk spells them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from itertools import product
from pathlib import Path, PurePath
from unicodedata import normalize

from capsearch.encoders.images.formats import BY_SUFFIX, UNREAD_SUFFIXES
from capsearch.engine.errors import RootUnavailable

_MAX_SPELLINGS = 64


def composed(name: str) -> str:
    """The name in NFC, for comparing."""
    return normalize("NFC", name)


def spellings(path: str) -> tuple[str, ...]:
    """The path as given, and with each of its components composed or decomposed.

    A folder from macOS below one that was made here has both. With more than six components that
    differ, only the wholly composed and the wholly decomposed path are added.
    """
    choices = [
        tuple(dict.fromkeys((part, composed(part), normalize("NFD", part))))
        for part in PurePath(path).parts
    ]
    if 2 ** sum(len(choice) > 1 for choice in choices) > _MAX_SPELLINGS:
        return tuple(dict.fromkeys((path, composed(path), normalize("NFD", path))))
    return tuple(str(PurePath(*parts)) for parts in product(*choices))


SIDECARS = (".txt", ".json", ".xmp")
_SIDECAR_SPELLINGS = (*SIDECARS, *(suffix.upper() for suffix in SIDECARS))
_FILES_A_COUNT = 500
_INDEX_FILES = frozenset(
    {"catalog.sqlite", "manifest.json"}
)  # a folder that contains both is an index

NOT_TEXT = "the name is not valid UTF-8; rename it"


@dataclass(frozen=True, slots=True)
class Skipped:
    """A file or folder that was not indexed, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class ImageFile:
    """An image file as listed in its folder, not opened yet.

    `sidecars` has (path, mtime_ns, size) of each caption file beside it, so that an edited
    caption is noticed without opening the image.
    """

    path: str
    mtime_ns: int
    size: int
    sidecars: tuple[tuple[str, int, int], ...] = ()

    def without_sidecars(self) -> ImageFile:
        """The same file with no sidecar state, so that the next run reads the sidecars again."""
        return replace(self, sidecars=())

    @property
    def sidecar_state(self) -> str:
        """The names, times and sizes of the sidecars as one string."""
        return ";".join(f"{Path(path).name}:{mtime}:{size}" for path, mtime, size in self.sidecars)


def under(folder: str | Path) -> tuple[str, str]:
    """The bounds of all paths below a folder: from "/a/" to before "/a0"."""
    prefix = str(folder).rstrip(os.sep)
    return prefix + os.sep, prefix + chr(ord(os.sep) + 1)


def is_in(path: str, root: str | Path) -> bool:
    """Whether a path is a root, or below it."""
    first, last = under(root)
    return path == str(root) or first <= path < last


@dataclass(slots=True)
class Scan:
    """All image files under some roots, sorted by path.

    `unreadable` lists folders and files that exist but could not be read. Images known to be
    there must not be removed from the index. `excluded` counts the files and folders that a glob
    left out, `index_folders` the folders that are an index.
    """

    files: list[ImageFile] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    excluded: int = 0
    index_folders: int = 0


def scan(
    roots: Sequence[Path],
    exclude: Sequence[str] = (),
    avoid: Path | None = None,
    follow_symlinks: bool = False,
    show: Callable[[int], None] | None = None,
) -> Scan:
    """All files under `roots` with the suffix of an image, each once.

    Left out are hidden files and folders, those that match an `exclude` glob (by name, by path
    relative to the root, or by absolute path), the folder `avoid`, and any index. Symbolic links
    to folders are followed only with `follow_symlinks`; no folder is entered twice.
    RootUnavailable when a root does not exist. `show` is called with the number of files found
    so far.
    """
    result = Scan()
    own = os.path.realpath(avoid) if avoid else None
    walk = _Walk(tuple(exclude), own, follow_symlinks, show or _ignore, result)
    for root in outermost(roots):
        walk.root(root)
    result.files.sort(key=lambda file: file.path)
    result.skipped.sort(key=lambda skipped: skipped.path)
    return result


def outermost(roots: Sequence[Path]) -> tuple[Path, ...]:
    """The roots as resolved absolute paths, sorted, without those inside another root."""
    outer_roots: list[Path] = []
    for root in sorted({root.expanduser().resolve() for root in roots}):
        if not any(root.is_relative_to(outer) for outer in outer_roots):
            outer_roots.append(root)
    return tuple(outer_roots)


def is_text(name: str) -> bool:
    """False for the name of a file or folder that is not UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def printable(path: str) -> str:
    """A path with escapes for bytes that are not UTF-8."""
    return path.encode(errors="backslashreplace").decode()


def _ignore(found: int) -> None:
    pass


@dataclass(slots=True)
class _Walk:
    exclude: tuple[str, ...]
    avoid: str | None
    follow_symlinks: bool
    show: Callable[[int], None]
    result: Scan
    entered: set[tuple[int, int]] = field(default_factory=set)

    def root(self, root: Path) -> None:
        if not root.exists():
            raise RootUnavailable(
                f"{root} does not exist; the index was not changed. "
                "Mount the drive or correct the path, then run `capsearch index` again"
            )
        if root.is_dir():
            self._folder(str(root), str(root))
        else:
            siblings = self._list(str(root.parent)) or []
            self._files([entry for entry in siblings if entry.path == str(root)], siblings)

    def _folder(self, top: str, root: str) -> None:
        pending = [top]  # a stack: folders may nest deeper than Python's recursion limit
        while pending:
            folder = pending.pop()
            if not self._first_visit(folder):
                continue
            entries = self._list(folder)
            if entries is None:
                continue
            if {entry.name for entry in entries} >= _INDEX_FILES:
                self.result.index_folders += 1
                continue
            wanted = [
                entry
                for entry in entries
                if not self._excluded(entry, root) and self._has_text_name(entry)
            ]
            pending.extend(entry.path for entry in wanted if self._is_folder(entry))
            self._files(wanted, entries)

    def _first_visit(self, folder: str) -> bool:
        if os.path.realpath(folder) == self.avoid:
            self.result.index_folders += 1
            return False
        try:
            status = Path(folder).stat()
        except OSError as problem:
            self._add_unreadable(folder, problem)
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
            self._add_unreadable(folder, problem)
            return None

    def _add_unreadable(self, folder: str, problem: OSError) -> None:
        self.result.unreadable.append(folder)
        self._skip(folder, f"folder cannot be read: {problem.strerror or problem}")

    def _excluded(self, entry: os.DirEntry[str], root: str) -> bool:
        if entry.name.startswith("."):
            return True
        relative = os.path.relpath(entry.path, root).replace(os.sep, "/")
        names = (entry.name, relative, entry.path)
        excluded = any(fnmatch(name, glob.rstrip("/")) for glob in self.exclude for name in names)
        self.result.excluded += excluded and (_suffix(entry) in BY_SUFFIX or entry.is_dir())
        return excluded

    def _has_text_name(self, entry: os.DirEntry[str]) -> bool:
        """False, and skipped, for a name that is not UTF-8: the catalog stores text only."""
        if is_text(entry.name):
            return True
        self._skip(printable(entry.path), NOT_TEXT)
        return False

    def _is_folder(self, entry: os.DirEntry[str]) -> bool:
        try:
            return entry.is_dir(follow_symlinks=self.follow_symlinks)
        except OSError:
            return False

    def _files(
        self, entries: Sequence[os.DirEntry[str]], siblings: Sequence[os.DirEntry[str]]
    ) -> None:
        by_name = {composed(entry.name): entry for entry in siblings}
        by_name |= {entry.name: entry for entry in siblings}
        for entry in entries:
            suffix = _suffix(entry)
            kind = BY_SUFFIX.get(suffix)
            if suffix in UNREAD_SUFFIXES and entry.is_file():
                self._skip(entry.path, f"{suffix} files are not read; export them as JPEG or PNG")
            elif kind is not None and not kind.supported:
                self._skip(entry.path, kind.needs)
                self.result.unreadable.append(entry.path)
            elif kind is not None:
                self._image(entry, by_name)

    def _skip(self, path: str, reason: str) -> None:
        self.result.skipped.append(Skipped(path, reason))

    def _image(self, entry: os.DirEntry[str], by_name: dict[str, os.DirEntry[str]]) -> None:
        try:
            status = entry.stat()
        except OSError as problem:  # a broken link, a loop of links, or deleted meanwhile
            self._skip(entry.path, f"cannot be read: {problem.strerror or problem}")
            if not isinstance(problem, FileNotFoundError):
                self.result.unreadable.append(entry.path)
            return
        if entry.is_file():
            sidecars = tuple(_sidecars(entry.name, by_name))
            file = ImageFile(entry.path, status.st_mtime_ns, status.st_size, sidecars)
            self.result.files.append(file)
            if len(self.result.files) % _FILES_A_COUNT == 0:
                self.show(len(self.result.files))


def _suffix(entry: os.DirEntry[str]) -> str:
    return PurePath(entry.name).suffix.lower()


def _sidecars(name: str, by_name: dict[str, os.DirEntry[str]]) -> Iterator[tuple[str, int, int]]:
    """(path, mtime_ns, size) of NAME.txt, NAME.jpg.txt and so on, NAME being `name`."""
    for base in (PurePath(name).stem, name):
        for suffix in _SIDECAR_SPELLINGS:
            entry = by_name.get(base + suffix) or by_name.get(composed(base + suffix))
            if entry is None:
                continue
            try:
                status = entry.stat()
            except OSError:
                continue
            yield entry.path, status.st_mtime_ns, status.st_size
