"""The folders and captions files of a collection: which are there, what is gone, letting go of one.

Files that are gone leave the index. Folders that have suddenly lost all their images stay: a drive
that is not mounted looks like that. Captions files are given once, and read again in later runs.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from capsearch.engine.errors import IndexProblem, InvalidCaptions, RootUnavailable
from capsearch.indexer.sources.captions import NamedCaption, matched, read_captions
from capsearch.indexer.sources.scan import (
    NOT_TEXT,
    Scan,
    Skipped,
    is_text,
    outermost,
    printable,
    scan,
)
from capsearch.indexer.store import FileState, Store

MANY = 20  # images below a root: so many do not go without a question
KEEP_MISSING_DAYS = 30.0
Named: TypeAlias = Mapping[Path, tuple[FileState, tuple[NamedCaption, ...]]]


@dataclass(frozen=True, slots=True)
class Roots:
    """The roots that can be scanned, the globs each leaves out, and what is wrong with others."""

    excludes: Mapping[Path, tuple[str, ...]]
    problems: tuple[Skipped, ...]

    @property
    def paths(self) -> tuple[Path, ...]:
        """The roots, sorted."""
        return tuple(self.excludes)

    @classmethod
    def of(
        cls, store: Store, given: Sequence[Path], rebuild: bool, exclude: Sequence[str]
    ) -> Roots:
        """Those given, or else all known ones; a rebuild concerns all. None is an IndexProblem.

        New globs replace those that were given for a root before. RootUnavailable, when not a
        single root is there.
        """
        known = tuple(store.excludes())
        wanted = outermost([*given, *known] if rebuild else given or known)
        if not wanted:
            raise IndexProblem(
                "nothing to index: name a folder, as in `capsearch index ~/Pictures`"
            )
        problems = {root: _problem(store, root) for root in wanted}
        named = tuple(
            Skipped(printable(str(root)), problem) for root, problem in problems.items() if problem
        )
        if len(named) == len(wanted):
            raise RootUnavailable(f"{named[0].path} {named[0].reason}; the index was not changed")
        chosen = _excludes(store, [root for root in wanted if not problems[root]], exclude)
        return cls(chosen, named)


def scan_roots(
    roots: Roots, index: Path, follow_symlinks: bool, show: Callable[[int], None]
) -> Scan:
    """All image files under the roots, each once, sorted by path."""
    groups: dict[tuple[str, ...], list[Path]] = defaultdict(list)
    for root, globs in roots.excludes.items():
        groups[globs].append(root)
    result = Scan()
    for globs, members in groups.items():
        listing = scan(members, globs, index, follow_symlinks, show)
        result.files.extend(listing.files)
        result.skipped.extend(listing.skipped)
        result.unreadable.extend(listing.unreadable)
        result.excluded += listing.excluded
        result.index_folders += listing.index_folders
    result.files.sort(key=lambda file: file.path)
    return result


def refuse_if_all_are_empty(
    store: Store, roots: Roots, listing: Scan, confirmed: Sequence[Path]
) -> None:
    """RootUnavailable if every root has lost all its images: their drive may not be mounted."""
    emptied = []
    for root in roots.paths:
        known = len(store.files([root]))
        if not known or listing.files or root in confirmed:
            return
        emptied.append((root, known))
    root, known = emptied[0]
    raise RootUnavailable(
        f"{root} holds no images, but the index has {known} from there; mount the drive, or, if "
        f"they were deleted, run `capsearch index --confirm-removed {root}`"
    )


def _problem(store: Store, root: Path) -> str | None:
    if not is_text(str(root)):
        return NOT_TEXT
    if root.is_relative_to(store.path.resolve()):
        return "is the index itself, whose files are not indexed; name the folder of your images"
    if root.exists():
        return None
    known = len(store.files([root]))
    return (
        f"does not exist; {known} images from there stay in the index. Mount the drive, or let go "
        f"of it with `capsearch forget {root}`"
    )


def _excludes(
    store: Store, roots: Sequence[Path], given: Sequence[str]
) -> dict[Path, tuple[str, ...]]:
    """The globs of each root: those given now, or those that it or a root around it had."""
    if given:
        return dict.fromkeys(roots, tuple(glob for glob in given if glob))
    before = store.excludes()
    return {
        root: next((globs for one, globs in before.items() if root.is_relative_to(one)), ())
        for root in roots
    }


@dataclass(frozen=True, slots=True)
class Vanished:
    """A folder whose images are all gone; the index keeps them until somebody confirms."""

    folder: Path
    images: int

    def holds(self, path: str) -> bool:
        """Whether a file was in it."""
        return Path(path).is_relative_to(self.folder)

    def skipped(self) -> Skipped:
        """What to tell."""
        return Skipped(
            str(self.folder),
            f"holds none of its {self.images} images any more; they stay in the index. Mount the "
            "drive, or, if they were deleted, run "
            f"`capsearch index --confirm-removed {self.folder}`",
        )


@dataclass(frozen=True, slots=True)
class _Counts:
    """How many files each folder had, how many are gone, and how many of these are nowhere."""

    known: Counter[Path]
    gone: Counter[Path]
    lost: Counter[Path]


def vanished_folders(
    roots: Sequence[Path],
    known: Mapping[str, str],
    gone: Collection[str],
    mounted: Collection[Path],
    confirmed: Sequence[Path],
) -> list[Vanished]:
    """The topmost folders that lost all their images without a trace, and had many.

    `known` has the image id of each indexed file and `gone` the paths that no longer exist.
    Images that were moved elsewhere are not lost. A root counts, and a former mount point, however
    few images it had; other folders with MANY, if they are empty now or had most of the root.
    """
    gone = [path for path in gone if not any(Path(path).is_relative_to(c) for c in confirmed)]
    if not gone:
        return []
    return [
        vanished
        for root in roots
        for vanished in _topmost(root, _counted(root, known, gone), mounted)
    ]


def mount_points(roots: Sequence[Path], listing: Scan) -> list[Path]:
    """The mount points below the roots that hold images."""
    folders = {os.path.dirname(file.path) for file in listing.files}  # noqa: PTH120 - many
    return [
        folder
        for root in roots
        for folder in {one for path in folders for one in _up_to(root, Path(path))}
        if folder != root and folder.is_mount()
    ]


def _counted(root: Path, known: Mapping[str, str], gone: Sequence[str]) -> _Counts:
    missing = set(gone)
    present = {image_id for path, image_id in known.items() if path not in missing}
    counts = _Counts(Counter(), Counter(), Counter())
    for path, image_id in known.items():
        for folder in _up_to(root, Path(path)):
            counts.known[folder] += 1
            if path in missing:
                counts.gone[folder] += 1
                counts.lost[folder] += image_id not in present
    return counts


def _topmost(root: Path, counts: _Counts, mounted: Collection[Path]) -> Iterator[Vanished]:
    found: list[Path] = []
    for folder in sorted(counts.lost):  # a folder comes before those inside it
        whole = counts.known[folder] == counts.gone[folder] and counts.lost[folder]
        if not whole or any(folder.is_relative_to(outer) for outer in found):
            continue
        if folder == root or _suspicious(folder, counts, counts.known[root], mounted):
            found.append(folder)
            yield Vanished(folder, counts.lost[folder])


def _suspicious(folder: Path, counts: _Counts, total: int, mounted: Collection[Path]) -> bool:
    lost = counts.lost[folder]
    if folder in mounted and not folder.is_mount():
        return True
    return lost >= MANY and (2 * lost > total or _empty(folder))


def _empty(folder: Path) -> bool:
    """True for a folder that is there and holds nothing."""
    try:
        return not any(folder.iterdir())
    except OSError:
        return False


def _up_to(root: Path, path: Path) -> Iterator[Path]:
    """The folders around a path up to its root, and the path itself if it is the root."""
    if path.is_relative_to(root):
        while path != root:
            yield path
            path = path.parent
        yield root


@dataclass(frozen=True, slots=True)
class Removal:
    """What leaves the index, and the folders whose files stay because they look unmounted."""

    files: tuple[str, ...]
    refused: tuple[str, ...]  # files that were skipped before
    kept: tuple[Skipped, ...]

    @classmethod
    def of(
        cls,
        store: Store,
        roots: Sequence[Path],
        listing: Scan,
        before: Collection[str],
        confirmed: Sequence[Path],
    ) -> Removal:
        """The files known `before` under `roots` that the scan did not find; those in folders that
        cannot be read stay, and so do those that another writer has added since."""
        present = {file.path for file in listing.files}
        unreadable = [Path(path) for path in listing.unreadable]

        def missing(path: str) -> bool:
            inside = any(Path(path).is_relative_to(folder) for folder in unreadable)
            return path not in present and not inside

        known = {path: file.image_id for path, file in store.files(roots).items()}
        gone = [path for path in known if path in before and missing(path)]
        lost = {path for path in gone if not Path(path).exists()}  # others are excluded now
        kept = vanished_folders(roots, known, lost, store.mount_points(), confirmed)
        return cls(
            tuple(path for path in gone if not any(folder.holds(path) for folder in kept)),
            tuple(path for path in store.skipped(roots) if missing(path)),
            tuple(folder.skipped() for folder in kept),
        )


@dataclass(frozen=True, slots=True)
class Forgettable:
    """A root or a captions file, and what would leave the collection with it."""

    path: Path
    images: int
    captions: int  # written by people


class Sources(Protocol):
    """The roots and captions files of a collection; `forget_` deletes one and what it brought."""

    def roots(self) -> Collection[Path]:
        """The folders indexed so far."""
        ...

    def captions_files(self) -> Collection[Path]:
        """The captions files read so far."""
        ...

    def root(self, path: Path) -> Forgettable:
        """What would go with a root: images that have a file nowhere else."""
        ...

    def captions_file(self, path: Path) -> Forgettable:
        """What would go with a captions file."""
        ...

    def forget_root(self, path: Path) -> None:
        """Its files, and images found nowhere else with what was written about them."""
        ...

    def forget_captions_file(self, path: Path) -> None:
        """Its captions."""
        ...


def forget(
    sources: Sources, path: Path, confirm: Callable[[Forgettable], bool]
) -> Forgettable | None:
    """Lets go of a root or a captions file if `confirm` agrees; None if it does not.

    IndexProblem for a path that is neither.
    """
    path = path.expanduser().resolve()
    if path in sources.roots():
        known, delete = sources.root(path), sources.forget_root
    elif path in sources.captions_files():
        known, delete = sources.captions_file(path), sources.forget_captions_file
    else:
        raise _unknown(sources, path)
    if not confirm(known):
        return None
    delete(path)
    return known


def _unknown(sources: Sources, path: Path) -> IndexProblem:
    roots = ", ".join(str(root) for root in sources.roots()) or "none"
    if any(root in path.parents for root in sources.roots()):
        return IndexProblem(
            f"{path} is inside an indexed folder; leave it out with `capsearch index --exclude`"
        )
    return IndexProblem(f"{path} was not indexed; the indexed folders are: {roots}")


def read_given(files: Sequence[Path]) -> Named:
    """The captions files of the command line; InvalidCaptions for one that cannot be read."""
    return {file.resolve(): _read(file.resolve()) for file in files}


def _read(file: Path) -> tuple[FileState, tuple[NamedCaption, ...]]:
    try:
        state = FileState.of(file)  # first, so that a change while reading is noticed next time
    except OSError as problem:
        raise InvalidCaptions(f"{file}: cannot be read: {problem.strerror or problem}") from problem
    return state, read_captions(file)


class CaptionsFiles:
    """Brings the captions of captions files up to date."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._paths: Sequence[tuple[str, str]] | None = None  # (path, image id) of every file
        self.skipped: list[Skipped] = []

    def update(self, given: Named, files_changed: bool) -> int:
        """Stores the captions given, and those of earlier files that changed; how many are new.

        With `files_changed`, all earlier files are read, since they may name a new image.
        """
        added = 0
        for file, (state, captions) in given.items():
            added += self._replace(file, state, captions, tell=True)
        for file, before in self._store.captions_files().items():
            if file not in given:
                added += self._read_again(file, before, files_changed)
        return added

    def _read_again(self, file: Path, before: FileState, files_changed: bool) -> int:
        try:
            if FileState.of(file) == before and not files_changed:
                return 0
            state, captions = _read(file)
        except (OSError, InvalidCaptions) as problem:
            reason = str(problem).removeprefix(f"{file}: ")
            if isinstance(problem, FileNotFoundError):
                reason = "is missing"
            advice = f"`capsearch forget {file}` deletes them"
            self.skipped.append(
                Skipped(str(file), f"captions file {reason}; its captions are kept, {advice}")
            )
            return 0
        return self._replace(file, state, captions, tell=state != before)

    def _replace(
        self, file: Path, state: FileState, captions: Sequence[NamedCaption], tell: bool
    ) -> int:
        if self._paths is None:
            self._paths = self._store.image_paths()
        pairs, unmatched = matched(self._paths, file, captions)
        if unmatched and tell:
            reason = f"{unmatched} of {len(captions)} captions name no image of this index"
            self.skipped.append(Skipped(str(file), reason))
        return self._store.put_captions_file(file, state, pairs)
