"""`capsearch enrich`: let the model write captions and tags for the images of an index."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from capsearch.ui.cli.index import report_enriched
from capsearch.ui.cli.options import (
    backend_option,
    decode_threads_option,
    index_option,
    json_option,
)
from capsearch.ui.cli.progress import INTERRUPTED, stop_on_interrupt
from capsearch.ui.cli.terminal import print_json
from capsearch.ui.opening import create_at, open_at, place_of

EXAMPLES = """\b
Examples:
  capsearch enrich                       go on where `capsearch index` was stopped
  capsearch enrich ~/Pictures/2024       only these images
  capsearch enrich --redo                do it all over
  capsearch enrich --backend https://search.example:9200/images    in Elasticsearch

`capsearch index` does this too, once all images can be searched. Images that another model has
described are described anew. What people wrote, accepted or corrected stays, and captions that were
rejected do not come back. Ctrl-C finishes the current batch and saves everything up to it.
"""


@click.command(epilog=EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@index_option
@backend_option
@click.option(
    "--redo", is_flag=True, help="Also describe images that this model has described already."
)
@click.option(
    "--batch-size",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    metavar="IMAGES",
    help="How many images are described and saved at once.",
)
@decode_threads_option
@click.option("--verbose", is_flag=True, help="Name every skipped file, also of large groups.")
@json_option
def command(
    paths: tuple[Path, ...],
    index_path: Path | None,
    backend: str | None,
    redo: bool,
    batch_size: int,
    decode_threads: int | None,
    verbose: bool,
    as_json: bool,
) -> int:
    """Write captions and tags for the images of an index, by the model it was made with.

    Images that have them already are left alone. With PATH, only images there and below.
    """
    from capsearch.indexer.enrichment import EnrichOptions, enrich
    from capsearch.ui.cli.progress import progress_bar

    where = place_of(index_path, backend)
    open_at(where).close()  # there is an index
    options = EnrichOptions(paths, redo, batch_size, decode_threads)
    with (
        create_at(where) as collection,
        stop_on_interrupt() as stop,
        progress_bar() as show,
    ):
        summary = enrich(collection, options, show, stop)
    if as_json:
        print_json({"index": where, **asdict(summary)})
    else:
        report_enriched(summary, verbose)
    return INTERRUPTED if summary.interrupted else 0
