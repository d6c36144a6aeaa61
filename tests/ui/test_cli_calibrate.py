"""`capsearch calibrate` on the small workshop: what it is fitted on, and what it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("gensim")

from small_training import COLOURS, record, workshop, write_split

from capsearch.encoders.models.calibration import StoredEvidence
from capsearch.engine.vectors import strip_bias
from capsearch.ui.cli.main import main

__all__ = ["workshop"]  # a fixture


def calibrate(workshop: Path, output: Path, *more: str) -> int:
    data, cache = str(workshop / "data"), str(workshop / "cache")
    options = ["--data", data, "--cache", cache, "--output", str(output)]
    return main(["calibrate", "--model", "small-cap-text", *options, *more])


def only_red(workshop: Path, folder: Path) -> Path:
    folder.mkdir()
    write_split(folder, "red", [record(n, COLOURS["red"]) for n in (0, 5, 10)])
    for number in (0, 5, 10):
        image = (workshop / "data" / f"{number}.png").read_bytes()
        (folder / f"{number}.png").write_bytes(image)
    return folder


def test_features_are_moved_to_the_mean_of_images_like_those_searched(
    workshop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    red = only_red(workshop, tmp_path / "red")
    assert calibrate(workshop, tmp_path / "plain") == 0
    assert calibrate(workshop, tmp_path / "moved", "--like", str(red)) == 0
    banks = [StoredEvidence(tmp_path / name).bank for name in ("plain", "moved")]
    plain, moved = (np.unique(strip_bias(bank.images).round(4), axis=0) for bank in banks)
    assert len(plain) == len(moved)  # every image is still another one
    assert not np.allclose(plain, moved, atol=1e-2)


def test_the_cut_offs_of_every_language_are_printed(
    workshop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert calibrate(workshop, tmp_path / "made", "--json") == 0
    fitted = json.loads(capsys.readouterr().out)
    assert set(fitted) == {"en", "zh", "ja"}
    assert all(one["unfamiliar"] is None for one in fitted.values())  # nothing is labelled


def test_labelled_images_without_a_known_label_are_refused_in_one_line(
    workshop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    red = str(only_red(workshop, tmp_path / "red"))
    assert calibrate(workshop, tmp_path / "made", "--labelled", red) == 2
    assert "no image with a known label" in capsys.readouterr().err


def test_without_torch_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert main(["calibrate", "--data", str(tmp_path)]) == 2
    assert "calibration needs an extra: pip install 'capsearch[train]'" in capsys.readouterr().err
