"""`capsearch info`: what an index holds, which model made it, and its size on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.engine.errors import CapsearchError
from capsearch.ui.cli.options import backend_option, index_option, json_option
from capsearch.ui.cli.terminal import aligned, print_json, remark
from capsearch.ui.opening import place_of
from capsearch.ui.values import human_bytes, printable

if TYPE_CHECKING:
    from capsearch.indexer.elastic.collection import ElasticStats
    from capsearch.indexer.sqlite.collection import CollectionStats


EXAMPLES = """\b
Examples:
  capsearch info
  capsearch info --index ./images.index --json
  capsearch info --backend https://search.example:9200/images
"""


@click.command(epilog=EXAMPLES)
@index_option
@backend_option
@json_option
def command(index_path: Path | None, backend: str | None, as_json: bool) -> None:
    """Report what an index holds, which model made it, and its size on disk.

    This works without the index's model; a missing model is named.
    """
    where, stats = _stats(index_path, backend)
    problem = _model_problem(stats)
    facts = {"index": where, **asdict(stats), "devices": _devices(), "model_problem": problem}
    if problem is not None:
        remark(f"warning: {problem}")
    if as_json:
        print_json(facts)
        return
    rows = [
        (name.replace("_", " "), printable(_readable(name, value))) for name, value in facts.items()
    ]
    click.echo("\n".join(aligned(rows)))


def _stats(
    index_path: Path | None, backend: str | None
) -> tuple[str, CollectionStats | ElasticStats]:
    where = place_of(index_path, backend)
    if isinstance(where, str):
        from capsearch.indexer.elastic import collection as elastic

        return where, elastic.read_stats(where)
    from capsearch.indexer.sqlite import collection as embedded

    return str(where), embedded.read_stats(where)


def _devices() -> Mapping[str, str]:
    """What this machine would use for a new image, and for a search in a large index here."""
    from capsearch.encoders.models.image import device
    from capsearch.indexer.sqlite.nearest import gpus

    return {"encoding": device(), "search": f"{gpus()} GPU" if gpus() else "cpu"}


def _model_problem(stats: CollectionStats | ElasticStats) -> str | None:
    """Why the index cannot be searched with its model, and what to do; None if it can."""
    from capsearch.encoders.models import registry

    made = stats.model_path or stats.model
    try:
        found = registry.load(made).digest
    except CapsearchError as error:
        return (
            f"the model of this index, {made}@{stats.model_digest}, is missing: {error}. Put it "
            "back to search, or run `capsearch index --rebuild --model NAME` with another one"
        )
    if found == stats.model_digest:
        return None
    return (
        f"this index was built with {made}@{stats.model_digest}, but {made} is now @{found}; "
        "run `capsearch index --rebuild`"
    )


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
