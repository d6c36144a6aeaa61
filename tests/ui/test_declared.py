"""Options that a dataclass declares, and the values that a command gets."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import click
import pytest
from click.testing import CliRunner, Result

from capsearch.encoders.settings import BackboneRun, option
from capsearch.engine.errors import TrainingProblem
from capsearch.ui.cli.declared import declared_by


@dataclass(frozen=True, kw_only=True)
class Base:
    data: tuple[Path, ...] = option("Folders.", exists="folder")
    batch_size: int = option("Images.", 8, least=2)
    lr: float = option("The rate.", 0.1)


@dataclass(frozen=True, kw_only=True)
class Settings(Base):
    lr: float = option("Another default.", 0.5)
    from_: str | None = option("A model.", None, metavar="NAME")
    flip: bool = option("Do not flip.", True)
    resume: bool = option("Go on.", False)
    pooling: Literal["mean", "last"] = option("How to pool.", "mean")
    output: Path | None = option("A folder.", None)
    plot: Path | None = option("A picture.", None, exists="new file")


def run(*arguments: str) -> tuple[list[Settings], Result]:
    """What a command got, and what it printed."""
    given = []

    @click.command()
    @declared_by(Settings)
    @click.option("--json", "as_json", is_flag=True)
    def command(settings: Settings, as_json: bool) -> None:
        given.append(settings)

    return given, CliRunner().invoke(command, arguments)


def test_values_reach_the_dataclass_by_the_names_of_its_fields(tmp_path: Path) -> None:
    (settings,), _ = run("--data", str(tmp_path), "--data", "/", "--batch-size", "3", "--json")
    assert settings == Settings(data=(tmp_path, Path("/")), batch_size=3)
    assert (settings.lr, settings.from_, settings.output) == (0.5, None, None)


def test_a_trailing_underscore_is_left_out_and_what_is_on_can_be_turned_off() -> None:
    (settings,), _ = run("--data", "/", "--from", "trio", "--no-flip", "--resume")
    assert (settings.from_, settings.flip, settings.resume) == ("trio", False, True)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ((), "Missing option '--data'"),
        (("--data", "/nowhere"), "does not exist"),
        (("--data", "/", "--batch-size", "1"), "1 is not in the range x>=2"),
        (("--data", "/", "--lr", "fast"), "'fast' is not a valid float"),
        (("--data", "/", "--pooling", "max"), "'max' is not one of 'mean', 'last'"),
    ],
)
def test_a_value_that_is_not_allowed_is_refused(arguments: tuple[str, ...], problem: str) -> None:
    given, result = run(*arguments)
    assert given == []
    assert result.exit_code == 2
    assert problem in result.output


def test_help_has_the_declared_text_and_default() -> None:
    _, result = run("--help")
    text = " ".join(result.output.split())
    assert "--batch-size INTEGER RANGE Images. [default: 8; x>=2]" in text
    assert "--lr FLOAT Another default. [default: 0.5]" in text
    assert "--from NAME A model. --no-flip Do not flip. --resume Go on." in text
    assert "--output DIR A folder." in text


def test_a_backbone_and_its_search_model_have_two_names() -> None:
    assert list(BackboneRun(data=(), name="x").written) == ["x", "x-text"]
    with pytest.raises(TrainingProblem, match="need two names"):
        BackboneRun(data=(), name="x", text_name="x")


def test_a_new_file_is_not_one_that_exists(tmp_path: Path) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(b"a photograph")
    given, ran = run("--data", "/", "--plot", str(photo))
    assert (given, ran.exit_code) == ([], 2)
    (settings,), _ = run("--data", "/", "--plot", str(tmp_path / "new.png"))
    assert settings.plot == tmp_path / "new.png"
