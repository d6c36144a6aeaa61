"""Hits as a table, as plain lines for a pipe, as paths, and as JSON."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Contributions, Hit, SearchResult, Unit
from capsearch.ui.output.scores import score_text
from capsearch.ui.output.terminal import aligned, print_json, printable

# Before path and caption: a score with the scores it is made of, or a probability with what each
# kind of evidence adds to its log-odds.
NUMBERS: Mapping[Unit, tuple[str, ...]] = {
    "score": ("rank", "score", "CM", "CL"),
    "probability": ("rank", "score", "image", "captions", "words", "prior"),
}
TEXTS = ("path", "caption")


def print_paths(hits: Sequence[Hit]) -> None:
    """Print one path a line, best first: to a pipe or file, byte for byte as in the file system."""
    for hit in hits:
        click.echo(printable(hit.record.path) if _on_terminal() else hit.record.path)


def print_as_json(query: Query, result: SearchResult) -> None:
    """Print the query as understood, the hits and the warnings as one document."""
    print_json(
        {
            "query": {
                "text": query.text,
                "language": result.language,
                "mode": result.mode,
                "weight": result.weight,
                "unit": result.unit,
                "min_score": result.min_score,
                "limit": query.limit,
                "offset": query.offset,
            },
            "hits": [_hit_as_json(hit) for hit in result.hits],
            "more": result.more,
            "warnings": list(result.warnings),
            "timings_ms": dict(result.timings_ms),
        }
    )


def _hit_as_json(hit: Hit) -> dict[str, object]:
    why = hit.contributions
    return {
        "rank": hit.rank,
        "score": hit.score,
        "cm": why.cm,
        "cl": why.cl,
        "words": why.words,
        "tag": why.tag,
        "log_odds": dict(why.log_odds),
        "caption": asdict(why.caption) if why.caption else None,
        "metadata": dict(hit.document.metadata),
        "path": hit.record.path,
        **asdict(hit.record),
    }


def print_table(result: SearchResult) -> None:
    """Print a table with links to the files; aligned lines without colour in a pipe."""
    if not result.hits:
        return
    if _on_terminal():
        _print_rich(result)
    else:
        rows = [_cells(hit, result.unit) for hit in result.hits]
        click.echo("\n".join(aligned([(*NUMBERS[result.unit], *TEXTS), *rows])))


def no_hits(result: SearchResult) -> str:
    """What to try when there are none."""
    if not result.min_score:
        return "no hits; try other words or fewer filters"
    least = score_text(result.min_score, result.unit)
    if result.unit == "score":
        return f"no hits of at least {least}; try other words, fewer filters, a lower --min-score"
    return (
        f"no hits of at least {least}; try other words or fewer filters; "
        "--min-score 0 shows the nearest ones all the same"
    )


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _cells(hit: Hit, unit: Unit) -> tuple[str, ...]:
    return (
        str(hit.rank),
        score_text(hit.score, unit),
        *_parts(hit.contributions, unit),
        printable(hit.record.path),
        _caption(hit.contributions.caption),
    )


def _parts(why: Contributions, unit: Unit) -> tuple[str, ...]:
    """What made the score, in the columns of NUMBERS; a dash for what is missing."""
    if unit == "score":
        return tuple("-" if one is None else f"{one:.3f}" for one in (why.cm, why.cl))
    columns: tuple[tuple[str, ...], ...] = (
        ("image",), ("caption", "generated"), ("words", "generated_words", "tag"), ("prior",),
    )  # fmt: skip
    added = [[why.log_odds[name] for name in names if name in why.log_odds] for names in columns]
    return tuple(f"{sum(parts):+.1f}" if parts else "-" for parts in added)


def _caption(caption: Caption | None) -> str:
    if caption is None:
        return ""
    by = " (model)" if caption.generated else ""
    return f"{printable(caption.text)} [{caption.language}]{by}"


def _print_rich(result: SearchResult) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text  # not markup: a file name may contain brackets

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in NUMBERS[result.unit]:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(TEXTS[0], overflow="fold")
    table.add_column(TEXTS[1], overflow="fold", style="dim")
    for hit in result.hits:
        *numbers, path, caption = _cells(hit, result.unit)
        link = Path(hit.record.path).absolute().as_uri()
        table.add_row(*numbers, Text(path, style=f"link {link}"), Text(caption))
    Console().print(table)
