"""Hits as a table, as plain lines for a pipe, as paths, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import click

from capsearch.engine.records import Caption, Hit, ImageRecord, Query, SearchResult
from capsearch.ui.output.terminal import aligned, print_json, printable

HEADINGS = ("rank", "score", "CM", "CL", "path", "caption")


class Found(NamedTuple):
    """A hit and the record of its image."""

    hit: Hit
    record: ImageRecord


def print_paths(found: Sequence[Found]) -> None:
    """Print one path a line, best first: to a pipe or file, byte for byte as in the file system."""
    for one in found:
        click.echo(printable(one.record.path) if _on_terminal() else one.record.path)


def print_as_json(query: Query, result: SearchResult, found: Sequence[Found]) -> None:
    """Print the query as understood, the hits and the warnings as one document."""
    print_json(
        {
            "query": {
                "text": query.text,
                "language": result.language,
                "mode": result.mode,
                "weight": result.weight,
                "limit": query.limit,
                "offset": query.offset,
            },
            "hits": [_hit_as_json(one) for one in found],
            "more": result.more,
            "warnings": list(result.warnings),
            "timings_ms": dict(result.timings_ms),
        }
    )


def _hit_as_json(found: Found) -> dict[str, object]:
    hit, record = found
    why = hit.contributions
    return {
        "rank": hit.rank,
        "score": hit.score,
        "cm": why.cm,
        "cl": why.cl,
        "caption": asdict(why.caption) if why.caption else None,
        "path": record.path,
        **asdict(record),
    }


def print_table(found: Sequence[Found]) -> None:
    """Print a table with links to the files; aligned lines without colour in a pipe."""
    if not found:
        return
    if _on_terminal():
        _print_rich(found)
    else:
        click.echo("\n".join(aligned([HEADINGS, *map(_cells, found)])))


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _cells(found: Found) -> tuple[str, ...]:
    hit, record = found
    why = hit.contributions
    return (
        str(hit.rank),
        f"{hit.score:.3f}",
        _score(why.cm),
        _score(why.cl),
        printable(record.path),
        _caption(why.caption),
    )


def _score(score: float | None) -> str:
    return "-" if score is None else f"{score:.3f}"


def _caption(caption: Caption | None) -> str:
    if caption is None:
        return ""
    by = " (model)" if caption.generated else ""
    return f"{printable(caption.text)} [{caption.language}]{by}"


def _print_rich(found: Sequence[Found]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # not markup: a file name may contain brackets

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in HEADINGS[:4]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(HEADINGS[4], overflow="fold")
    table.add_column(HEADINGS[5], overflow="fold", style="dim")
    for one in found:
        *numbers, path, caption = _cells(one)
        link = Path(one.record.path).absolute().as_uri()
        table.add_row(*numbers, Text(path, style=f"link {link}"), Text(caption))
    Console().print(table)
