"""The state of the page as one value, and its form as URL parameters: the permalink.

A URL may come from anyone, so invalid parameters are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import Literal, TypeVar

from capsearch.engine.query import Query
from capsearch.engine.records import LANGUAGES, Filters, Mode, Pixels
from capsearch.ui.modes import MODE_NAMES

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
        filters=_filters(params),
        pages=_first(params, "pages", _pages) or 1,
        selected=_first(params, "view", str),
        collection=_first(params, "in", str),
        interface=_first(params, "hl", _one_of(LANGUAGES)),
    )


def _filters(params: Params) -> Filters:
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
