"""`capsearch query`: find images by words, by an image, or by both."""

from __future__ import annotations

import sys
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import MODES, Filters, Mode, Pixels, Query, SearchResult
from capsearch.ui.commands.options import (
    first_day,
    index_option,
    index_path_or_default,
    json_option,
    last_day,
)
from capsearch.ui.output.terminal import remark

if TYPE_CHECKING:
    from capsearch.indexer.embedded.collection import Collection
    from capsearch.ui.output.hits import Found

EXAMPLES = """\b
Examples:
  capsearch query "a cat on a laptop"
  capsearch query "一只猫趴在笔记本电脑上" --limit 3
  capsearch query "ノートパソコンの上の猫" --open
  capsearch query --image holiday.jpg              images like this one
  capsearch query "at night" --image holiday.jpg   like this one, but at night
  capsearch query dog --from 2023 --until 2024-06 --folder ~/Pictures/garden
  capsearch query cat --paths | head -1            for other programs
  echo "red bus" | capsearch query - --json

Scores: CM compares the words with the image itself, CL with its captions in whatever
language they are, and CLM (the default) is weight x CL + (1 - weight) x CM. To cut off what
is not relevant, look at the scores once and give --min-score.
"""


@click.command(epilog=EXAMPLES)
@click.argument("text", nargs=-1, metavar="[TEXT]")
@index_option
@click.option(
    "--image",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="An image to compare with.",
)
@click.option(
    "--image-weight", type=float, default=0.5, show_default=True, help="Its share beside words."
)
@click.option(
    "--lang", "language", metavar="en|zh|ja", help="Language of TEXT.  [default: by script]"
)
@click.option(
    "--mode",
    type=click.Choice(MODES),
    default="clm",
    show_default=True,
    help="What to compare with.",
)
@click.option("--weight", type=float, help="Share of CL in CLM, 0 to 1.  [default: the model's]")
@click.option("--limit", "-n", type=int, default=10, show_default=True, help="How many hits.")
@click.option(
    "--offset", type=int, default=0, show_default=True, help="How many hits to pass over."
)
@click.option("--model", metavar="NAME", help="The model of the index, if it has moved.")
@click.option("--min-score", type=float, help="Leave out hits below this score.")
@click.option(
    "--folder",
    "folders",
    multiple=True,
    type=click.Path(path_type=Path),
    help="Only below this folder; repeatable.",
)
@click.option("--tag", "tags", multiple=True, help="Only with this tag; repeatable.")
@click.option(
    "--from",
    "taken_from",
    type=first_day,
    metavar="DATE",
    help="Taken on or after: 2024, 2024-05, 2024-05-31.",
)
@click.option("--until", "taken_until", type=last_day, metavar="DATE", help="Taken on or before.")
@click.option("--caption-lang", metavar="en|zh|ja", help="Only with a caption in this language.")
@click.option(
    "--written-by", type=click.Choice(("people", "models")), help="Only with a caption by them."
)
@json_option
@click.option("--paths", "as_paths", is_flag=True, help="Print only paths, one a line.")
@click.option("--open", "open_sheet", is_flag=True, help="Show the hits as a page in the browser.")
@click.option(
    "--sheet",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the hits as a page (.html) or an image (.png).",
)
def command(
    text: tuple[str, ...],
    index_path: Path | None,
    image: Path | None,
    image_weight: float,
    language: str | None,
    mode: Mode,
    weight: float | None,
    limit: int,
    offset: int,
    model: str | None,
    min_score: float | None,
    folders: tuple[Path, ...],
    tags: tuple[str, ...],
    taken_from: date | None,
    taken_until: date | None,
    caption_lang: str | None,
    written_by: Literal["people", "models"] | None,
    as_json: bool,
    as_paths: bool,
    open_sheet: bool,
    sheet: Path | None,
) -> None:
    """Find images by TEXT, by an image, or by both; TEXT may be - to read it from stdin."""
    if as_json and as_paths:
        raise click.UsageError("choose one of --json and --paths")
    _check_sheet(sheet)
    from capsearch.encoders import models
    from capsearch.indexer.embedded.collection import Collection

    filters = Filters(
        folders=tuple(_absolute(folder) for folder in folders),
        tags=tags,
        taken_from=taken_from,
        taken_until=taken_until,
        caption_language=caption_lang,
        written_by=written_by,
    )
    where = index_path_or_default(index_path)
    with Collection.open(where, models.load(model) if model else None) as collection:
        engine = collection.engine()
        query = Query(
            text=_words(text),
            image=_pixels(image, collection),
            language=language,
            mode=mode,
            weight=weight,
            image_weight=image_weight,
            filters=filters,
            min_score=min_score,
            limit=limit,
            offset=offset,
        )
        result = engine.search(query)
        found = _look_up(collection, result)
        _print(query, result, found, as_json=as_json, as_paths=as_paths)
        _write_sheet(collection, query, found, sheet, open_sheet)


def _words(text: tuple[str, ...]) -> str:
    """The words to search for; a lone - stands for what stdin says."""
    return sys.stdin.read().strip() if text == ("-",) else " ".join(text)


def _absolute(folder: Path) -> str:
    return str(folder.expanduser().resolve())


def _pixels(image: Path | None, collection: Collection) -> Pixels | None:
    if image is None:
        return None
    from capsearch.encoders.preprocess import decode

    try:
        return decode(image, collection.model.image.preprocess).pixels
    except InvalidImage as error:
        raise InvalidImage(f"{image}: {error}") from error


def _look_up(collection: Collection, result: SearchResult) -> tuple[Found, ...]:
    """The hits with their records; one whose record has just been removed is left out."""
    from capsearch.ui.output.hits import Found

    records = collection.catalog.images([hit.image_id for hit in result.hits])
    return tuple(
        Found(hit, records[hit.image_id]) for hit in result.hits if hit.image_id in records
    )


def _print(
    query: Query, result: SearchResult, found: tuple[Found, ...], *, as_json: bool, as_paths: bool
) -> None:
    from capsearch.ui.output import hits as hit_output

    for warning in result.warnings:
        remark(f"warning: {warning}")
    if as_json:
        hit_output.print_as_json(query, result, found)
    elif as_paths:
        hit_output.print_paths(found)
    else:
        hit_output.print_table(found)
        _say_what_is_left(query, result)


def _say_what_is_left(query: Query, result: SearchResult) -> None:
    if not result.hits:
        remark("no hits; try other words, fewer filters or a lower --min-score")
    elif result.more:
        remark(f"more: --offset {query.offset + query.limit}")


def _check_sheet(sheet: Path | None) -> None:
    if sheet is None:
        return
    from capsearch.ui.output.contact_sheet import WRITERS

    if sheet.suffix.lower() not in WRITERS:
        raise click.UsageError(
            f"--sheet writes {' or '.join(WRITERS)}, not {sheet.suffix or sheet}"
        )


def _write_sheet(
    collection: Collection,
    query: Query,
    found: tuple[Found, ...],
    sheet: Path | None,
    open_sheet: bool,
) -> None:
    if sheet is None and not open_sheet:
        return
    from capsearch.ui.output import contact_sheet

    target = sheet or contact_sheet.last_sheet()
    contact_sheet.write(collection, query.text, found, target)
    remark(f"sheet: {target}")
    if open_sheet:
        contact_sheet.show(target)
