"""The search page. Streamlit runs this file from top to bottom at every click.

It draws the hits of a query as a grid, without a query the newest images, or an error message;
ranking, filtering and paging happen in the library.
"""

from __future__ import annotations

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
from capsearch.engine.query import Query
from capsearch.engine.records import Pixels, SearchResult
from capsearch.library import Library, Place
from capsearch.ui.values import printable
from capsearch.ui.web import access, controls, detail, grid, indexing, session, settings
from capsearch.ui.web.images import TILE_EDGE, image_file
from capsearch.ui.web.session import MAX_PAGES, PAGE_SIZE, PageState
from capsearch.ui.web.style import stylesheet
from capsearch.ui.web.texts import TEXTS, Texts

MAX_UPLOAD_PIXELS = 60_000_000
# (error, field of Texts that describes it); the first match counts.
_MESSAGES: tuple[tuple[type[CapsearchError], str], ...] = (
    (IndexMissing, "no_index"),
    (IndexEmpty, "index_empty"),
    (IndexProblem, "index_problem"),
    (InvalidImage, "bad_upload"),
    (InvalidQuery, "bad_query"),
    (CapsearchError, "problem"),
)
_INDEX_COMMAND = "capsearch index ~/Pictures"
Drawn: TypeAlias = "tuple[tuple[grid.Tile, ...], SearchResult | None]"


@dataclass(frozen=True, slots=True)
class Request:
    """What one run of the page has to show: the library, the page language, the query."""

    library: Library
    texts: Texts
    language: str  # of the page
    state: PageState
    upload: UploadedFile | None


def main() -> None:
    """Run the page once."""
    watch = settings.Stopwatch()
    st.set_page_config(page_title="capsearch", page_icon=":material/image_search:", layout="wide")
    if not access.admitted():
        return
    places = indexing.available_places()
    session.begin(tuple(places))
    language: str = st.session_state["interface"]
    texts, place = TEXTS[language], places[st.session_state["collection"]]
    st.html(stylesheet(texts.drop_image))
    library, problem = _opened(place)
    indexing.header(texts, tuple(places), place, library)
    upload = controls.search_box(texts)
    session.remember()
    cutoff = controls.toolbar(texts, None if library is None else library.facets())
    state = session.read()
    session.write_url(state, tuple(places))
    watch.lap("controls")
    result = None
    if library is not None:
        result = _show(Request(library, texts, language, state, upload), watch)
    elif problem is not None:
        _explain(texts, problem)
    unit, used = ("score", None) if result is None else (result.unit, result.min_score)
    controls.cutoff(cutoff, texts, unit, used)


def _opened(place: Place) -> tuple[Library | None, CapsearchError | None]:
    """The library at a place as it is now, or why there is none."""
    library = indexing.library_at(place)
    try:
        library.refresh()
    except CapsearchError as error:
        return None, error
    return library, None


def _show(request: Request, watch: settings.Stopwatch) -> SearchResult | None:
    """Draw the grid of hits, and the large view if an image is selected.

    Returns the result of the search, None where there was none.
    """
    try:
        query = _query(request)
        tiles, result = _browse(request) if query is None else _search(request, query, watch)
    except CapsearchError as error:
        _explain(request.texts, error)
        return None
    if request.state.selected is not None:
        order = [tile.record.id for tile in tiles]
        hits = {} if result is None else {hit.image_id: hit for hit in result}
        unit = "score" if result is None else result.unit
        view = detail.View(request.library, request.texts, request.language, hits, unit, order)
        detail.show(view)
    return result


def _query(request: Request) -> Query | None:
    """The query of this run; also draws the image that is searched with, if any."""
    image = _uploaded(request)
    if image is None and request.state.like is None:
        return request.state.query()
    with st.container(horizontal=True, vertical_alignment="center", key="with_image"):
        _show_query_image(request, image)
        weight = 0.5
        if request.state.text:
            weight = st.slider(request.texts.image_weight, 0.0, 1.0, 0.5, 0.05, width=320)
    return request.state.query(image, weight)


def _uploaded(request: Request) -> Pixels | None:
    """The uploaded image as pixels; decoded once and cached as long as it stays uploaded."""
    if request.upload is None:
        st.session_state.pop("upload", None)
        return None
    key = (request.upload.file_id, request.library.model.digest)
    if st.session_state.get("upload", (None,))[0] != key:
        pixels = request.library.decode(request.upload.getvalue(), MAX_UPLOAD_PIXELS)
        st.session_state["upload"] = (key, pixels)
    cached: Pixels = st.session_state["upload"][1]
    return cached


def _show_query_image(request: Request, image: Pixels | None) -> None:
    if image is not None:
        st.image(request.upload.getvalue() if request.upload else image, width=72)
        st.text(request.texts.searching_with_image)
        return
    file = image_file(request.library, request.state.like or "", TILE_EDGE)
    if file is not None:
        st.image(str(file), width=72)
    st.text(request.texts.like_this)
    st.button(request.texts.clear, on_click=session.clear_like, key="clear_like")


def _search(request: Request, query: Query, watch: settings.Stopwatch) -> Drawn:
    library = request.library
    result = library.search(query)
    watch.lap("engine")
    if query.mode == "cl" and not library.captioned():
        st.warning(request.texts.nothing_captioned)
    elif result.warnings:
        st.warning(request.texts.unknown_words)
    tiles = grid.tiles_of_hits(library, result, request.language)
    watch.lap("lookup")
    _draw(request, tiles, result)
    watch.lap("render")
    facts = {
        "images": len(library),
        "hits": len(result),
        "mode": result.mode,
        "language": result.language,
    }
    settings.log(watch, result.timings_ms, facts)
    return tiles, result


def _draw(request: Request, tiles: tuple[grid.Tile, ...], result: SearchResult) -> None:
    texts = request.texts
    if not tiles:
        st.info(f"{texts.no_hits} {texts.no_hits_advice}")
        if result.min_score:
            st.button(texts.show_nearest, on_click=session.show_nearest)
        return
    st.container(key="quiet_count").text(texts.hits_on_page.format(count=len(tiles)))
    grid.draw_grid(request.library, tiles, texts)
    _more(request, result.more)


def _browse(request: Request) -> Drawn:
    """Without a query: the newest images that pass the filters."""
    wanted = request.state.pages * PAGE_SIZE
    newest = request.library.newest(request.state.filters, wanted + 1)
    if not newest:
        st.info(f"{request.texts.no_hits} {request.texts.no_hits_advice}")
        return (), None
    st.container(key="quiet_count").text(request.texts.newest)
    tiles = grid.tiles_of_documents(request.library, newest[:wanted], request.language)
    grid.draw_grid(request.library, tiles, request.texts)
    _more(request, len(newest) > wanted)
    return tiles, None


def _more(request: Request, has_more: bool) -> None:
    if has_more and request.state.pages < MAX_PAGES:
        st.button(request.texts.more, on_click=session.more, key="more", width="stretch")


def _explain(texts: Texts, error: CapsearchError) -> None:
    """Show an error in the language of the page, and below it the error's own message."""
    name = next(name for kind, name in _MESSAGES if isinstance(error, kind))
    message: str = getattr(texts, name)
    if isinstance(error, IndexMissing | IndexEmpty):
        st.info(f"{message} {texts.no_index_advice}")
        st.code(_INDEX_COMMAND, language=None)
        return
    st.error(message)
    st.text(printable(str(error)))


if __name__ == "__main__":
    main()
