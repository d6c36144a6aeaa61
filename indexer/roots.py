"""The folders of a run: those given or known, without those that are not there."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
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
