"""`capsearch copy`: a collection from an index folder to Elasticsearch, or back."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands.options import json_option
from capsearch.ui.opening import is_url
from capsearch.ui.output.terminal import print_json, remark

if TYPE_CHECKING:
    from capsearch.indexer.elastic.copy import CopySummary, Show
    from capsearch.indexer.progress import Progress

INTERRUPTED = 130
EXAMPLES = """\b
Examples:
  capsearch copy ./images.index https://search.example:9200/images
  capsearch copy https://search.example:9200/images ./images.index
  capsearch query "a cat" --backend https://search.example:9200/images

Vectors, captions and tags are copied as they are; no image is opened. Stopped, it goes on where it
was when it runs again. Into a cluster, copying again sends what has changed.
"""


@click.command(epilog=EXAMPLES)
@click.argument("source", metavar="FROM")
@click.argument("target", metavar="TO")
@click.option(
    "--rebuild",
    is_flag=True,
    help="Replace a collection that was made with another model, once the new one is whole.",
)
@click.option(
    "--shards",
    type=click.IntRange(1, 1024),
    default=1,
    show_default=True,
    help="Parts of a new collection in a cluster.",
)
@click.option(
    "--replicas",
    type=click.IntRange(0, 16),
    default=1,
    show_default=True,
    help="Copies of each part on other nodes of the cluster.",
)
@json_option
def command(
    source: str, target: str, rebuild: bool, shards: int, replicas: int, as_json: bool
) -> int:
    """Copy a collection from an index folder to Elasticsearch, or back, without encoding again."""
    if is_url(source) == is_url(target):
        raise click.UsageError("one of FROM and TO is a folder, the other https://HOST:9200/NAME")
    from capsearch.ui.commands.index import stop_on_interrupt
    from capsearch.ui.output.progress import progress_bar

    with stop_on_interrupt() as stop, progress_bar() as bar:
        if is_url(source):
            summary = _from_cluster(source, Path(target), _shown(bar), stop)
        else:
            summary = _to_cluster(
                Path(source), target, _shown(bar), stop, rebuild, shards, replicas
            )
    _report(summary, source, target, as_json)
    return INTERRUPTED if summary.interrupted else 0


def _to_cluster(
    source: Path,
    target: str,
    show: Show,
    stop: threading.Event,
    rebuild: bool,
    shards: int,
    replicas: int,
) -> CopySummary:
    from capsearch.indexer.elastic.client import Address
    from capsearch.indexer.elastic.copy import to_cluster
    from capsearch.indexer.embedded.collection import Collection

    address = Address.parse(target)
    with Collection.open(source) as collection:
        return to_cluster(
            collection, address, show, stop, rebuild=rebuild, shards=shards, replicas=replicas
        )


def _from_cluster(source: str, target: Path, show: Show, stop: threading.Event) -> CopySummary:
    from capsearch.indexer.elastic.collection import ElasticCollection
    from capsearch.indexer.elastic.copy import from_cluster
    from capsearch.indexer.embedded.collection import Collection

    with (
        ElasticCollection.open(source) as opened,
        Collection.create(target, opened.model) as collection,
    ):
        collection.require_same_model()
        return from_cluster(opened.address, collection, show, stop)


def _shown(bar: Callable[[Progress], None]) -> Show:
    from capsearch.indexer.progress import Progress

    return lambda done, total: bar(Progress("copy", done, total))


def _report(summary: CopySummary, source: str, target: str, as_json: bool) -> None:
    if as_json:
        print_json({"from": source, "to": target, **asdict(summary)})
        return
    verb = "interrupted; copied" if summary.interrupted else "copied"
    click.echo(
        f"{verb}: {summary.copied} images, {summary.unchanged} unchanged, "
        f"{summary.removed} removed in {summary.seconds:.1f} s"
    )
    if summary.interrupted:
        remark("run the same command again to continue")
