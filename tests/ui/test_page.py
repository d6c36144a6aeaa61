"""The whole page without a browser: what it shows for a permalink."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Filters
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import CATALOG, Collection
from capsearch.indexer.sqlite.schema import SCHEMA
from capsearch.ui.web.settings import INDEXES_VARIABLE

Opener = Callable[..., AppTest]


@pytest.fixture
def open_page(toy_models: Model, index_path: Path, run_page: Opener) -> Opener:
    """The page over the index of these tests."""
    return run_page


@pytest.fixture
def filled(image_folder: Path, index_path: Path, toy_models: Model) -> Path:
    """An index of the four images, one with hostile captions."""
    (image_folder / "red.txt").write_text(
        "<b>:red[hi]</b> a red car\n一辆红色的车\n赤い車\n", encoding="utf-8"
    )
    with Collection.create(index_path, toy_models) as collection:
        index(collection, [image_folder])
    return index_path


def texts(page: AppTest) -> list[str]:
    return [element.value for element in page.text]


def open_buttons(page: AppTest) -> int:
    return sum(button.label.startswith("Open image") for button in page.button)


@pytest.mark.parametrize("query", ["a red car", "红色的车", "赤い車"])
def test_every_language_finds_the_image_and_shows_caption_and_scores(
    open_page: Opener, filled: Path, query: str
) -> None:
    lines = texts(open_page(q=query, hl="zh"))
    first = lines.index("一辆红色的车")
    assert lines[first + 1].startswith(("0.", "1.")) and "CM 1.000" in lines[first + 1]


def test_captions_and_names_never_become_markdown(open_page: Opener, filled: Path) -> None:
    page = open_page(q="red", hl="en")
    marked = [*page.markdown, *page.caption, *page.info, *page.warning, *page.error]
    shown = [element.value for element in marked] + [button.label for button in page.button]
    assert "<b>:red[hi]</b> a red car" in texts(page)
    assert not [one for one in shown if "hi" in one and ":red" in one]


def test_without_a_query_the_newest_images_are_shown(open_page: Opener, filled: Path) -> None:
    page = open_page()
    assert "Newest images" in texts(page)
    assert open_buttons(page) == 4


def test_a_minimum_score_leaves_out_lower_hits(open_page: Opener, filled: Path) -> None:
    assert open_buttons(open_page(q="red", mode="cm", min="0.9")) == 1


def test_no_hit_shows_advice(open_page: Opener, filled: Path) -> None:
    page = open_page(q="red", tag="nobody-has-this")
    assert "fewer filters" in page.info[0].value


def test_a_text_without_known_words_is_a_warning(open_page: Opener, filled: Path) -> None:
    assert "knows none of these words" in open_page(q="xyzzy").warning[0].value


def test_caption_search_without_any_caption_is_a_warning(
    open_page: Opener, image_folder: Path, index_path: Path, toy_models: Model
) -> None:
    with Collection.create(index_path, toy_models) as collection:
        index(collection, [image_folder])
    assert "No image here has a caption" in open_page(q="red", mode="cl").warning[0].value


def test_a_new_search_starts_at_its_first_page_and_the_old_one_is_remembered(
    open_page: Opener, filled: Path
) -> None:
    page = open_page(q="red", pages="3")
    page.text_input(key="text").set_value("blue").run()
    assert page.session_state["pages"] == 1
    assert page.query_params["q"] == "blue"
    assert page.selectbox(key="recent").options == ["red"]


def test_searching_with_an_image_of_the_collection_finds_it_first(
    open_page: Opener, filled: Path
) -> None:
    with Collection.open(filled) as collection:
        records = [one.record for one in collection.backend.newest(Filters(), limit=9)]
    red = next(record for record in records if record.path.endswith("red.png"))
    page = open_page(like=red.id)
    assert "Images like this one" in texts(page)
    assert any(line.startswith("1.000") for line in texts(page))


def test_searching_with_an_unknown_image_is_an_error_message(
    open_page: Opener, filled: Path
) -> None:
    page = open_page(like="../../etc/passwd")
    assert page.error[0].value == "This search cannot be done."
    assert open_buttons(page) == 0


def test_without_an_index_the_page_shows_how_to_make_one(open_page: Opener) -> None:
    page = open_page()
    assert "Nothing is indexed here yet" in page.info[0].value
    assert page.code[0].value == "capsearch index ~/Pictures"


def test_an_index_of_a_newer_capsearch_is_an_error_message(open_page: Opener, filled: Path) -> None:
    with sqlite3.connect(filled / CATALOG) as connection:
        connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    page = open_page(q="red")
    assert page.error[0].value == "This collection cannot be opened."
    assert any("upgrade" in line for line in texts(page))


def test_several_collections_can_be_chosen_by_name_only(
    open_page: Opener, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(INDEXES_VARIABLE, os.pathsep.join([str(tmp_path / "new"), str(filled)]))
    assert open_page().selectbox(key="collection").options == ["new", "index"]
    assert open_buttons(open_page(**{"in": "index"})) == 4
    assert open_page(**{"in": str(filled)}).session_state["collection"] == "new"


def test_images_indexed_meanwhile_are_found_at_the_next_click(
    open_page: Opener,
    filled: Path,
    image_folder: Path,
    toy_models: Model,
    image: Callable[..., Path],
) -> None:
    page = open_page(q="purple")
    image(image_folder / "new.png", "purple")
    with Collection.create(filled, toy_models) as collection:
        index(collection, [image_folder])
    assert open_buttons(page.run()) == 5


def test_an_index_rebuilt_with_another_model_is_opened_again(
    open_page: Opener,
    filled: Path,
    image_folder: Path,
    make_model: Callable[..., Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = open_page(q="red")
    other = make_model(turn=1)
    with Collection.create(filled, other) as collection:
        index(collection, [image_folder], IndexOptions(rebuild=True))
    monkeypatch.setattr(registry, "load", lambda name=None: other)
    page.run()
    assert not page.error
    assert open_buttons(page) == 4
