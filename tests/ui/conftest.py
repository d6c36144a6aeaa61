"""An index of coloured images made through the command line, with toy encoders."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from capsearch.encoders import models
from capsearch.encoders.models import Model
from capsearch.ui.cli import main


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@pytest.fixture
def toy_models(monkeypatch: pytest.MonkeyPatch, fake_model: Model) -> Model:
    """Makes every model name load the toy model."""
    monkeypatch.setattr(models, "load", lambda name=None: fake_model)
    return fake_model


@pytest.fixture
def index_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default index of these tests; it does not exist yet."""
    path = tmp_path / "index"
    monkeypatch.setenv("CAPSEARCH_INDEX", str(path))
    return path


@pytest.fixture
def run(
    toy_models: Model, index_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Run a command in this process: run("query", "red")."""

    def run_command(*arguments: str | Path) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def indexed(image_folder: Path, run: Callable[..., Ran]) -> Path:
    """The folder of images, after `capsearch index`."""
    (image_folder / "red.txt").write_text("a red car\n一辆红色的车\n", encoding="utf-8")
    ran = run("index", image_folder)
    assert ran.code == 0, ran.err
    return image_folder
