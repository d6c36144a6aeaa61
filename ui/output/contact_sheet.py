"""A contact sheet: the hits with thumbnails as one self-contained web page or one image.

File names, captions and queries are escaped, and the page's security policy allows it to load
nothing.
"""

from __future__ import annotations

import base64
import mimetypes
import webbrowser
from collections.abc import Callable, Mapping
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from capsearch.engine.records import Hit, SearchResult, Unit
from capsearch.ui.output.scores import score_text

if TYPE_CHECKING:
    from PIL.Image import Image

    from capsearch.ui.opening import AnyCollection

THUMBNAIL_EDGE = 320
PNG_CELL, PNG_LABEL, PNG_COLUMNS = 240, 24, 5  # pixels, pixels, cells

PAGE = """<!doctype html>
<html><head><meta charset="utf-8">
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


def write(collection: AnyCollection, title: str, result: SearchResult, target: Path) -> None:
    """Write the sheet to `target`; its suffix is one of WRITERS."""
    target.parent.mkdir(parents=True, exist_ok=True)
    WRITERS[target.suffix.lower()](collection, title, result, target)


def last_sheet() -> Path:
    """The file of `query --open`: always the same one, so that sheets do not pile up."""
    import platformdirs

    return platformdirs.user_cache_path("capsearch") / "last-query.html"


def show(sheet: Path) -> None:
    """Open a sheet in the browser."""
    webbrowser.open(sheet.absolute().as_uri())


def _write_html(collection: AnyCollection, title: str, result: SearchResult, target: Path) -> None:
    figures = "\n".join(
        _figure(one, result.unit, _thumbnail(collection, one)) for one in result.hits
    )
    page = PAGE.format(title=escape(title or "images like this one"), figures=figures)
    target.write_text(page, encoding="utf-8", errors="backslashreplace")


def _figure(hit: Hit, unit: Unit, thumbnail: Path | None) -> str:
    path = Path(hit.record.path).absolute()
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


def _thumbnail(collection: AnyCollection, hit: Hit) -> Path | None:
    """The cached thumbnail, or None when the image file is missing or unreadable."""
    from capsearch.engine.errors import InvalidImage
    from capsearch.indexer.embedded.thumbnails import thumbnail

    try:
        return thumbnail(collection.path, hit.record, THUMBNAIL_EDGE)
    except (InvalidImage, OSError):
        return None


def _write_png(collection: AnyCollection, title: str, result: SearchResult, target: Path) -> None:
    from PIL import Image

    columns = max(1, min(PNG_COLUMNS, len(result.hits)))
    rows = max(1, -(-len(result.hits) // columns))
    sheet = Image.new("RGB", (columns * PNG_CELL, rows * (PNG_CELL + PNG_LABEL)), "white")
    for at, one in enumerate(result.hits):
        row, column = divmod(at, columns)
        corner = (column * PNG_CELL, row * (PNG_CELL + PNG_LABEL))
        _paste(sheet, corner, _label(one, result.unit), _thumbnail(collection, one))
    sheet.save(target, format="PNG")


def _label(hit: Hit, unit: Unit) -> str:
    return f"{hit.rank}   {score_text(hit.score, unit)}"


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


Writer = Callable[["AnyCollection", str, SearchResult, Path], None]
WRITERS: Mapping[str, Writer] = {".html": _write_html, ".png": _write_png}
