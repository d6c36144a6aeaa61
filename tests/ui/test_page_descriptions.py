"""Captions and tags on the page: the reader's language, who wrote them, and what people decide."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Caption, Filters
from capsearch.indexer.elastic.client import Address
from capsearch.indexer.elastic.copy import to_cluster
from capsearch.indexer.enrichment import enrich
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.ui.web.detail import author, in_language_first
from capsearch.ui.web.settings import BACKENDS_VARIABLE, INDEXING_VARIABLE
from capsearch.ui.web.texts import TEXTS

Opener = Callable[..., AppTest]
SOURCE = "model:toy-captions@1"


@pytest.fixture
def where(
    image_folder: Path, index_path: Path, describing_model: Model, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """An index whose images the toy model has described."""
    monkeypatch.setattr(registry, "load", lambda name=None: describing_model)
    with Collection.create(index_path, describing_model) as collection:
        index(collection, [image_folder])
        enrich(collection)
    return index_path


@pytest.fixture
def blue(where: Path, describing_model: Model) -> str:
    with Collection.open(where, describing_model) as collection:
        [found] = collection.backend.newest(Filters(tags=("blue",)), 9)
    return found.record.id


@pytest.fixture
def reviewer(monkeypatch: pytest.MonkeyPatch, run_page: Opener) -> Opener:
    """The page for whoever may index."""
    monkeypatch.setenv(INDEXING_VARIABLE, "1")
    return run_page


def captions_of(where: Path, model: Model, image_id: str) -> list[tuple[str, str]]:
    with Collection.open(where, model) as collection:
        found = collection.backend.lookup([image_id])[image_id].captions
    return [(one.text, one.source) for one in found]


def button(page: AppTest, label: str, at: int = 0) -> object:
    return [one for one in page.button if one.label == label][at]


def texts(page: AppTest) -> list[str]:
    return [element.value for element in page.text]


def test_the_readers_language_comes_first() -> None:
    captions = [Caption("a", "en", "iptc"), Caption("b", "ja", "iptc"), Caption("c", "ja", SOURCE)]
    assert [one.text for one in in_language_first(captions, "ja")] == ["b", "c", "a"]


def test_it_says_who_wrote_a_caption() -> None:
    words = TEXTS["en"]
    by = [author(words, Caption("x", "en", one, 0.734)) for one in (SOURCE, "hand", "iptc")]
    assert by == ["written by a model: toy-captions@1 · 73%", words.by_hand, "iptc"]


def test_the_large_view_shows_captions_and_tags_in_the_readers_language(
    where: Path, blue: str, run_page: Opener
) -> None:
    page = run_page(view=blue, hl="ja")
    shown = texts(page)
    assert shown.index("青の画像") < shown.index("a blue image")
    assert "日本語 · モデルが作成: toy-captions@1 · 100%" in shown
    assert [one.label for one in page.button if (one.key or "").startswith("tag_")] == ["青"]


def test_without_the_right_to_index_nothing_can_be_changed(
    where: Path, blue: str, run_page: Opener
) -> None:
    labels = {one.label for one in run_page(view=blue, hl="en").button}
    assert not labels & {"Accept", "Reject", "Save"}


def test_one_click_accepts_a_caption(
    where: Path, blue: str, reviewer: Opener, describing_model: Model
) -> None:
    page = reviewer(view=blue, hl="en")
    button(page, "Accept").click().run()
    assert ("a blue image", "hand") in captions_of(where, describing_model, blue)
    assert f"English · {TEXTS['en'].by_hand}" in texts(page)
    assert sum(one.label == "Accept" for one in page.button) == 2  # zh and ja are left


def test_one_click_rejects_a_caption(
    where: Path, blue: str, reviewer: Opener, describing_model: Model
) -> None:
    page = reviewer(view=blue, hl="en")
    button(page, "Reject").click().run()
    assert "a blue image" not in texts(page)
    assert len(captions_of(where, describing_model, blue)) == 2


def test_a_corrected_caption_is_a_persons(
    where: Path, blue: str, reviewer: Opener, describing_model: Model
) -> None:
    page = reviewer(view=blue, hl="en")
    [field] = [one for one in page.text_area if one.value == "a blue image"]
    field.set_value("the deep sea").run()
    button(page, "Save").click().run()
    assert ("the deep sea", "hand") in captions_of(where, describing_model, blue)
    assert "a blue image" not in texts(page)


def test_while_the_index_is_written_to_the_page_says_so(
    where: Path, blue: str, reviewer: Opener, describing_model: Model
) -> None:
    page = reviewer(view=blue, hl="en")
    with Collection.create(where, describing_model):
        button(page, "Accept").click().run()
    assert [one.value for one in page.warning] == [TEXTS["en"].already_indexing]
    assert ("a blue image", SOURCE) in captions_of(where, describing_model, blue)


def test_a_tag_is_a_filter_and_filters_have_counts_in_the_readers_language(
    where: Path, blue: str, run_page: Opener
) -> None:
    page = run_page(view=blue, hl="zh")
    [tag] = [one for one in page.button if (one.key or "").startswith("tag_")]
    assert tag.label == "蓝色"
    tag.click().run()
    assert page.query_params["tag"] == "blue" and "view" not in page.query_params
    chosen = page.multiselect(key="tags")
    assert chosen.value == ["blue"] and "蓝色 (1)" in chosen.options
    assert sum((one.key or "").startswith("open_grid") for one in page.button) == 1


@pytest.mark.elastic
def test_generated_captions_in_a_cluster_are_reviewed_there(
    where: Path, describing_model: Model, blue: str, cloud: str, reviewer: Opener,
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Collection.open(where, describing_model) as collection:
        to_cluster(collection, Address.parse(cloud), lambda *_: None, threading.Event(), replicas=0)
    monkeypatch.setenv(BACKENDS_VARIABLE, cloud)
    page = reviewer(view=blue, hl="en")
    assert "a blue image" in texts(page)
    button(page, "Accept").click().run()
    assert f"English · {TEXTS['en'].by_hand}" in texts(page)
    button(page, "Reject").click().run()
    assert "青の画像" not in texts(page) or "蓝色的图像" not in texts(page)
