"""Files that are gone: their images are kept for a while, then deleted for good."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from capsearch.indexer.embedded import thumbnails
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.remembered import Remembered
from capsearch.indexer.sources.scan import Scan, Skipped
from capsearch.indexer.vanished import vanished_folders

KEEP_MISSING_DAYS = 30.0
_KEEP_MISSING = "keep_missing_days"  # meta


@dataclass(frozen=True, slots=True)
class Removal:
    """What leaves the index, and the folders whose files stay because they look unmounted."""

    files: tuple[str, ...]
    refused: tuple[str, ...]  # files that were skipped before
    kept: tuple[Skipped, ...]

    @classmethod
    def of(
        cls,
        writer: CatalogWriter,
        roots: Sequence[Path],
        listing: Scan,
        confirmed: Sequence[Path],
    ) -> Removal:
        """The indexed files under `roots` that the scan did not find; those in folders that
        cannot be read stay."""
        present = {file.path for file in listing.files}
        unreadable = [Path(path) for path in listing.unreadable]

        def missing(path: str) -> bool:
            inside = any(Path(path).is_relative_to(folder) for folder in unreadable)
            return path not in present and not inside

        known = {path: file.image_id for path, file in writer.files(roots).items()}
        gone = [path for path in known if missing(path)]
        lost = {path for path in gone if not Path(path).exists()}  # others are excluded now
        mounted = Remembered(writer.catalog).mount_points()
        kept = vanished_folders(roots, known, lost, mounted, confirmed)
        return cls(
            tuple(path for path in gone if not any(folder.holds(path) for folder in kept)),
            tuple(path for path in writer.skipped(roots) if missing(path)),
            tuple(folder.skipped() for folder in kept),
        )

    def commit(self, writer: CatalogWriter) -> None:
        """Removes the files; images that have none left are not found any more."""
        with writer.transaction():
            writer.remove_files([*self.files, *self.refused])
            writer.past_files.mark_missing()


def keep_days(writer: CatalogWriter, given: float | None) -> float:
    """How long images without a file are kept: as given now, which is remembered, or before."""
    stored = writer.catalog.meta(_KEEP_MISSING)
    if given is None:
        return float(stored) if stored else KEEP_MISSING_DAYS
    with writer.transaction(visible=False):
        writer.set_meta(_KEEP_MISSING, str(given))
    return given


def prune(writer: CatalogWriter, index: Path, days: float) -> int:
    """Deletes images without a file for so long, and their thumbnails; returns how many."""
    with writer.transaction():
        pruned = writer.past_files.prune(days)
    if pruned:
        thumbnails.prune(index, writer.catalog)
    return pruned
