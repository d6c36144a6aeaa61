"""`make demo`, with the built-in models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsearch.engine.errors import DataProblem
from capsearch.ui.cli import demo


def test_every_query_of_the_demo_finds_its_image_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert demo.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "3 of 3 queries found their image first" in shown
    for search in demo.SEARCHES:
        assert search.text in shown


def test_the_demo_fails_when_a_query_finds_something_else(
    tmp_path: Path, run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(demo, "SEARCHES", (demo.Search("a green cat", "no such image.png"),))
    assert demo.main([str(tmp_path)]) == 1


def test_the_images_are_copied_from_the_installed_packages(tmp_path: Path) -> None:
    demo.collect(tmp_path)
    names = {name for names in demo.IMAGES.values() for name in names}
    assert {file.name for file in tmp_path.iterdir()} == names


def test_a_missing_package_is_named_with_its_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "find_spec", lambda name: None)
    with pytest.raises(DataProblem, match="pip install scikit-image"):
        demo.collect(tmp_path)
    assert demo.main([str(tmp_path)]) == 2
    assert "pip install scikit-image" in capsys.readouterr().err
