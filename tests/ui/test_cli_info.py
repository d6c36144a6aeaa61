"""`capsearch info` and `capsearch models`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from capsearch.encoders import models

Run = Callable[..., Any]


def test_info_counts_what_is_indexed(indexed: Path, run: Run, index_path: Path) -> None:
    facts = run("info", "--json").json
    assert facts["index"] == str(index_path)
    assert facts["images"] == 4
    assert facts["roots"] == [str(indexed)]


def test_info_prints_one_fact_a_line(indexed: Path, run: Run) -> None:
    ran = run("info")
    assert ran.code == 0
    lines = dict(line.split(maxsplit=1) for line in ran.out.splitlines())
    assert lines["images"] == "4"
    assert str(indexed) in lines["roots"]


def test_info_without_an_index_names_the_command_that_makes_one(run: Run) -> None:
    ran = run("info")
    assert (ran.code, ran.out) == (2, "")
    assert "capsearch index" in ran.err


def test_models_names_the_one_default(run: Run) -> None:
    listed = run("models", "--json").json
    [default] = [one for one in listed if one["default"]]
    assert default["name"] == models.DEFAULT_MODEL
    assert default["built_in"] is True
    assert set(default["languages"]) == {"en", "zh", "ja"}


def test_models_marks_the_default_with_a_star(run: Run) -> None:
    ran = run("models")
    assert f"{models.DEFAULT_MODEL} *" in ran.out
    assert "your own models" in ran.err
