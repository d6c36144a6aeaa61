"""Permalinks: what a URL keeps, and what it cannot make the page do."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import pytest

from capsearch.engine.fakes import colour_image
from capsearch.engine.records import Filters
from capsearch.ui.web.state import MAX_PAGES, MAX_TEXT, PAGE_SIZE, PageState, from_params, to_params

FULL = PageState(
    text="ノートパソコンの上の猫",
    like="a" * 32,
    language="ja",
    mode="cl",
    weight=0.25,
    min_score=0.3,
    filters=Filters(
        folders=("/photos/trips", "/photos/家族"),
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
def test_a_permalink_brings_back_the_same_page(state: PageState) -> None:
    assert from_params(as_lists(to_params(state))) == state


def test_a_page_as_it_opens_has_a_bare_url() -> None:
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
def test_what_makes_no_sense_in_a_url_is_ignored(name: str, value: str) -> None:
    assert from_params({name: [value]}) == PageState()


def test_a_url_cannot_ask_for_endless_pages_or_text() -> None:
    state = from_params({"pages": ["1000000"], "q": ["x" * 10_000]})
    assert (state.pages, len(state.text)) == (MAX_PAGES, MAX_TEXT)


def test_nothing_to_search_for_is_no_query() -> None:
    assert PageState(text="  ", filters=Filters(tags=("cat",))).query() is None


def test_all_pages_so_far_are_one_query_so_that_none_can_repeat_or_drop_a_hit() -> None:
    query = PageState(text="cat", pages=3).query()
    assert query is not None
    assert (query.offset, query.limit) == (0, 3 * PAGE_SIZE)


def test_a_image_without_words_is_compared_with_images_whatever_the_mode() -> None:
    query = PageState(like="a", mode="cl").query()
    assert query is not None
    assert query.mode == "cm"


def test_a_dropped_image_goes_before_one_of_the_collection() -> None:
    query = PageState(text="cat", like="a").query(colour_image("red"), image_weight=0.8)
    assert query is not None
    assert (query.like, query.image is None, query.image_weight) == (None, False, 0.8)


def test_depth_and_large_view_belong_to_the_same_search() -> None:
    assert FULL.same_search(replace(FULL, pages=9, selected=None))
    assert not FULL.same_search(replace(FULL, text="dog"))
