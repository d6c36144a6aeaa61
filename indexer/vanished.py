"""Folders that have suddenly lost all their images: a drive that is not mounted looks like that."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsearch.indexer.sources.scan import Scan, Skipped

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
