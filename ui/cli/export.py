"""`capsearch export`: captions and tags of an index for other programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from capsearch.engine.records import LANGUAGES
from capsearch.ui.cli.index import skipped_lines
from capsearch.ui.cli.options import backend_option, index_option, json_option
from capsearch.ui.cli.terminal import print_json, remark
from capsearch.ui.opening import AnyCollection, open_at, place_of

if TYPE_CHECKING:
    from capsearch.indexer.exporting import Exported, Selection


TO_A_FILE, TO_FILES = ("coco", "csv"), ("text", "xmp")
EXAMPLES = """\b
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


@click.command(epilog=EXAMPLES)
@click.argument("paths", nargs=-1, type=click.Path(path_type=Path), metavar="[PATH]...")
@index_option
@backend_option
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
def command(
    paths: tuple[Path, ...],
    index_path: Path | None,
    backend: str | None,
    kind: str,
    output: Path | None,
    written_by: Literal["people", "models"] | None,
    languages: tuple[str, ...],
    xmp_names: Literal["lightroom", "digikam"],
    as_json: bool,
) -> int:
    """Export captions and tags; with PATH, only those of images there and below."""
    _check(kind, output, as_json)
    from capsearch.indexer.exporting import Selection, text_files, xmp_files

    selection = Selection(paths, written_by, languages or LANGUAGES)
    with open_at(place_of(index_path, backend)) as collection:
        if kind in TO_A_FILE:
            _write(_content(kind, collection, selection), output, as_json)
            return 0
        if kind == "text":
            assert output is not None  # _check saw to it
            done = text_files(collection, selection, output)
        else:
            done = xmp_files(collection, selection, xmp_names)
    _report(done, as_json)
    return 0


def _check(kind: str, output: Path | None, as_json: bool) -> None:
    if kind == "text" and output is None:
        raise click.UsageError("--format text needs a folder: --output DIR")
    if kind == "xmp" and output is not None:
        raise click.UsageError("XMP sidecars are written beside the images: leave out --output")
    if kind == "csv" and output is None and as_json:
        raise click.UsageError("--json reports what was written; for CSV give --output FILE")
    if kind in TO_A_FILE and output is not None and output.exists():
        raise click.UsageError(f"{output} exists and is not overwritten; choose another name")


def _content(kind: str, collection: AnyCollection, selection: Selection) -> str:
    from capsearch.indexer import exporting

    writer = {"coco": exporting.coco, "csv": exporting.table}[kind]
    return writer(collection, selection)


def _write(content: str, output: Path | None, as_json: bool) -> None:
    from capsearch.encoders import atomic

    if output is None:
        click.echo(content, nl=False)
        return
    atomic.write_text(output, content)
    if as_json:
        print_json({"written": 1, "output": output, "skipped": []})
    else:
        remark(f"written: {output}")


def _report(done: Exported, as_json: bool) -> None:
    if as_json:
        print_json(asdict(done))
        return
    for line in skipped_lines(done.skipped):
        remark(line)
    click.echo(f"written: {done.written} files, {len(done.skipped)} left as they are")
