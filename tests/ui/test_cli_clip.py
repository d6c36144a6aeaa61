"""An open_clip model on the command line: export, index, query, calibrate, distil, rebuild."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("gensim")
from small_clip import needs_open_clip
from small_training import COLOURS, record, write_data, write_split

from capsearch.encoders.calibrate import scenarios
from capsearch.encoders.models import registry
from capsearch.encoders.train import clip_export as exporting
from capsearch.encoders.train import w2vv as network
from capsearch.ui.cli.main import main

pytestmark = needs_open_clip
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture
def command(
    exported_clip: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Command:
    """Runs a command with `small` in the models folder and an index in tmp_path."""
    copytree(exported_clip, tmp_path / "models")
    write_data(tmp_path / "data")
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "models"))
    monkeypatch.setenv("CAPSEARCH_INDEX", str(tmp_path / "index"))
    monkeypatch.setattr(scenarios, "SIZES", (10,))

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(list(arguments))
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def found(command: Command, text: str, *options: str) -> Any:
    code, out, err = command("query", text, "--json", *options)
    assert code == 0, err
    return json.loads(out)


def test_an_index_of_an_export_answers_and_says_that_it_is_not_calibrated(
    command: Command, tmp_path: Path, clip_folder: Path
) -> None:
    code, _, err = command("index", str(tmp_path / "data"), "--model", "small")
    assert code == 0, err
    assert "small is not calibrated" in err and "capsearch calibrate --model small" in err
    for text, language in (("a red wall", "en"), ("红色的墙", "zh"), ("赤い壁", "ja")):
        result = found(command, text)
        assert result["query"]["language"] == language
        assert len(result["hits"]) == 10
    # The original has the same vectors, so that it goes on with the index of its export.
    code, out, err = command("index", "--model", f"open_clip:{clip_folder}")
    assert code == 0 and "0 added" in out, err


def test_another_model_is_refused_with_the_command_that_moves_the_collection(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert command("index", str(tmp_path / "data"), "--model", "small")[0] == 0
    code, _, err = command("index", "--model", "trio-fast")
    assert code == 2 and "`capsearch index --model trio-fast --rebuild`" in err
    code, _, err = command("index", "--model", "trio-fast", "--rebuild")
    assert code == 0, err
    assert registry.load("trio-fast").digest in command("info", "--json")[1]


def test_calibrate_fits_penalties_and_probabilities_and_a_rebuild_reuses_features(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(tmp_path / "data")
    assert command("index", data, "--model", "small")[0] == 0
    before = registry.load("small")
    cache = ["--cache", str(tmp_path / "cache")]
    for again in (False, True):
        code, _, err = command("calibrate", "--model", "small", "--data", data, *cache)
        assert code == 0, (again, err)
        after = registry.load("small")
        assert after.digest != before.digest and after.image.digest == before.image.digest
    code, _, err = command("query", "a red wall", "--model", "small")
    assert code == 2 and "images are not encoded again" in err
    code, _, err = command("index", "--model", "small", "--rebuild")
    assert code == 0 and "not calibrated" not in err, err
    hits = found(command, "a red wall", "--min-score", "0")["hits"]
    assert all(0 <= hit["score"] <= 1 for hit in hits)


def test_calibration_without_captions_that_the_model_reads_is_refused(
    command: Command, tmp_path: Path
) -> None:
    card = tmp_path / "models" / "small" / "model.json"
    card.write_text(json.dumps({**json.loads(card.read_text()), "languages": ["en"]}))
    write_split(tmp_path / "data", "train", [bare(n) for n in range(30)])
    code, _, err = command(
        "calibrate", "--model", "small", "--data", str(tmp_path / "data"),
        "--cache", str(tmp_path / "cache"),
    )  # fmt: skip
    assert code == 2 and "captions for its bank" in err


def bare(number: int) -> dict[str, Any]:
    made = record(number, COLOURS["red"])
    return {**made, "captions": {"zh": made["captions"]["zh"]}}


def test_text_encoders_are_taught_by_a_teacher_and_then_search_without_its_text_tower(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = partial(network.TextConfig, bow_width=16, word_width=8, gru_width=8, hidden=32)
    monkeypatch.setattr(network, "TextConfig", small)
    sentences = tmp_path / "sentences.txt"
    sentences.write_text("a red wall and a green one\n红色的墙和绿色的墙\n", encoding="utf-8")
    options = ["--data", str(tmp_path / "data"), "--cache", str(tmp_path / "cache")]
    options += ["--min-count", "1", "--batch-size", "15", "--epochs", "2", "--name", "student"]
    code, out, err = command(
        "train", "text", "--teacher", "small", "--sentences", str(sentences), *options, "--json"
    )
    assert code == 0, err
    card = json.loads(out)
    assert (card["backbone"], card["dimension"]) == ("small", 32)
    assert card["training"]["captions"] == {"en": 31, "zh": 31, "ja": 30}
    student, teacher = registry.load("student"), registry.load("small")
    assert student.image.digest == teacher.image.digest
    assert command("index", str(tmp_path / "data"), "--model", "student")[0] == 0
    (tmp_path / "models" / "small" / "text.onnx").unlink()
    assert len(found(command, "赤い壁")["hits"]) == 10
    both = ("--teacher", "small", "--backbone", "lite0", "--name", "another")
    code, _, err = command("train", "text", *options, *both)
    assert code == 2 and "leave it out" in err


def test_export_reports_the_folder_the_parity_and_how_to_use_it(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    parity = exporting.Parity(0.9995, 0.9996, 0.9997, 0.9998)

    def export(reference: str, folder: Path, *options: Any) -> exporting.Export:
        asked.append((reference, folder, *options[:2]))
        return exporting.Export(folder, folder.name, 2048, parity)

    monkeypatch.setattr(exporting, "export", export)
    code, out, err = command("models", "export", "open_clip:ViT-B-32/openai", "--offline")
    folder = tmp_path / "models" / "ViT-B-32-openai"
    assert code == 0 and out == f"{folder}\n"
    assert "0.9995 / 0.9997" in err and "--model ViT-B-32-openai" in err
    code, out, _ = command(
        "models", "export", "open_clip:./x", f"{tmp_path}/out", "--int8", "--json"
    )
    assert json.loads(out)["parity"]["texts"] == 0.9996
    assert asked[1] == ("open_clip:./x", tmp_path / "out", True, ())
    assert command("models", "export", "trio")[0] == 2
    code, _, err = command("models", "export", "open_clip:x", "trio")
    assert code == 2 and "built-in" in err


def test_benchmark_measures_models_beside_the_built_in_one(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capsearch.benchmarks import timing as measuring

    monkeypatch.setattr(measuring, "ProcessPoolExecutor", Here)
    code, out, err = command("models", "benchmark", "small", "--repeats", "1", "--json")
    assert code == 0, err
    built_in, small = json.loads(out)["models"]
    assert (built_in["name"], small["name"]) == (registry.DEFAULT_MODEL, "small")
    assert small["images_per_second"] > 0 and set(small["query_ms"]) == {"en", "zh", "ja"}
    assert small["memory_mb"] is None or small["memory_mb"] > 50


class Here:
    """A pool that computes in this process."""

    def __init__(self, *_: object) -> None:
        self.done: Any = None

    def __enter__(self) -> Here:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Here:
        self.done = function(*arguments)
        return self

    def result(self) -> Any:
        return self.done
