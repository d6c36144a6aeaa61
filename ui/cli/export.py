"""`capsearch export` and `copy`: an index for other programs, and in another place."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

import capsearch
from capsearch.engine.records import LANGUAGES
from capsearch.library import ExportKind
from capsearch.ui.cli.options import json_option, place_options, replicas_option, shards_option
from capsearch.ui.cli.progress import INTERRUPTED, progress_bar, stop_on_interrupt
from capsearch.ui.cli.terminal import print_json, remark, skipped_lines

TO_A_FILE, TO_FILES = ("coco", "csv"), ("text", "xmp")
EXPORT_EXAMPLES = """\b
Examples:
  capsearch export --format coco > captions.json
  capsearch export --format csv --written-by people --output captions.csv
  capsearch export --format text --language en --output ./texts
  capsearch export ~/Pictures/2024 --format xmp          for Lightroom
  capsearch export --format xmp --xmp-names digikam      for digiKam

What models wrote has the source model:NAME, and `capsearch index` does not read it back as a
person's. XMP sidecars are written beside the images; the model's name is in their field for the
writer of the description. Files that are not ours are left as they are, and named.
"""


@click.command(epilog=EXPORT_EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@place_options
@click.option(
    "--format",
    "kind",
    type=click.Choice((*TO_A_FILE, *TO_FILES)),
    required=True,
    help="COCO captions JSON; CSV; a text file for each image; an XMP sidecar beside each image.",
)
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    metavar="PATH",
    help="A new file for coco and csv, otherwise stdout; a folder for text.",
)
@click.option(
    "--written-by",
    type=click.Choice(("people", "models")),
    help="Only captions and tags by people, or by models.  [default: both]",
)
@click.option(
    "--language",
    "languages",
    multiple=True,
    type=click.Choice(LANGUAGES),
    help="Captions, and names of models' tags, in this language; repeatable, the first is the "
    "default of an XMP sidecar.  [default: all]",
)
@click.option(
    "--xmp-names",
    type=click.Choice(("lightroom", "digikam")),
    default="lightroom",
    show_default=True,
    help="Call sidecars NAME.xmp as Lightroom does, or NAME.jpg.xmp as digiKam does.",
)
@json_option
def export(
    paths: tuple[Path, ...],
    place: Path | str | None,
    kind: ExportKind,
    output: Path | None,
    as_json: bool,
    **selection: Any,
) -> None:
    """Export captions and tags; with PATH, only those of images there and below."""
    _check(kind, output, as_json)
    selection["languages"] = selection["languages"] or LANGUAGES
    with capsearch.open(place) as library:
        target = output or (sys.stdout if kind in TO_A_FILE else None)
        done = library.export(kind, target, paths=paths, **selection)
    if kind in TO_A_FILE:
        _report_file(output, as_json)
    elif as_json:
        print_json(asdict(done))
    else:
        for line in skipped_lines(done.skipped):
            remark(line)
        click.echo(f"written: {done.written} files, {len(done.skipped)} left as they are")


def _check(kind: str, output: Path | None, as_json: bool) -> None:
    if kind == "text" and output is None:
        raise click.UsageError("--format text needs a folder: --output DIR")
    if kind == "xmp" and output is not None:
        raise click.UsageError("XMP sidecars are written beside the images: leave out --output")
    if kind == "csv" and output is None and as_json:
        raise click.UsageError("--json reports what was written; for CSV give --output FILE")


def _report_file(output: Path | None, as_json: bool) -> None:
    if output is None:
        return
    if as_json:
        print_json({"written": 1, "output": output, "skipped": []})
    else:
        remark(f"written: {output}")


COPY_EXAMPLES = """\b
Examples:
  capsearch copy ./images.index https://search.example:9200/images
  capsearch copy https://search.example:9200/images ./images.index
  capsearch query "a cat" --backend https://search.example:9200/images

Vectors, captions and tags are copied as they are; no image is opened. Stopped, it goes on where it
was when it runs again. Into a cluster, copying again sends what has changed.
"""


@click.command(epilog=COPY_EXAMPLES)
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
def copy(
    source: str,
    target: str,
    rebuild: bool,
    shards: int,
    replicas: int,
    load_replicas: int | None,
    as_json: bool,
) -> int:
    """Copy a collection from an index folder to Elasticsearch, or back, without encoding again."""
    if ("://" in source) == ("://" in target):
        raise click.UsageError("one of FROM and TO is a folder, the other https://HOST:9200/NAME")
    there = capsearch.open(target, shards=shards, replicas=replicas)
    with capsearch.open(source) as here, stop_on_interrupt() as stop, progress_bar() as show:
        summary = here.copy(
            there, rebuild=rebuild, load_replicas=load_replicas, progress=show, stop=stop
        )
    if as_json:
        print_json({"from": source, "to": target, **asdict(summary)})
        return INTERRUPTED if summary.interrupted else 0
    verb = "interrupted; copied" if summary.interrupted else "copied"
    click.echo(
        f"{verb}: {summary.copied} images, {summary.unchanged} unchanged, "
        f"{summary.removed} removed in {summary.seconds:.1f} s"
    )
    if summary.interrupted:
        remark("run the same command again to continue")
    return INTERRUPTED if summary.interrupted else 0
