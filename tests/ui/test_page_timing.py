"""The page's own timing log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from capsearch.ui.web.settings import VARIABLE, Stopwatch, log


def test_one_json_line_a_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "times.jsonl"
    monkeypatch.setenv(VARIABLE, str(target))
    for _ in range(2):
        watch = Stopwatch()
        watch.lap("render")
        log(watch, {"encode": 1.5, "search": 2.0}, {"images": 7})
    first, second = map(json.loads, target.read_text(encoding="utf-8").splitlines())
    assert set(first) == set(second)
    assert (first["images"], first["encode_ms"], first["search_ms"]) == (7, 1.5, 2.0)
    assert first["total_ms"] >= first["page_render_ms"] >= 0


def test_without_a_file_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    log(Stopwatch(), {}, {"not": object()})  # has no JSON form


def test_laps_of_one_name_add_up() -> None:
    watch = Stopwatch()
    watch.lap("a")
    once = watch.laps_ms["a"]
    watch.lap("a")
    assert watch.laps_ms["a"] >= once
    assert list(watch.laps_ms) == ["a"]
