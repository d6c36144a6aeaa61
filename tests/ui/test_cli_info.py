"""`capsearch info` and `capsearch models`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsearch.encoders.models import image, registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import UnknownModel
from capsearch.indexer.sqlite import nearest

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


def test_info_shows_the_devices(indexed: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "encoding cpu, search cpu" in run("info").out
    monkeypatch.setattr(nearest, "gpus", lambda: 2)
    monkeypatch.setattr(image, "device", lambda: "cuda")
    assert run("info", "--json").json["devices"] == {"encoding": "cuda", "search": "2 GPU"}


def test_info_without_an_index_names_the_command_that_makes_one(run: Run) -> None:
    ran = run("info")
    assert (ran.code, ran.out) == (2, "")
    assert "capsearch index" in ran.err


def test_info_without_the_model_shows_everything_else_and_names_it(
    indexed: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`info` failed when the model was missing."""

    def load(name: str | None = None) -> None:
        raise UnknownModel(f"no text model called '{name}'; there is: trio")

    monkeypatch.setattr(registry, "load", load)
    ran = run("info", "--json")
    assert ran.code == 0
    assert (ran.json["images"], ran.json["model"]) == (4, "fake")
    assert "fake@digest-of-toy-0, is missing: no text model called" in ran.json["model_problem"]
    assert "capsearch index --rebuild --model NAME" in run("info").err


def test_info_names_a_model_that_has_changed(
    indexed: Path, run: Run, monkeypatch: pytest.MonkeyPatch, make_model: Callable[..., Model]
) -> None:
    monkeypatch.setattr(registry, "load", lambda name=None: make_model(turn=1))
    problem = run("info", "--json").json["model_problem"]
    assert "fake@digest-of-toy-0, but fake is now @digest-of-toy-1" in problem


def test_info_has_no_warning_if_the_model_is_there(indexed: Path, run: Run) -> None:
    assert run("info", "--json").json["model_problem"] is None
    assert run("info").err == ""


def test_models_names_the_one_default(run: Run) -> None:
    listed = run("models", "--json").json
    [default] = [one for one in listed if one["default"]]
    assert default["name"] == registry.DEFAULT_MODEL
    assert default["built_in"] is True
    assert set(default["languages"]) == {"en", "zh", "ja"}


def test_models_marks_the_default_with_a_star(run: Run) -> None:
    ran = run("models")
    assert f"{registry.DEFAULT_MODEL} *" in ran.out
    assert "your own models" in ran.err
