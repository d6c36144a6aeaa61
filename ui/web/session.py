"""The state of the page as one value, in step with the widgets that show it and the permalink.

Widget values live in Streamlit's session state. A new visit fills them from the URL; every run
reads them back and writes the URL. A URL may come from anyone, so invalid parameters are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Any, NamedTuple, TypeVar

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


class Param(NamedTuple):
    """A field as a parameter of the URL: its name, and how its text is read (ValueError: not)."""

    name: str
    parse: Callable[[str], Any] = str
    many: bool = False  # may be repeated; all texts are taken as they are


def _one_of(choices: Sequence[Value]) -> Callable[[str], Value]:
    def parse(text: str) -> Value:
        return choices[[str(choice) for choice in choices].index(text)]

    return parse


def _mode(text: str) -> Mode:
    if text not in MODE_NAMES:
        raise ValueError(text)
    return MODE_NAMES[text]


def _fraction(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:  # also refuses nan
        raise ValueError(text)
    return value


def _pages(text: str) -> int:
    return min(max(int(text), 1), MAX_PAGES)


# By the name of the field, which is the key of its widget, too.
STATE: Mapping[str, Param] = {
    "text": Param("q", lambda text: text[:MAX_TEXT]),
    "like": Param("like"),
    "language": Param("lang", _one_of(LANGUAGES)),
    "mode": Param("mode", _mode),
    "weight": Param("weight", _fraction),
    "min_score": Param("min", _fraction),
    "pages": Param("pages", _pages),
    "selected": Param("view"),
    "collection": Param("in"),
    "interface": Param("hl", _one_of(LANGUAGES)),
}
FILTERS: Mapping[str, Param] = {
    "tags": Param("tag", many=True),
    "folders": Param("folder", many=True),
    "taken_from": Param("from", date.fromisoformat),
    "taken_until": Param("until", date.fromisoformat),
    "caption_language": Param("captions", _one_of(LANGUAGES)),
    "written_by": Param("by", _one_of(("people", "models"))),
}


def to_params(state: PageState) -> dict[str, str | list[str]]:
    """The URL's parameters; defaults are left out."""
    return {
        param.name: _as_text(getattr(values, key))
        for values, default, table in (
            (state, PageState(), STATE),
            (state.filters, Filters(), FILTERS),
        )
        for key, param in table.items()
        if getattr(values, key) != getattr(default, key)
    }


def _as_text(value: object) -> str | list[str]:
    if isinstance(value, tuple):
        return list(value)
    return f"{value:g}" if isinstance(value, float) else str(value)  # dates: ISO 8601


def from_params(params: Params) -> PageState:
    """The state that a URL's parameters describe."""
    return PageState(**_parsed(params, STATE), filters=Filters(**_parsed(params, FILTERS)))


def _parsed(params: Params, table: Mapping[str, Param]) -> dict[str, Any]:
    """The fields that are there and valid."""
    parsed: dict[str, Any] = {}
    for key, param in table.items():
        texts = params.get(param.name, ())
        with suppress(ValueError):
            if param.many:
                parsed[key] = tuple(texts)
            elif texts and texts[0]:
                parsed[key] = param.parse(texts[0])
    return parsed


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
    filters = {key: getattr(state.filters, key) for key in FILTERS}
    st.session_state.update(
        {key: getattr(state, key) for key in STATE}
        | {key: list(value) if FILTERS[key].many else value for key, value in filters.items()}
        | {
            "tuned": state.weight is None,
            "weight": DEFAULT_WEIGHT if state.weight is None else state.weight,
            "default_cutoff": state.min_score is None,
            "min_score": state.min_score or 0.0,
            "interface": state.interface or language_of_locale(st.context.locale),
        }
    )
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
    filters: dict[str, Any] = {
        key: tuple(get(key) or ()) if param.many else get(key) for key, param in FILTERS.items()
    }
    return PageState(
        text=(get("text") or "").strip(),
        like=get("like"),
        language=get("language"),
        mode=get("mode") or "clm",
        weight=None if get("tuned") else get("weight"),
        min_score=None if get("default_cutoff") else get("min_score"),
        filters=Filters(**filters),
        pages=st.session_state["pages"],
        selected=get("selected"),
        collection=get("collection"),
        interface=_chosen_interface(),
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
        earlier = [other for other in st.session_state["history"] if other != text]
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
    others = tuple(other for other in chosen if other != image_id)
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
    st.session_state.update({key: [] if param.many else None for key, param in FILTERS.items()})
    st.session_state["default_cutoff"] = True
