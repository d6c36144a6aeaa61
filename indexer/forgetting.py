"""Letting go of a root or of a captions file, with what only they brought into a collection."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from capsearch.engine.errors import IndexProblem


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
