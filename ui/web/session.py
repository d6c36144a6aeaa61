"""Keeps a PageState, the widgets that show it and the URL that stores it in step.

Widget values live in Streamlit's session state. A new visit fills them from the URL; every
run reads them back and writes the URL.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from capsearch.engine.records import Filters
from capsearch.ui.texts import language_of_locale
from capsearch.ui.web.state import PageState, from_params, to_params

MAX_HISTORY = 20
DEFAULT_WEIGHT = 0.5  # initial position of the slider


def begin(collections: Sequence[str]) -> None:
    """Set the widgets from the URL: on a new visit, and after the browser's back button.

    Going back shows as a URL that this session did not write while no widget has changed; a
    changed widget may still arrive with the previous URL. A collection that is not in
    `collections` is ignored.
    """
    new_visit = "text" not in st.session_state
    if new_visit:
        st.session_state.update(history=(), uploads=0, chosen=())
    elif _url() == st.session_state["url"] or _current() != st.session_state["shown"]:
        return
    state = from_params(_url())
    known = state.collection if state.collection in collections else None
    show(replace(state, collection=known or collections[0]))
    st.session_state["url"] = _url()


def show(state: PageState) -> None:
    """Set all widgets. Streamlit allows it only before they are drawn or in a callback."""
    filters = state.filters
    values: dict[str, Any] = {
        "text": state.text,
        "like": state.like,
        "language": state.language,
        "mode": state.mode,
        "tuned": state.weight is None,
        "weight": DEFAULT_WEIGHT if state.weight is None else state.weight,
        "default_cutoff": state.min_score is None,
        "min_score": state.min_score or 0.0,
        "tags": list(filters.tags),
        "folders": list(filters.folders),
        "taken_from": filters.taken_from,
        "taken_until": filters.taken_until,
        "caption_language": filters.caption_language,
        "written_by": filters.written_by,
        "pages": state.pages,
        "selected": state.selected,
        "interface": state.interface or language_of_locale(st.context.locale),
    }
    st.session_state.update(values, collection=state.collection)
    st.session_state["shown"] = _current()  # not `state`: a URL may name the browser's language


def read() -> PageState:
    """The state of the widgets; a new search starts at its first page without a large view."""
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
        min_score=None if get("default_cutoff") else get("min_score"),
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
    """The page language for the URL; None if it is the browser's own language."""
    chosen: str = st.session_state["interface"]
    return None if chosen == language_of_locale(st.context.locale) else chosen


def write_url(state: PageState, collections: Sequence[str]) -> None:
    """Write the state into the browser's address bar."""
    if state.collection == collections[0]:
        state = replace(state, collection=None)
    params = to_params(state)
    wanted = {name: [value] if isinstance(value, str) else value for name, value in params.items()}
    if _url() != wanted:
        st.query_params.from_dict(params)
    st.session_state["url"] = wanted


def write_view(image_id: str) -> None:
    """Add the image in the large view to the URL; the dialog reruns without the page."""
    st.query_params["view"] = image_id
    st.session_state["url"] = _url()
    st.session_state["shown"] = replace(st.session_state["shown"], selected=image_id)


def _url() -> dict[str, list[str]]:
    return {name: st.query_params.get_all(name) for name in st.query_params}


def remember() -> None:
    """Put the text of the search box on top of this session's history."""
    text = (st.session_state["text"] or "").strip()
    if text:
        earlier = [one for one in st.session_state["history"] if one != text]
        st.session_state["history"] = (text, *earlier)[:MAX_HISTORY]


# Callbacks


def open_image(image_id: str) -> None:
    """Open an image in the large view."""
    st.session_state["selected"] = image_id


def close_image() -> None:
    """Close the large view."""
    st.session_state["selected"] = None


def toggle_chosen(image_id: str) -> None:
    """Select an image, or no longer."""
    chosen: tuple[str, ...] = st.session_state["chosen"]
    others = tuple(one for one in chosen if one != image_id)
    st.session_state["chosen"] = others if image_id in chosen else (*chosen, image_id)


def choose_all(image_ids: Sequence[str]) -> None:
    """Select these images besides those selected before."""
    st.session_state["chosen"] = tuple(dict.fromkeys((*st.session_state["chosen"], *image_ids)))


def clear_chosen() -> None:
    """Select no image."""
    st.session_state["chosen"] = ()


def more() -> None:
    """Show one more page of hits."""
    st.session_state["pages"] += 1


def show_nearest() -> None:
    """Leave out nothing, however low its score."""
    st.session_state.update(default_cutoff=False, min_score=0.0)


def search_like(image_id: str) -> None:
    """Search with an image of the collection instead of text."""
    st.session_state.update(text="", like=image_id, selected=None)
    forget_upload()


def search_tag(tag: str) -> None:
    """Leave the large view for the images that also have a tag."""
    tags = dict.fromkeys([*st.session_state["tags"], tag])
    st.session_state.update(tags=list(tags), selected=None)


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
    """Remove all filters and return to the model's cut-off."""
    st.session_state.update(
        tags=[], folders=[], taken_from=None, taken_until=None, caption_language=None,
        written_by=None, default_cutoff=True,
    )  # fmt: skip
