"""Letting go of a root or of a captions file, with what only they brought into a collection.

Captions files: given once, they are read again in later runs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias

from capsearch.engine.errors import IndexProblem, InvalidCaptions
from capsearch.indexer.sources.captions import NamedCaption, matched, read_captions
from capsearch.indexer.sources.scan import Skipped
from capsearch.indexer.store import FileState, Store


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


Named: TypeAlias = Mapping[Path, tuple[FileState, tuple[NamedCaption, ...]]]


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
