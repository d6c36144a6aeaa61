"""The page with a calibrated model: percent, evidence and the cut-off, without a browser."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Filters
from capsearch.indexer.sqlite.collection import Collection
from capsearch.ui.web.detail import signed
from capsearch.ui.web.texts import TEXTS

Opener = Callable[..., AppTest]


@pytest.fixture
def open_page(indexed: Path, calibrated: Model, run_page: Opener) -> Opener:
    """The page over the index of these tests."""
    return run_page


def texts(page: AppTest) -> list[str]:
    return [element.value for element in page.text]


def open_buttons(page: AppTest) -> int:
    return sum(button.label.startswith("Open image") for button in page.button)


def test_a_tile_shows_the_probability_in_percent(open_page: Opener) -> None:
    assert "99%   CM 1.000   CL 1.000" in texts(open_page(q="red car"))


def test_without_a_limit_the_model_s_cut_off_applies_and_the_slider_shows_it(
    open_page: Opener,
) -> None:
    page = open_page(q="red car")
    assert open_buttons(page) == 1
    assert page.checkbox(key="default_cutoff").value is True
    slider = page.slider(key="min_score")
    assert (slider.value, slider.disabled, slider.proto.format) == (0.5, True, "percent")
    assert "min" not in page.query_params


def test_a_limit_of_0_shows_everything_and_stays_in_the_url(open_page: Opener) -> None:
    page = open_page(q="red car", min="0")
    assert open_buttons(page) == 4
    assert page.checkbox(key="default_cutoff").value is False
    page.run()
    assert page.query_params["min"] == "0"
    assert open_buttons(page) == 4


def test_a_limit_is_a_probability(open_page: Opener) -> None:
    assert open_buttons(open_page(q="red car", min="0.99")) == 1
    assert open_buttons(open_page(q="red car", min="0.995")) == 0


def test_a_limit_set_by_hand_replaces_the_model_s(open_page: Opener) -> None:
    page = open_page(q="red car")
    page.checkbox(key="default_cutoff").uncheck().run()
    assert page.slider(key="min_score").value == 0.5  # starts where the model's was
    page.slider(key="min_score").set_value(0.01).run()
    assert open_buttons(page) == 4
    assert page.query_params["min"] == "0.01"
    page.checkbox(key="default_cutoff").check().run()
    assert open_buttons(page) == 1
    assert "min" not in page.query_params


def test_without_hits_a_button_shows_the_nearest_images(open_page: Opener) -> None:
    page = open_page(q="purple")
    assert "No image matches" in page.info[0].value
    nearest = next(one for one in page.button if one.label == TEXTS["en"].show_nearest)
    nearest.click().run()
    assert open_buttons(page) == 4
    assert page.query_params["min"] == "0"


def test_where_nothing_is_cut_off_no_button_offers_more(open_page: Opener) -> None:
    page = open_page(q="red car", min="0", tag="nobody-has-this")
    assert TEXTS["en"].show_nearest not in [one.label for one in page.button]


def test_a_weight_makes_plain_scores_and_the_slider_follows(open_page: Opener) -> None:
    page = open_page(q="red car", weight="0.4")
    assert page.slider(key="min_score").proto.format == "%.2f"
    assert open_buttons(page) == 4  # a cut-off is calibrated or there is none
    assert any(line.startswith("1.000   CM") for line in texts(page))


@pytest.mark.parametrize("language", TEXTS)
def test_the_large_view_lists_what_each_source_adds(
    open_page: Opener, index_path: Path, calibrated: Model, language: str
) -> None:
    with Collection.open(index_path, calibrated) as collection:
        records = [one.record for one in collection.backend.newest(Filters(), limit=9)]
    red = next(one for one in records if one.path.endswith("red.png"))
    page, words = open_page(q="red car", view=red.id, hl=language), TEXTS[language]
    assert words.evidence in [one.value for one in page.caption]
    expected = [
        (6, words.evidence_image),
        (3, words.evidence_caption),
        (1, words.evidence_words),
        (-5, words.evidence_prior),
    ]
    assert "\n".join(f"{signed(value)}  {label}" for value, label in expected) in texts(page)


def test_the_large_view_of_plain_scores_has_no_such_list(
    open_page: Opener, index_path: Path, calibrated: Model
) -> None:
    with Collection.open(index_path, calibrated) as collection:
        [document, *_] = collection.backend.newest(Filters(), limit=1)
    page = open_page(q="red car", weight="0.4", view=document.record.id)
    assert TEXTS["en"].evidence not in [one.value for one in page.caption]


def test_added_log_odds_are_as_wide_with_one_digit_as_with_two() -> None:
    assert [signed(one) for one in (6.04, -5.0, 12.3)] == ["+\u20076.0", "\u2212\u20075.0", "+12.3"]
