"""The page over a collection in a cluster: searched, shown, and indexed into."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from capsearch.encoders.models.registry import Model
from capsearch.ui.web.indexing import Indexing
from capsearch.ui.web.settings import BACKENDS_VARIABLE

Opener = Callable[..., AppTest]


def open_buttons(page: AppTest) -> int:
    return sum(button.label.startswith("Open image") for button in page.button)


@pytest.mark.elastic
def test_a_collection_in_a_cluster_is_indexed_from_the_page_and_shown(
    cloud: str,
    image_folder: Path,
    toy_models: Model,
    run_page: Opener,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv(BACKENDS_VARIABLE, cloud)
    assert open_buttons(run_page()) == 0  # there is no collection yet
    indexing = Indexing()
    indexing.start(cloud, [image_folder]).join(120)
    assert indexing.status.error is None
    page = run_page(q="red")
    assert page.selectbox(key="collection").options == [cloud.rpartition("/")[2]]
    assert open_buttons(page) == 4
    assert list((tmp_path / "cache").rglob("*.jpg"))  # thumbnails
    assert any(str(image_folder) in element.value for element in page.text)


def test_an_address_without_an_answer_is_shown_as_one_line(
    toy_models: Model, run_page: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("elasticsearch")
    monkeypatch.setenv(BACKENDS_VARIABLE, "https://127.0.0.1:1/images")
    page = run_page(q="red")
    assert any("nothing answers" in element.value for element in page.text)
