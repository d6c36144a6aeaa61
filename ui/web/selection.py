"""The grid, with a mode in which a click selects an image, and exports of what is selected."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import streamlit as st

from capsearch.engine.records import ImageRecord
from capsearch.ui.opening import AnyCollection
from capsearch.ui.texts import Texts
from capsearch.ui.web import grid, session
from capsearch.ui.web.originals import (
    MAX_DOWNLOAD_BYTES,
    paths_as_csv,
    paths_as_text,
    records_of,
    total_bytes,
    zip_originals,
)

_MB = 1_000_000


def draw_grid(collection: AnyCollection, tiles: Sequence[grid.Tile], texts: Texts) -> None:
    """Draw the grid; in selection mode with the exports above it, and other clicks."""
    if not st.session_state.get("selecting"):
        grid.draw(tiles, texts, "grid", session.open_image)
        return
    shown = tuple(tile.record.id for tile in tiles)
    chosen = records_of(collection, st.session_state["chosen"])
    _bar(collection, chosen, shown, texts)
    st.html(_marks(tiles, {record.id for record in chosen}))
    select = replace(texts, open_image=texts.select_image)  # the label of a tile's button
    grid.draw(tiles, select, "grid", session.toggle_chosen)


def _bar(
    collection: AnyCollection, chosen: Sequence[ImageRecord], shown: tuple[str, ...], texts: Texts
) -> None:
    with st.container(horizontal=True, vertical_alignment="center", key="selection"):
        st.text(texts.selected_count.format(count=len(chosen)), width="content")
        st.button(texts.select_shown, on_click=session.choose_all, args=(shown,))
        if chosen:
            st.button(texts.clear_selection, on_click=session.clear_chosen)
            _exports(collection, chosen, texts)


def _exports(collection: AnyCollection, chosen: Sequence[ImageRecord], texts: Texts) -> None:
    """Each export is made when it is clicked."""
    too_large = total_bytes(chosen) > MAX_DOWNLOAD_BYTES
    pack = partial(zip_originals, collection, chosen)
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


def _marks(tiles: Sequence[grid.Tile], chosen: set[str]) -> str:
    """A style sheet that marks the selected tiles; it contains nothing but their ranks."""
    buttons = ", ".join(
        f".st-key-open_grid_{tile.rank} button" for tile in tiles if tile.record.id in chosen
    )
    frame = "box-shadow: inset 0 0 0 5px #3d8b84, inset 0 0 0 7px #fff !important"  # also hovered
    return f"<style>{buttons} {{ {frame} }}</style>" if buttons else "<style></style>"
