"""Hits as a table, as plain lines for a pipe, as paths, as JSON, and as a contact sheet.

A contact sheet is one self-contained web page or one image. File names, captions and queries are
escaped, and the page's security policy allows it to load nothing.
"""

from __future__ import annotations

import base64
import mimetypes
import sys
import webbrowser
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.engine.errors import InvalidImage
from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Contributions, Filters, Hit, SearchResult, Unit
from capsearch.ui.cli.options import SHEET_MARK
from capsearch.ui.cli.terminal import aligned, print_json
from capsearch.ui.values import printable, score_text

if TYPE_CHECKING:
    from PIL.Image import Image

    from capsearch.library import Library


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
        click.echo(printable(hit.path) if _on_terminal() else hit.path)


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
            "hits": [_hit_as_json(hit) for hit in result],
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
        "path": hit.path,
        **asdict(hit.record),
    }


def print_table(result: SearchResult) -> None:
    """Print a table with links to the files; aligned lines without colour in a pipe."""
    if not result.hits:
        return
    if _on_terminal():
        _print_rich(result)
    else:
        rows = [_cells(hit, result.unit) for hit in result]
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


def unmatched(library: Library, filters: Filters) -> Iterator[str]:
    """The filters that let no image through: each by itself, else all of them together.

    Without this, a tag that no image has would look like a score that no image reaches.
    """
    alone = list(_alone(library, filters))
    for reason, single in alone:
        if not library.newest(single, 1):
            yield reason
            filters = Filters()  # what is left needs no other reason
    if filters and not library.newest(filters, 1):
        yield "no image passes all filters together"


def _alone(library: Library, filters: Filters) -> Iterator[tuple[str, Filters]]:
    """Each filter by itself, and what to say where it lets nothing through."""
    for tag in filters.tags:
        yield f"no image here has the tag {tag!r}{_nearest(library, tag)}", Filters(tags=(tag,))
    if filters.folders:
        folders = " or ".join(filters.folders)
        yield f"no image here lies below {folders}", Filters(folders=filters.folders)
    if start := filters.taken_from:
        yield f"no image here was taken on or after {start}", Filters(taken_from=start)
    if end := filters.taken_until:
        yield f"no image here was taken on or before {end}", Filters(taken_until=end)
    if language := filters.caption_language:
        known = Filters(caption_language=language)
        yield f"no image here has a caption in {language!r}", known
    if writer := filters.written_by:
        yield f"no image here has a caption written by {writer}", Filters(written_by=writer)


def _nearest(library: Library, tag: str) -> str:
    """Tags of the index that are written alike, as a question; empty if there are none."""
    names = {facet.value.lower(): facet.value for facet in library.facets().tags}
    alike = get_close_matches(tag.lower(), names, n=3)
    return f"; did you mean {' or '.join(names[name] for name in alike)}?" if alike else ""


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _cells(hit: Hit, unit: Unit) -> tuple[str, ...]:
    return (
        str(hit.rank),
        score_text(hit.score, unit),
        *_parts(hit.contributions, unit),
        printable(hit.path),
        _caption(hit.contributions.caption),
    )


def _parts(why: Contributions, unit: Unit) -> tuple[str, ...]:
    """What made the score, in the columns of NUMBERS; a dash for what is missing."""
    if unit == "score":
        return tuple("-" if score is None else f"{score:.3f}" for score in (why.cm, why.cl))
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
    for hit in result:
        *numbers, path, caption = _cells(hit, result.unit)
        link = Path(hit.path).absolute().as_uri()
        table.add_row(*numbers, Text(path, style=f"link {link}"), Text(caption))
    Console().print(table)


THUMBNAIL_EDGE = 320
_GENERATOR = SHEET_MARK.decode("ascii")  # by which the next sheet may replace this one
PNG_CELL, PNG_LABEL, PNG_COLUMNS = 240, 24, 5  # pixels, pixels, cells

PAGE = """<!doctype html>
<html><head><meta charset="utf-8"><meta name="generator" content="{generator}">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; font: 15px/1.4 system-ui, sans-serif }}
body {{ margin: 1.5rem }}
main {{ display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fill, minmax(220px, 1fr)) }}
figure {{ margin: 0 }}
img, .missing {{ width: 100%; aspect-ratio: 1; object-fit: contain; background: #8882;
 border-radius: 6px; display: grid; place-items: center }}
figcaption {{ overflow-wrap: anywhere; font-size: .85rem; margin-top: .35rem }}
small {{ opacity: .7; display: block }}
</style></head>
<body><h1>{title}</h1><main>
{figures}
</main></body></html>
"""


def write(library: Library, title: str, result: SearchResult, target: Path) -> None:
    """Write the sheet to `target`; its suffix is one of WRITERS."""
    target.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[target.suffix.lower()](library, title, result, target)


def last_sheet() -> Path:
    """The file of `query --open`: always the same one, so that sheets do not pile up."""
    import platformdirs

    return platformdirs.user_cache_path("capsearch") / "last-query.html"


def show(sheet: Path) -> None:
    """Open a sheet in the browser."""
    webbrowser.open(sheet.absolute().as_uri())


def _write_html(library: Library, title: str, result: SearchResult, target: Path) -> None:
    figures = "\n".join(_figure(hit, result.unit, _thumbnail(library, hit)) for hit in result)
    page = PAGE.format(
        generator=_GENERATOR, title=escape(title or "images like this one"), figures=figures
    )
    target.write_text(page, encoding="utf-8", errors="backslashreplace")


def _figure(hit: Hit, unit: Unit, thumbnail: Path | None) -> str:
    path = Path(hit.path).absolute()
    caption = hit.contributions.caption
    text = f"{escape(caption.text)} <small>{escape(caption.source)}</small>" if caption else ""
    return (
        f'<figure><a href="{escape(path.as_uri())}">{_image(thumbnail)}</a>'
        f"<figcaption>{hit.rank}. <b>{escape(score_text(hit.score, unit))}</b> {escape(path.name)}"
        f"<div>{text}</div><small>{escape(str(path.parent))}</small></figcaption></figure>"
    )


def _image(thumbnail: Path | None) -> str:
    if thumbnail is None:
        return '<div class="missing">image not readable</div>'
    kind = mimetypes.guess_type(thumbnail.name)[0] or "image/webp"
    data = base64.b64encode(thumbnail.read_bytes()).decode("ascii")
    return f'<img alt="" src="data:{kind};base64,{data}">'


def _thumbnail(library: Library, hit: Hit) -> Path | None:
    """The cached thumbnail, or None when the image file is missing or unreadable."""
    try:
        return library.thumbnail(hit.record, THUMBNAIL_EDGE)
    except (InvalidImage, OSError):
        return None


def _write_png(library: Library, title: str, result: SearchResult, target: Path) -> None:
    from PIL import Image
    from PIL.PngImagePlugin import PngInfo

    columns = max(1, min(PNG_COLUMNS, len(result.hits)))
    rows = max(1, -(-len(result.hits) // columns))
    sheet = Image.new("RGB", (columns * PNG_CELL, rows * (PNG_CELL + PNG_LABEL)), "white")
    for at, hit in enumerate(result):
        row, column = divmod(at, columns)
        corner = (column * PNG_CELL, row * (PNG_CELL + PNG_LABEL))
        _paste(
            sheet,
            corner,
            f"{hit.rank}   {score_text(hit.score, result.unit)}",
            _thumbnail(library, hit),
        )
    written_by = PngInfo()
    written_by.add_text("Software", _GENERATOR)
    sheet.save(target, format="PNG", pnginfo=written_by)


def _paste(sheet: Image, corner: tuple[int, int], label: str, thumbnail: Path | None) -> None:
    """Draw one cell: image, rank and score. No caption: not every font has every script."""
    from PIL import Image, ImageDraw

    left, top = corner
    if thumbnail is not None:
        with Image.open(thumbnail) as opened:
            small = opened.convert("RGB")
        small.thumbnail((PNG_CELL - 8, PNG_CELL - 8))
        middle = (left + (PNG_CELL - small.width) // 2, top + (PNG_CELL - small.height) // 2)
        sheet.paste(small, middle)
    ImageDraw.Draw(sheet).text((left + 8, top + PNG_CELL), label, fill="black", font_size=16)


Writer = Callable[["Library", str, SearchResult, Path], None]
WRITERS: Mapping[str, Writer] = {".html": _write_html, ".png": _write_png}
