"""`capsearch forget`, and what `index` and `info` say about folders and files that are gone."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]


@pytest.fixture
def usb(indexed: Path, run: Run, tmp_path: Path, image: Callable[..., Path]) -> Path:
    image(tmp_path / "usb" / "white.png", "white")
    assert run("index", tmp_path / "usb").code == 0
    return tmp_path / "usb"


def test_a_dead_folder_is_named_and_forgotten(indexed: Path, run: Run, usb: Path) -> None:
    shutil.rmtree(usb)
    ran = run("index", "--strict")
    assert ran.code == 1
    assert f"skipped {usb}: does not exist; 1 images from there stay" in ran.err
    ran = run("forget", usb, "--yes")
    assert (ran.code, ran.out) == (0, f"forgotten: {usb} with 1 images and 0 captions by people\n")
    assert run("index", "--strict").code == 0
    assert run("info", "--json").json["roots"] == [str(indexed)]


def test_without_a_yes_nothing_is_forgotten(
    run: Run, usb: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It shows how many images would go, and asks."""
    monkeypatch.setattr("click.confirm", lambda text, **_: "with 1 images" not in text)
    ran = run("forget", usb)
    assert (ran.code, ran.err) == (1, "nothing was changed\n")
    assert run("info", "--json").json["images"] == 5


def test_what_was_never_indexed_is_an_error(run: Run, usb: Path, tmp_path: Path) -> None:
    ran = run("forget", tmp_path / "other", "--yes")
    assert ran.code == 2 and "was not indexed; the indexed folders are" in ran.err


def test_forget_as_json(run: Run, usb: Path) -> None:
    told = run("forget", usb, "--yes", "--json").json
    assert told == {"forgotten": str(usb), "images": 1, "captions": 0}


@pytest.mark.elastic
def test_a_folder_in_a_cluster_is_forgotten(
    run: Run, image_folder: Path, tmp_path: Path, image: Callable[..., Path], cloud: str
) -> None:
    image(tmp_path / "usb" / "white.png", "white")
    there = ("--backend", cloud)
    assert run("index", image_folder, tmp_path / "usb", *there, "--replicas", "0").code == 0
    told = run("forget", tmp_path / "usb", *there, "--yes", "--json").json
    assert told == {"forgotten": str(tmp_path / "usb"), "images": 1, "captions": 0}
    about = run("info", *there, "--json").json
    assert (about["images"], about["roots"]) == (4, [str(image_folder)])
    assert run("forget", tmp_path / "usb", *there, "--yes").code == 2


def test_exclude_is_shown_by_info(indexed: Path, run: Run) -> None:
    run("index", indexed, "--exclude", "*.webp")
    assert run("index", "--json").json["unchanged"] == 3
    assert run("info", "--json").json["excludes"] == {str(indexed): ["*.webp"]}
    assert "*.webp" in run("info").out


def test_prune_and_keep_missing(indexed: Path, run: Run) -> None:
    (indexed / "red.png").unlink()
    ran = run("index", "--keep-missing", "7")
    assert "1 images have no file any more; `capsearch index --prune` deletes" in ran.err
    assert run("info", "--json").json["missing"] == 1
    assert "pruned: 1 images" in run("index", "--prune").out
    assert run("info", "--json").json["missing"] == 0


def test_confirm_removed(run: Run, usb: Path) -> None:
    (usb / "white.png").unlink()
    assert f"run `capsearch index --confirm-removed {usb}`" in run("index").err
    assert run("index", "--confirm-removed", usb, "--json").json["removed"] == 1


def test_a_rebuild_of_everything_confirms_nothing(run: Run, usb: Path) -> None:
    """Only a folder that is named with --rebuild may have lost its images."""
    (usb / "white.png").unlink()
    assert run("index", "--rebuild", "--json").json["removed"] == 0
    assert run("info", "--json").json["images"] == 5


def test_an_index_in_the_folder_of_images_is_refused(image_folder: Path, run: Run) -> None:
    """`index P --index P`."""
    ran = run("index", image_folder, "--index", image_folder)
    assert ran.code == 2
    assert "is neither empty nor an index" in ran.err
    assert sorted(path.name for path in image_folder.iterdir()) == [
        "blue.png", "green.jpg", "red.png", "trips",
    ]  # fmt: skip
