"""Permalinks: what a URL stores, and which values it cannot set."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from capsearch.engine.fakes import colour_image
from capsearch.engine.records import Filters
from capsearch.ui.web.session import (
    MAX_PAGES,
    MAX_TEXT,
    PAGE_SIZE,
    PageState,
    from_params,
    to_params,
)

FULL = PageState(
    text="ノートパソコンの上の猫",
    like="a" * 32,
    language="ja",
    mode="cl",
    weight=0.25,
    min_score=0.3,
    filters=Filters(
        folders=("/images/trips", "/images/家族"),
        tags=("cat", "猫"),
        taken_from=date(2024, 1, 2),
        taken_until=date(2024, 12, 31),
        caption_language="zh",
        written_by="people",
    ),
    pages=3,
    selected="b" * 32,
    collection="holidays",
    interface="zh",
)


def as_lists(params: dict[str, str | list[str]]) -> dict[str, list[str]]:
    return {name: [value] if isinstance(value, str) else value for name, value in params.items()}


@pytest.mark.parametrize("state", [PageState(), FULL, PageState(text="a & b = c?#%")])
def test_a_permalink_restores_the_same_state(state: PageState) -> None:
    assert from_params(as_lists(to_params(state))) == state


@pytest.mark.parametrize(
    ("name", "mode"), [("image", "cm"), ("caption", "cl"), ("hybrid", "clm"), ("cl", "cl")]
)
def test_a_url_takes_both_names_of_a_mode(name: str, mode: str) -> None:
    assert from_params({"mode": [name]}).mode == mode


def test_a_limit_of_0_is_not_the_model_s_own_limit() -> None:
    shown = PageState(text="cat", min_score=0.0)
    assert to_params(shown)["min"] == "0"
    assert from_params(as_lists(to_params(shown))).min_score == 0.0
    assert from_params({"q": ["cat"]}).min_score is None


def test_the_default_state_has_no_url_parameters() -> None:
    assert to_params(PageState()) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("lang", "xx"),
        ("mode", "sql"),
        ("weight", "2"),
        ("weight", "nan"),
        ("min", "-1"),
        ("from", "yesterday"),
        ("until", "2024-13-01"),
        ("captions", "../"),
        ("by", "nobody"),
        ("pages", "many"),
        ("hl", "<b>"),
    ],
)
def test_invalid_url_parameters_are_ignored(name: str, value: str) -> None:
    assert from_params({name: [value]}) == PageState()


def test_pages_and_text_of_a_url_are_limited() -> None:
    state = from_params({"pages": ["1000000"], "q": ["x" * 10_000]})
    assert (state.pages, len(state.text)) == (MAX_PAGES, MAX_TEXT)


def test_without_text_and_image_there_is_no_query() -> None:
    assert PageState(text="  ", filters=Filters(tags=("cat",))).query() is None


def test_all_pages_so_far_are_one_query() -> None:
    query = PageState(text="cat", pages=3).query()
    assert query is not None
    assert (query.offset, query.limit) == (0, 3 * PAGE_SIZE)


def test_an_image_without_text_is_searched_in_mode_cm_whatever_is_chosen() -> None:
    query = PageState(like="a", mode="cl").query()
    assert query is not None
    assert query.mode == "cm"


def test_an_uploaded_image_replaces_one_of_the_collection() -> None:
    query = PageState(text="cat", like="a").query(colour_image("red"), image_weight=0.8)
    assert query is not None
    assert (query.like, query.image is None, query.image_weight) == (None, False, 0.8)


def test_another_page_or_large_view_is_still_the_same_search() -> None:
    assert FULL.same_search(replace(FULL, pages=9, selected=None))
    assert not FULL.same_search(replace(FULL, text="dog"))
