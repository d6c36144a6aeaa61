"""The grid of images, and a mode in which a click selects one, with exports of what is selected.

Names, captions and tags are drawn with st.text: never as Markdown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import streamlit as st

from capsearch.encoders.text import concepts
from capsearch.engine.records import (
    Caption,
    Contributions,
    Document,
    ImageRecord,
    SearchResult,
    Tag,
    Unit,
)
from capsearch.library import Library
from capsearch.ui.values import printable, score_text
from capsearch.ui.web import session
from capsearch.ui.web.images import (
    MAX_DOWNLOAD_BYTES,
    paths_as_csv,
    paths_as_text,
    records_of,
    tile_files,
    total_bytes,
    zip_originals,
)
from capsearch.ui.web.style import ratio_bucket
from capsearch.ui.web.texts import Texts

MAX_TAGS = 5


@dataclass(frozen=True, slots=True)
class Tile:
    """An image in the grid with the texts below it."""

    record: ImageRecord
    rank: int
    scores: str
    caption: str
    tags: str
    file: Path | None


def tiles_of_hits(library: Library, result: SearchResult, language: str) -> tuple[Tile, ...]:
    """The hits of a search as tiles."""
    lines = [scores_line(hit.score, result.unit, hit.contributions) for hit in result]
    captions = [hit.caption(language) or hit.caption() for hit in result]
    return _tiles(library, [hit.document for hit in result], language, lines, captions)


def tiles_of_documents(
    library: Library, documents: Sequence[Document], language: str, scores: Sequence[float] = ()
) -> tuple[Tile, ...]:
    """Images without a search; each may have a score."""
    lines = [f"{score:.3f}" for score in scores] or [""] * len(documents)
    captions = [document.caption(language) or document.caption() for document in documents]
    return _tiles(library, documents, language, lines, captions)


def _tiles(
    library: Library,
    documents: Sequence[Document],
    language: str,
    lines: Sequence[str],
    captions: Sequence[Caption | None],
) -> tuple[Tile, ...]:
    files = tile_files(library, [document.record for document in documents])
    rows = zip(documents, lines, captions, files, strict=True)
    return tuple(
        Tile(
            document.record,
            rank,
            line,
            printable(str(caption or "")),
            tags_for(language, document.tags),
            file,
        )
        for rank, (document, line, caption, file) in enumerate(rows, start=1)
    )


def scores_line(score: float, unit: Unit, why: Contributions) -> str:
    """The fused score and the scores of CM and CL, a dash where one is missing."""
    return f"{score_text(score, unit)}   CM {_number(why.cm)}   CL {_number(why.cl)}"


def tags_for(language: str, tags: Sequence[Tag]) -> str:
    """The tags with the highest confidence that have a name in `language`, or any if none has."""
    in_language = [tag for tag in tags if tag.concept or tag.language == language] or tags
    names = (concepts.label_of(tag.concept, tag.label, language) for tag in in_language)
    labels = dict.fromkeys(printable(name) for name in names)
    return " · ".join(list(labels)[:MAX_TAGS])


def draw(tiles: Sequence[Tile], texts: Texts, place: str, on_open: Callable[[str], None]) -> None:
    """Draw tiles in a container named `place`; the whole of each image is a button."""
    with st.container(key=place):
        for tile in tiles:
            _draw_tile(tile, texts, place, on_open)


def _draw_tile(tile: Tile, texts: Texts, place: str, on_open: Callable[[str], None]) -> None:
    """Draw one tile. Its key gives the style sheet the shape and whether it has a caption."""
    name = f"{place}_{tile.rank}"
    shape = ratio_bucket(tile.record.width, tile.record.height)
    with st.container(key=f"tile_{name}_r{shape:03}{'_captioned' if tile.caption else ''}"):
        if tile.file is None:
            st.container(key=f"gone_{name}").text(texts.unreadable)
        else:
            st.image(str(tile.file), width="stretch")
        st.button(
            texts.open_image.format(rank=tile.rank),
            key=f"open_{name}",
            on_click=on_open,
            args=(tile.record.id,),
        )
        for line in filter(None, (tile.caption, tile.scores, tile.tags)):
            st.text(line)


def _number(score: float | None) -> str:
    return "–" if score is None else f"{score:.3f}"


_MB = 1_000_000


def draw_grid(library: Library, tiles: Sequence[Tile], texts: Texts) -> None:
    """Draw the grid; in selection mode with the exports above it, and other clicks."""
    if not st.session_state.get("selecting"):
        draw(tiles, texts, "grid", session.open_image)
        return
    shown = tuple(tile.record.id for tile in tiles)
    chosen = records_of(library, st.session_state["chosen"])
    _bar(library, chosen, shown, texts)
    st.html(_marks(tiles, {record.id for record in chosen}))
    select = replace(texts, open_image=texts.select_image)  # the label of a tile's button
    draw(tiles, select, "grid", session.toggle_chosen)


def _bar(
    library: Library, chosen: Sequence[ImageRecord], shown: tuple[str, ...], texts: Texts
) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="selection"):
        st.text(texts.selected_count.format(count=len(chosen)), width="content")
        st.button(texts.select_shown, on_click=session.choose_all, args=(shown,))
        if chosen:
            st.button(texts.clear_selection, on_click=session.clear_chosen)
            _exports(library, chosen, texts)


def _exports(library: Library, chosen: Sequence[ImageRecord], texts: Texts) -> None:
    """Each export is made when it is clicked."""
    too_large = total_bytes(chosen) > MAX_DOWNLOAD_BYTES
    pack = partial(zip_originals, library, chosen)
    for label, make, name, mime in (
        (texts.export_text, partial(paths_as_text, chosen), "paths.txt", "text/plain"),
        (texts.export_csv, partial(paths_as_csv, chosen), "paths.csv", "text/csv"),
        (texts.export_zip, pack, "images.zip", "application/zip"),
    ):
        is_zip = make is pack
        st.download_button(
            label,
            make,
            file_name=name,
            mime=mime,
            on_click="ignore",
            icon=":material/download:",
            disabled=is_zip and too_large,
            help=texts.zip_limit.format(limit=MAX_DOWNLOAD_BYTES // _MB) if is_zip else None,
        )
    if too_large:
        sizes = {"size": total_bytes(chosen) // _MB, "limit": MAX_DOWNLOAD_BYTES // _MB}
        st.text(texts.zip_too_large.format(**sizes))


def _marks(tiles: Sequence[Tile], chosen: set[str]) -> str:
    """A style sheet that marks the selected tiles; it contains nothing but their ranks."""
    buttons = ", ".join(
        f".st-key-open_grid_{tile.rank} button" for tile in tiles if tile.record.id in chosen
    )
    frame = "box-shadow: inset 0 0 0 5px #3d8b84, inset 0 0 0 7px #fff !important"  # also hovered
    return f"<style>{buttons} {{ {frame} }}</style>" if buttons else "<style></style>"
