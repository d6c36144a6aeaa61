"""`capsearch bench` from the command line, with toy encoders in place of the built-in model."""

import json

import pytest
from toys import IMAGES, write_split

from capsearch.benchmarks import speed
from capsearch.benchmarks.timing import Measurement
from capsearch.encoders.models import registry
from capsearch.ui.cli import bench
from capsearch.ui.cli.main import main


@pytest.fixture
def run(tmp_path, fake_model, monkeypatch):
    """`capsearch bench retrieval` on the toy data, with more arguments; its exit code."""
    monkeypatch.setattr(registry, "load", lambda name=None: fake_model)
    write_split(tmp_path, "toys")
    fixed = ["--data", str(tmp_path), "--cache", str(tmp_path / "cache")]
    return lambda *more: main(["bench", "retrieval", *fixed, *more])


def test_json_is_a_list_of_flat_records_on_stdout(run, capsys):
    assert run("--split", "toys", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert {record["split"] for record in records} == {"toys"}
    # 3 languages x (CM + 2 x CL + 2 x CLM) x 2 directions x 5 metrics
    assert len(records) == 3 * 5 * 2 * 5


def test_tables_on_stdout_and_progress_on_stderr(run, capsys):
    assert run("--split", "toys") == 0
    out, err = capsys.readouterr()
    assert "MRR" in out and "toys: 4 images, model fake" in err and "model fake" not in out


def test_limit_takes_the_first_images(run, capsys):
    assert run("--split", "toys", "--limit", "2") == 0
    assert "toys: 2 images" in capsys.readouterr().err


def test_a_second_run_encodes_no_image_again(run, fake_model):
    run("--split", "toys", "--json")
    run("--split", "toys", "--json")
    assert fake_model.image.embedded == len(IMAGES)


def test_several_splits_in_one_run(run, tmp_path, capsys):
    write_split(tmp_path, "more")
    assert run("--split", "toys", "--split", "more", "--json") == 0
    records = json.loads(capsys.readouterr().out)
    assert [*dict.fromkeys(record["split"] for record in records)] == ["toys", "more"]


def test_unreadable_images_are_counted_on_stderr(run, tmp_path, capsys):
    write_split(tmp_path, "five", [*IMAGES, ((), {"en": ["unreadable"]})])
    assert run("--split", "five", "--json") == 0
    assert "warning: 1 images could not be read" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--split", "gone"], "no split gone in"),
        (["--split", "toys", "--plot", "mrr.doc"], "a plot is written as"),
        (["--split", "toys", "--clm-weight", "2"], "--clm-weight"),
    ],
)
def test_wrong_arguments_exit_with_2_and_a_message(run, capsys, arguments, message):
    assert run(*arguments) == 2
    assert message in capsys.readouterr().err


def test_speed_as_json_names_the_machine(monkeypatch, capsys):
    line = Measurement("text", "one query, en", "ms", 1.0, 2.0, 3)
    monkeypatch.setattr(speed, "PARTS", {"text": lambda settings: iter([line])})
    assert main(["bench", "speed", "--part", "text", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["measurements"][0]["p50"] == 1.0 and "cpu" in printed["machine"]


def test_the_command_accepts_every_part():
    (option,) = (one for one in bench.speed.params if one.name == "part")
    assert list(option.type.choices) == list(speed.PARTS)
