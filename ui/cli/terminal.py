"""Terminal output: results on stdout, progress and remarks on stderr, all text made safe."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from datetime import date
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import click

from capsearch.ui.values import HIDDEN, printable

if TYPE_CHECKING:
    from capsearch.indexer.sources.scan import Skipped


def print_json(value: object) -> None:
    """One JSON document on stdout, in UTF-8; dates in ISO 8601, paths as text.

    JSON itself escapes the control characters below U+0020 only; what else `printable` replaces
    is escaped too, so that the document can be shown on a terminal and loses nothing.
    """
    text = json.dumps(value, ensure_ascii=False, indent=2, default=_plain_value)
    lines = (HIDDEN.sub(_escaped, line) for line in text.split("\n"))
    click.echo("\n".join(lines))


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"


def _plain_value(value: object) -> object:
    if isinstance(value, date):  # datetimes are dates
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def remark(text: str) -> None:
    """Print a line on stderr."""
    click.echo(printable(text), err=True)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Rows with aligned columns on stdout."""
    click.echo("\n".join(aligned(rows)))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with aligned columns; Han and kana count as two cells wide.

    The last column is not padded, so that no line ends in spaces.
    """
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*rows, strict=True)]
    widths[-1:] = [0]
    return [
        "  ".join(
            cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


NAMED_FILES = 3  # a larger group with one reason is one line
_NUMBER = re.compile(r"\d[\d.,]*")


def skipped_lines(skipped: Sequence[Skipped], verbose: bool = False) -> Iterator[str]:
    """A line a file; of many with the same suffix and reason one line, unless `verbose`.

    Reasons that differ only in numbers, such as sizes, are the same; the first one is shown.
    """
    groups: dict[tuple[str, str], list[Skipped]] = defaultdict(list)
    for file in skipped:
        groups[PurePath(file.path).suffix.lower(), _NUMBER.sub("0", file.reason)].append(file)
    for (suffix, _), group in groups.items():
        if verbose or len(group) <= NAMED_FILES:
            yield from (f"skipped {file.path}: {file.reason}" for file in group)
        else:
            first = group[0]
            files = f"{suffix} files" if suffix else "files or folders"
            yield f"skipped {len(group):,} {files}: {first.reason} (first: {first.path})"
