"""Indexing from the page: in the background, one run at a time, failures reported."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import IndexBusy
from capsearch.indexer.sqlite.collection import Collection
from capsearch.library import Library
from capsearch.ui.web.indexing import Indexing

SOON_S = 60


def test_a_run_ends_with_a_summary(tmp_path: Path, image_folder: Path, toy_models: Model) -> None:
    indexing = Indexing()
    indexing.start(tmp_path / "index", [image_folder]).join(SOON_S)
    status = indexing.status
    assert (status.state, status.number, status.error) == ("done", 1, None)
    assert status.summary is not None
    assert status.summary.added == 4
    assert status.progress is not None


def test_without_folders_the_known_ones_are_updated(
    tmp_path: Path, image_folder: Path, toy_models: Model
) -> None:
    indexing = Indexing()
    indexing.start(tmp_path / "index", [image_folder]).join(SOON_S)
    indexing.start(tmp_path / "index", []).join(SOON_S)
    assert indexing.status.summary is not None
    assert indexing.status.summary.unchanged == 4
    assert indexing.status.number == 2


def test_only_one_run_at_a_time_and_it_can_be_stopped(
    tmp_path: Path, image_folder: Path, toy_models: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped = threading.Event()

    def wait(self: Library, roots: object, *, progress: object, stop: threading.Event) -> None:
        if stop.wait(SOON_S):
            stopped.set()

    monkeypatch.setattr(Library, "index", wait)
    indexing = Indexing()
    worker = indexing.start(tmp_path / "index", [image_folder])
    with pytest.raises(IndexBusy):
        indexing.start(tmp_path / "other", [image_folder])
    indexing.stop()
    worker.join(SOON_S)
    assert stopped.is_set()
    assert indexing.status.state == "done"


def test_a_failure_is_reported_and_the_next_run_can_start(
    tmp_path: Path, image_folder: Path, toy_models: Model
) -> None:
    indexing = Indexing()
    with Collection.create(tmp_path / "index", toy_models):
        indexing.start(tmp_path / "index", [image_folder]).join(SOON_S)
    assert indexing.status.state == "failed"
    assert "another capsearch is writing" in (indexing.status.error or "")
    indexing.start(tmp_path / "index", [image_folder]).join(SOON_S)
    assert indexing.status.state == "done"
    assert indexing.status.error is None


def test_an_unexpected_error_ends_the_run(
    tmp_path: Path, image_folder: Path, toy_models: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*given: object, **named: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(Library, "index", fail)
    indexing = Indexing()
    indexing.start(tmp_path / "index", [image_folder]).join(SOON_S)
    assert (indexing.status.state, indexing.status.error) == ("failed", "ZeroDivisionError: a bug")
