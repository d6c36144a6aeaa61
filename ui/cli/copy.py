"""`capsearch copy`: a collection from an index folder to Elasticsearch, or back.

`capsearch forget`: let go of an indexed folder, or of a captions file.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capsearch.ui.cli.options import (
    backend_option,
    index_option,
    json_option,
    replicas_option,
    shards_option,
)
from capsearch.ui.cli.progress import INTERRUPTED, stop_on_interrupt
from capsearch.ui.cli.terminal import print_json, remark
from capsearch.ui.opening import is_url, place_of, sources_at
from capsearch.ui.values import printable

if TYPE_CHECKING:
    from capsearch.indexer.elastic.copy import CopySummary, Show
    from capsearch.indexer.forgetting import Forgettable
    from capsearch.indexer.pipeline import Progress


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
@shards_option
@replicas_option
@click.option(
    "--load-replicas",
    type=click.IntRange(0, 16),
    show_default="as --replicas",
    help="Replicas while a new collection is filled. 0 is faster, but with a node that is lost "
    "meanwhile the load has to begin again.",
)
@json_option
def command(
    source: str,
    target: str,
    rebuild: bool,
    shards: int,
    replicas: int,
    load_replicas: int | None,
    as_json: bool,
) -> int:
    """Copy a collection from an index folder to Elasticsearch, or back, without encoding again."""
    if is_url(source) == is_url(target):
        raise click.UsageError("one of FROM and TO is a folder, the other https://HOST:9200/NAME")
    from capsearch.ui.cli.progress import progress_bar

    with stop_on_interrupt() as stop, progress_bar() as bar:
        if is_url(source):
            summary = _from_cluster(source, Path(target), _shown(bar), stop)
        else:
            sizes = {"shards": shards, "replicas": replicas, "load_replicas": load_replicas}
            summary = _to_cluster(Path(source), target, _shown(bar), stop, rebuild, sizes)
    _report(summary, source, target, as_json)
    return INTERRUPTED if summary.interrupted else 0


def _to_cluster(
    source: Path,
    target: str,
    show: Show,
    stop: threading.Event,
    rebuild: bool,
    sizes: Mapping[str, Any],
) -> CopySummary:
    from capsearch.indexer.elastic.client import Address
    from capsearch.indexer.elastic.copy import to_cluster
    from capsearch.indexer.sqlite.collection import Collection

    address = Address.parse(target)
    with Collection.open(source) as collection:
        return to_cluster(collection, address, show, stop, rebuild=rebuild, **sizes)


def _from_cluster(source: str, target: Path, show: Show, stop: threading.Event) -> CopySummary:
    from capsearch.indexer.elastic.collection import ElasticCollection
    from capsearch.indexer.elastic.copy import from_cluster
    from capsearch.indexer.sqlite.collection import Collection

    with (
        ElasticCollection.open(source) as opened,
        Collection.create(target, opened.model) as collection,
    ):
        collection.require_same_model()
        return from_cluster(opened.address, collection, show, stop)


def _shown(bar: Callable[[Progress], None]) -> Show:
    from capsearch.indexer.pipeline import Progress

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


FORGET_EXAMPLES = """\b
Examples:
  capsearch forget /media/old-drive        its images are no longer found
  capsearch forget captions.csv --yes      its captions, without a question
"""


@click.command(epilog=FORGET_EXAMPLES)
@click.argument("path", type=click.Path(path_type=Path), metavar="FOLDER")
@index_option
@backend_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def forget(
    path: Path, index_path: Path | None, backend: str | None, yes: bool, as_json: bool
) -> int:
    """Let go of a folder that was indexed, or of a captions file.

    Its images leave the index with their captions, unless another folder holds them too. No
    image file is touched. The folder need not exist any more.
    """
    from capsearch.indexer.forgetting import forget

    with sources_at(place_of(index_path, backend)) as sources:
        found = forget(sources, path, lambda known: yes or _confirmed(known))
    if found is None:
        click.echo("nothing was changed", err=True)
        return 1
    if as_json:
        print_json({"forgotten": found.path, "images": found.images, "captions": found.captions})
    else:
        click.echo(printable(f"forgotten: {_described(found)}"))
    return 0


def _confirmed(known: Forgettable) -> bool:
    try:
        return click.confirm(printable(f"Forget {_described(known)}?"), err=True)
    except click.Abort:  # Ctrl-C, or nobody to ask: --yes is for scripts
        return False


def _described(known: Forgettable) -> str:
    return f"{known.path} with {known.images} images and {known.captions} captions by people"
