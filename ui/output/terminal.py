"""Terminal output: results on stdout, progress and remarks on stderr, all text made safe."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click


def printable(text: str) -> str:
    """Text that is safe on a terminal: control characters are replaced, line breaks are spaces.

    A caption or a file name may contain escape sequences; none of them reaches the terminal.
    """
    return "".join(_visible(character) for character in text)


def _visible(character: str) -> str:
    if character in "\n\r\t":
        return " "
    # Category Cc is control characters. Cf cannot be dropped as a whole, emoji need its joiners;
    # its direction overrides are, because they can disguise a file name.
    hidden = unicodedata.category(character) == "Cc" or "\u202a" <= character <= "\u202e"
    return "\N{REPLACEMENT CHARACTER}" if hidden else character


def print_json(value: object) -> None:
    """One JSON document on stdout, in UTF-8; dates in ISO 8601, paths as text."""
    click.echo(json.dumps(value, ensure_ascii=False, indent=2, default=_plain_value))


def _plain_value(value: object) -> object:
    if isinstance(value, date):  # datetimes are dates
        return value.isoformat()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def remark(text: str) -> None:
    """Print a line on stderr."""
    click.echo(printable(text), err=True)


def human_bytes(count: int) -> str:
    """1,536 -> '1.5 kB'."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


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
