"""`capsearch info`: what an index holds, made with which models, and how large it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import click

from capsearch.ui.commands.options import index_option, index_path_or_default, json_option
from capsearch.ui.output.terminal import aligned, human_bytes, print_json, printable

EXAMPLES = """\b
Examples:
  capsearch info
  capsearch info --index ./photos.index --json
"""


@click.command(epilog=EXAMPLES)
@index_option
@json_option
def command(index_path: Path | None, as_json: bool) -> None:
    """Tell what an index holds, with which models it was made, and how large it is."""
    from capsearch.indexer.embedded.collection import Collection

    where = index_path_or_default(index_path)
    with Collection.open(where) as collection:
        facts = {"index": str(where), **asdict(collection.stats())}
    if as_json:
        print_json(facts)
        return
    rows = [
        (name.replace("_", " "), printable(_shown(name, value))) for name, value in facts.items()
    ]
    click.echo("\n".join(aligned(rows)))


def _shown(name: str, value: object) -> str:
    """A fact as people read it; empty facts show as a dash."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(name, one)}" for key, one in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_shown(name, one) for one in value) or "-"
    if isinstance(value, int) and "bytes" in name:
        return human_bytes(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return "-" if value is None else str(value)
