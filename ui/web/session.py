"""The bridge between a PageState, the widgets that show it, and the URL that keeps it.

Widgets live in Streamlit's session state under KEYS; a new visit fills them from the URL,
every run reads them back and writes the URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from capsearch.engine.records import Filters
from capsearch.ui.texts import reader_language
from capsearch.ui.web.state import PageState, from_params, to_params

MAX_HISTORY = 20
DEFAULT_WEIGHT = 0.5  # where the slider stands before anyone has touched it


def begin(collections: Sequence[str]) -> None:
    """Set the widgets as the URL says: on a new visit, or when the reader went back in history.

    Going back shows as a URL we did not write while no widget was touched: a touched widget
    may come with the URL of a moment ago. A collection that is not offered is ignored.
    """
    new_visit = "text" not in st.session_state
    if new_visit:
        st.session_state.update(history=(), uploads=0)
    elif _url() == st.session_state["url"] or _current() != st.session_state["shown"]:
        return
    state = from_params(_url())
    known = state.collection if state.collection in collections else None
    show(replace(state, collection=known or collections[0]))
    st.session_state["url"] = _url()


def show(state: PageState) -> None:
    """Set all widgets; only before they are drawn: at the start of a run or in a callback."""
    filters = state.filters
    values: dict[str, Any] = {
        "text": state.text,
        "like": state.like,
        "language": state.language,
        "mode": state.mode,
        "tuned": state.weight is None,
        "weight": DEFAULT_WEIGHT if state.weight is None else state.weight,
        "min_score": state.min_score or 0.0,
        "tags": list(filters.tags),
        "folders": list(filters.folders),
        "taken_from": filters.taken_from,
        "taken_until": filters.taken_until,
        "caption_language": filters.caption_language,
        "written_by": filters.written_by,
        "pages": state.pages,
        "selected": state.selected,
        "interface": state.interface or reader_language(st.context.locale),
    }
    st.session_state.update(values, collection=state.collection)
    st.session_state["shown"] = state


def read() -> PageState:
    """What the widgets say now; a new search starts at its first page with no large view."""
    state = _current()
    before: PageState = st.session_state["shown"]
    if not state.same_search(before) and state.pages == before.pages:
        state = replace(state, pages=1, selected=None)
        st.session_state.update(pages=1, selected=None)
    st.session_state["shown"] = state
    return state


def _current() -> PageState:
    get = st.session_state.get
    return PageState(
        text=(get("text") or "").strip(),
        like=get("like"),
        language=get("language"),
        mode=get("mode") or "clm",
        weight=None if get("tuned") else get("weight"),
        min_score=get("min_score") or None,
        filters=_filters(),
        pages=st.session_state["pages"],
        selected=get("selected"),
        collection=get("collection"),
        interface=_chosen_interface(),
    )


def _filters() -> Filters:
    get = st.session_state.get
    return Filters(
        folders=tuple(get("folders") or ()),
        tags=tuple(get("tags") or ()),
        taken_from=get("taken_from"),
        taken_until=get("taken_until"),
        caption_language=get("caption_language"),
        written_by=get("written_by"),
    )


def _chosen_interface() -> str | None:
    """Kept in the URL only if it is not what the reader's browser asks for anyway."""
    chosen: str = st.session_state["interface"]
    return None if chosen == reader_language(st.context.locale) else chosen


def write_url(state: PageState, collections: Sequence[str]) -> None:
    """Make the address bar say what the page shows."""
    if state.collection == collections[0]:
        state = replace(state, collection=None)
    params = to_params(state)
    wanted = {name: [value] if isinstance(value, str) else value for name, value in params.items()}
    if _url() != wanted:
        st.query_params.from_dict(params)
    st.session_state["url"] = wanted


def write_view(image_id: str) -> None:
    """Make the address bar name the image in the large view, which draws itself alone."""
    st.query_params["view"] = image_id
    st.session_state["url"] = _url()
    st.session_state["shown"] = replace(st.session_state["shown"], selected=image_id)


def _url() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def remember() -> None:
    """Put the words in the box on top of this visit's history."""
    text = (st.session_state["text"] or "").strip()
    if text:
        earlier = [one for one in st.session_state["history"] if one != text]
        st.session_state["history"] = (text, *earlier)[:MAX_HISTORY]


# Callbacks


def open_image(image_id: str) -> None:
    """Show an image in the large view."""
    st.session_state["selected"] = image_id


def close_image() -> None:
    """Back to the grid."""
    st.session_state["selected"] = None


def more() -> None:
    """One page further."""
    st.session_state["pages"] += 1


def search_like(image_id: str) -> None:
    """Search with an image of the collection instead of words."""
    st.session_state.update(text="", like=image_id, selected=None)
    forget_upload()


def clear_like() -> None:
    """Stop searching with an image of the collection."""
    st.session_state["like"] = None


def forget_upload() -> None:
    """Empty the drop zone: a new key makes a new widget."""
    st.session_state["uploads"] += 1


def repeat() -> None:
    """Search again for the chosen line of the history."""
    chosen = st.session_state.get("recent")
    if chosen:
        st.session_state["text"] = chosen
        st.session_state["recent"] = None


def reset_filters() -> None:
    """Let everything through."""
    st.session_state.update(
        tags=[], folders=[], taken_from=None, taken_until=None, caption_language=None,
        written_by=None, min_score=0.0,
    )  # fmt: skip
