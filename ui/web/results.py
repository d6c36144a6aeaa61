"""The answer to a search as a grid, the newest images without one, or what went wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import streamlit as st
from streamlit.runtime.uploaded_file_manager import UploadedFile

from capsearch.engine.errors import (
    CapsearchError,
    IndexEmpty,
    IndexMissing,
    IndexProblem,
    InvalidImage,
    InvalidQuery,
)
from capsearch.engine.records import Hit, Pixels, Query, SearchResult
from capsearch.indexer.embedded.facets import newest
from capsearch.ui.output.terminal import printable
from capsearch.ui.texts import Texts
from capsearch.ui.web import detail, grid, session, timing
from capsearch.ui.web.images import TILE_EDGE, image_file, upload_pixels
from capsearch.ui.web.library import Library
from capsearch.ui.web.state import MAX_PAGES, PAGE_SIZE, PageState

# The first that fits: the error, what the page calls it in the reader's language.
_NAMES: tuple[tuple[type[CapsearchError], str], ...] = (
    (IndexMissing, "no_index"),
    (IndexEmpty, "index_empty"),
    (IndexProblem, "index_problem"),
    (InvalidImage, "bad_upload"),
    (InvalidQuery, "bad_query"),
    (CapsearchError, "problem"),
)
_INDEX_COMMAND = "capsearch index ~/Pictures"
Drawn: TypeAlias = "tuple[tuple[grid.Tile, ...], Mapping[str, Hit]]"


@dataclass(frozen=True, slots=True)
class Asked:
    """One run's question: where, in whose language, for what."""

    library: Library
    texts: Texts
    reader: str
    state: PageState
    dropped: UploadedFile | None


def show(asked: Asked, watch: timing.Stopwatch) -> None:
    """The grid for what was asked, and the large view if an image is selected."""
    try:
        query = _query(asked)
        tiles, hits = _browse(asked) if query is None else _search(asked, query, watch)
    except CapsearchError as error:
        explain(asked.texts, error)
        return
    if asked.state.selected is not None:
        order = [tile.record.id for tile in tiles]
        detail.show(detail.View(asked.library, asked.texts, asked.reader, hits, order))


def _query(asked: Asked) -> Query | None:
    """What to ask the engine, after showing the image that is searched with, if any."""
    image = _uploaded(asked)
    if image is None and asked.state.like is None:
        return asked.state.query()
    with st.container(horizontal=True, vertical_alignment="center", key="with_image"):
        _show_example(asked, image)
        share = 0.5
        if asked.state.text:
            share = st.slider(asked.texts.image_weight, 0.0, 1.0, 0.5, 0.05, width=320)
    return asked.state.query(image, share)


def _uploaded(asked: Asked) -> Pixels | None:
    """The dropped image as pixels, decoded once and kept while it stays in the drop zone."""
    if asked.dropped is None:
        st.session_state.pop("upload", None)
        return None
    name = (asked.dropped.file_id, asked.library.collection.model.digest)
    if st.session_state.get("upload", (None,))[0] != name:
        pixels = upload_pixels(asked.dropped.getvalue(), asked.library.collection)
        st.session_state["upload"] = (name, pixels)
    kept: Pixels = st.session_state["upload"][1]
    return kept


def _show_example(asked: Asked, image: Pixels | None) -> None:
    if image is not None:
        st.image(asked.dropped.getvalue() if asked.dropped else image, width=72)
        st.text(asked.texts.searching_with_image)
        return
    file = image_file(asked.library.collection, asked.state.like or "", TILE_EDGE)
    if file is not None:
        st.image(str(file), width=72)
    st.text(asked.texts.like_this)
    st.button(asked.texts.clear, on_click=session.clear_like, key="clear_like")


def _search(asked: Asked, query: Query, watch: timing.Stopwatch) -> Drawn:
    engine = asked.library.engine()
    result = engine.search(query)
    watch.lap("engine")
    if query.mode == "cl" and not len(engine.captions):
        st.warning(asked.texts.nothing_captioned)
    elif result.warnings:
        st.warning(asked.texts.unknown_words)
    tiles = grid.tiles_of_hits(asked.library.collection, result.hits, asked.reader)
    watch.lap("lookup")
    _draw(asked, tiles, result)
    watch.lap("render")
    facts = {
        "images": len(engine.images),
        "hits": len(result.hits),
        "mode": result.mode,
        "language": result.language,
    }
    timing.log(watch, result.timings_ms, facts)
    return tiles, {hit.image_id: hit for hit in result.hits}


def _draw(asked: Asked, tiles: tuple[grid.Tile, ...], result: SearchResult) -> None:
    texts = asked.texts
    if not tiles:
        st.info(f"{texts.no_hits} {texts.no_hits_advice}")
        return
    st.container(key="quiet_count").text(texts.hits_on_page.format(count=len(tiles)))
    grid.draw(tiles, texts, "grid", session.open_image)
    _more(asked, result.more)


def _browse(asked: Asked) -> Drawn:
    """Without words: the newest images that pass the filters."""
    asked.library.engine()  # says so if there is nothing yet
    wanted = asked.state.pages * PAGE_SIZE
    collection = asked.library.collection
    ids = newest(collection.catalog, asked.state.filters, wanted + 1)
    if not ids:
        st.info(f"{asked.texts.no_hits} {asked.texts.no_hits_advice}")
        return (), {}
    st.container(key="quiet_count").text(asked.texts.newest)
    tiles = grid.tiles_of_ids(collection, ids[:wanted], asked.reader)
    grid.draw(tiles, asked.texts, "grid", session.open_image)
    _more(asked, len(ids) > wanted)
    return tiles, {}


def _more(asked: Asked, there_is_more: bool) -> None:
    if there_is_more and asked.state.pages < MAX_PAGES:
        st.button(asked.texts.more, on_click=session.more, key="more", width="stretch")


def explain(texts: Texts, error: CapsearchError) -> None:
    """An error in the reader's language, and below it the plain words of the one who raised it."""
    name = next(name for kind, name in _NAMES if isinstance(error, kind))
    said: str = getattr(texts, name)
    if isinstance(error, IndexMissing | IndexEmpty):
        st.info(f"{said} {texts.no_index_advice}")
        st.code(_INDEX_COMMAND, language=None)
        return
    st.error(said)
    st.text(printable(str(error)))
