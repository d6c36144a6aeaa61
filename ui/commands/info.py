"""`capsearch info`: what an index holds, which model made it, and its size on disk."""

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
  capsearch info --index ./images.index --json
"""


@click.command(epilog=EXAMPLES)
@index_option
@json_option
def command(index_path: Path | None, as_json: bool) -> None:
    """Report what an index holds, which model made it, and its size on disk."""
    from capsearch.indexer.embedded.collection import Collection

    where = index_path_or_default(index_path)
    with Collection.open(where) as collection:
        facts = {"index": str(where), **asdict(collection.stats())}
    if as_json:
        print_json(facts)
        return
    rows = [
        (name.replace("_", " "), printable(_readable(name, value))) for name, value in facts.items()
    ]
    click.echo("\n".join(aligned(rows)))


def _readable(name: str, value: object) -> str:
    """A value in readable form; a missing one is a dash."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_readable(name, one)}" for key, one in value.items()) or "-"
    if isinstance(value, list | tuple):
        return ", ".join(_readable(name, one) for one in value) or "-"
    if isinstance(value, int) and "bytes" in name:
        return human_bytes(value)
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="seconds")
    return "-" if value is None else str(value)
