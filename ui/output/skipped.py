"""What `capsearch index` says about files that it skipped, and when it added none."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from capsearch.indexer.pipeline import IndexSummary
    from capsearch.indexer.sources.scan import Skipped

NAMED_FILES = 3  # a larger group with one reason is one line
_NUMBER = re.compile(r"\d[\d.,]*")


def skipped_lines(skipped: Sequence[Skipped], verbose: bool = False) -> Iterator[str]:
    """A line a file; of many with the same suffix and reason one line, unless `verbose`.

    Reasons that differ only in numbers, such as sizes, are the same; the first one is shown.
    """
    groups: dict[tuple[str, str], list[Skipped]] = defaultdict(list)
    for one in skipped:
        groups[PurePath(one.path).suffix.lower(), _NUMBER.sub("0", one.reason)].append(one)
    for (suffix, _), group in groups.items():
        if verbose or len(group) <= NAMED_FILES:
            yield from (f"skipped {one.path}: {one.reason}" for one in group)
        else:
            first = group[0]
            files = f"{suffix} files" if suffix else "files or folders"
            yield f"skipped {len(group):,} {files}: {first.reason} (first: {first.path})"


def why_nothing_was_added(summary: IndexSummary) -> str | None:
    """The reason, if a complete run added no image; None otherwise."""
    if summary.added or summary.reused or summary.interrupted:
        return None
    if summary.found:
        if summary.unchanged == summary.found:
            return f"nothing added: all {summary.found:,} images are already indexed"
        return (
            f"nothing added: {summary.unchanged:,} of {summary.found:,} images are already "
            "indexed, the others were skipped"
        )
    return f"nothing added: {_why_nothing_was_found(summary)}"


def _why_nothing_was_found(summary: IndexSummary) -> str:
    if summary.skipped:
        return "the only files found are in formats that are not read, or cannot be read"
    if summary.excluded:
        return f"--exclude left out all there is ({summary.excluded:,} files and folders)"
    if summary.index_folders:
        return "this folder is an index; name the folder that your images are in"
    return "no image files found"
