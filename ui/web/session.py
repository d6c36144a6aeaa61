"""Keeps a PageState, the widgets that show it and the URL that stores it in step.

Widget values live in Streamlit's session state. A new visit fills them from the URL; every
run reads them back and writes the URL.

The state of the page as one value, and its form as URL parameters: the permalink.

A URL may come from anyone, so invalid parameters are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, Literal, TypeVar

import streamlit as st

from capsearch.engine.query import Query
from capsearch.engine.records import LANGUAGES, Filters, Mode, Pixels
from capsearch.ui.values import MODE_NAMES
from capsearch.ui.web.texts import language_of_locale

PAGE_SIZE = 24
MAX_PAGES = 40  # the most pages of hits that one URL can request
MAX_TEXT = 500  # characters of a query

Params = Mapping[str, Sequence[str]]
Value = TypeVar("Value")


@dataclass(frozen=True, slots=True)
class PageState:
    """Everything a permalink stores."""

    text: str = ""
    like: str | None = None  # an image of the collection to search with
    language: str | None = None  # of the text; None: detected by script
    mode: Mode = "clm"
    weight: float | None = None  # of captions in CLM; None: the model weighs all evidence
    min_score: float | None = None  # None: the model's cut-off; 0: everything
    filters: Filters = field(default_factory=Filters)
    pages: int = 1
    selected: str | None = None  # the image in the large view
    collection: str | None = None
    interface: str | None = None  # language of the page; None: the browser's

    def query(self, image: Pixels | None = None, image_weight: float = 0.5) -> Query | None:
        """The query for all pages so far; None when there is nothing to search for."""
        if not self.text.strip() and image is None and self.like is None:
            return None
        has_text = bool(self.text.strip())
        return Query(
            text=self.text,
            image=image,
            like=None if image is not None else self.like,
            language=self.language,
            mode=self.mode if has_text else "cm",
            weight=self.weight,
            image_weight=image_weight,
            filters=self.filters,
            min_score=self.min_score,
            limit=self.pages * PAGE_SIZE,
        )

    def same_search(self, other: PageState) -> bool:
        """True when at most the number of pages and the large view differ."""
        return replace(self, pages=1, selected=None) == replace(other, pages=1, selected=None)


def to_params(state: PageState) -> dict[str, str | list[str]]:
    """The URL's parameters; defaults are left out."""
    filters = state.filters
    params: dict[str, str | list[str] | None] = {
        "q": state.text,
        "like": state.like,
        "lang": state.language,
        "mode": None if state.mode == "clm" else state.mode,
        "weight": _number(state.weight),
        "min": _number(state.min_score),
        "tag": list(filters.tags),
        "folder": list(filters.folders),
        "from": filters.taken_from.isoformat() if filters.taken_from else None,
        "until": filters.taken_until.isoformat() if filters.taken_until else None,
        "captions": filters.caption_language,
        "by": filters.written_by,
        "pages": str(state.pages) if state.pages > 1 else None,
        "view": state.selected,
        "in": state.collection,
        "hl": state.interface,
    }
    return {name: value for name, value in params.items() if value}


def from_params(params: Params) -> PageState:
    """The state that a URL's parameters describe."""
    return PageState(
        text=_first(params, "q", _text) or "",
        like=_first(params, "like", str),
        language=_first(params, "lang", _one_of(LANGUAGES)),
        mode=_first(params, "mode", _mode) or "clm",
        weight=_first(params, "weight", _fraction),
        min_score=_first(params, "min", _fraction),
        filters=_filters_of(params),
        pages=_first(params, "pages", _pages) or 1,
        selected=_first(params, "view", str),
        collection=_first(params, "in", str),
        interface=_first(params, "hl", _one_of(LANGUAGES)),
    )


def _filters_of(params: Params) -> Filters:
    writers: tuple[Literal["people", "models"], ...] = ("people", "models")
    return Filters(
        folders=tuple(params.get("folder", ())),
        tags=tuple(params.get("tag", ())),
        taken_from=_first(params, "from", date.fromisoformat),
        taken_until=_first(params, "until", date.fromisoformat),
        caption_language=_first(params, "captions", _one_of(LANGUAGES)),
        written_by=_first(params, "by", _one_of(writers)),
    )


def _first(params: Params, name: str, parse: Callable[[str], Value]) -> Value | None:
    values = params.get(name) or ("",)
    try:
        return parse(values[0]) if values[0] else None
    except ValueError:
        return None


def _one_of(choices: Sequence[Value]) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        return choices[[str(choice) for choice in choices].index(text)]

    return parse


def _mode(text: str) -> Mode:
    if text not in MODE_NAMES:
        raise ValueError(text)
    return MODE_NAMES[text]


def _text(text: str) -> str:
    return text[:MAX_TEXT]


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:  # also refuses nan
        raise ValueError(text)
    return value


def _pages(text: str) -> int:
    return min(max(int(text), 1), MAX_PAGES)


def _number(value: float | None) -> str | None:
    return None if value is None else f"{value:g}"


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
