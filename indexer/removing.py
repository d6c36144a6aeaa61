"""Files that are gone: which ones leave the index, and which folders look unmounted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from capsearch.indexer.sources.scan import Scan, Skipped
from capsearch.indexer.store import Store
from capsearch.indexer.vanished import vanished_folders

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
