"""The folders of a run: those given or known, without those that are not there.

Files that are gone: which ones leave the index, and which folders look unmounted.

Folders that have suddenly lost all their images: a drive that is not mounted looks like that.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsearch.engine.errors import IndexProblem, RootUnavailable
from capsearch.indexer.sources.scan import (
    NOT_TEXT,
    Scan,
    Skipped,
    is_text,
    outermost,
    printable,
    scan,
)
from capsearch.indexer.store import Store


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


MANY = 20  # images below a root: so many do not go without a question


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


KEEP_MISSING_DAYS = 30.0


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
