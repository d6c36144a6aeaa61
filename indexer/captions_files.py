"""Captions files: given once, they are read again in later runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from capsearch.engine.errors import InvalidCaptions
from capsearch.indexer.sources.captions import NamedCaption, read_captions
from capsearch.indexer.sources.matching import matched
from capsearch.indexer.sources.scan import Skipped
from capsearch.indexer.store import FileState, Store

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
