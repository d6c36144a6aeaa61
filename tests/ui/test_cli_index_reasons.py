"""`capsearch index`: what it says about skipped files, and about runs that add nothing."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsearch.encoders.images import formats
from capsearch.encoders.images.open import DEFAULT_PIXELS
from capsearch.engine.records import Progress
from capsearch.indexer import pipeline
from capsearch.indexer.sources import scan as scanning
from capsearch.indexer.sources.scan import Skipped
from capsearch.ui.cli.index import skipped_lines

Run = Callable[..., Any]


@pytest.fixture
def thousand_heic(image_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The images, and a thousand in a format whose decoder is not installed."""
    monkeypatch.setattr(formats, "_installed", lambda package: False)
    for number in range(1000):
        (image_folder / f"IMG_{number:04}.HEIC").write_bytes(b"x")
    return image_folder


def test_a_thousand_heic_files_are_one_line(thousand_heic: Path, run: Run) -> None:
    ran = run("index", thousand_heic)
    lines = [line for line in ran.err.splitlines() if line.startswith("skipped ")]
    assert len(lines) == 1
    assert (
        "skipped 1,000 .heic files: HEIF needs an extra: pip install 'capsearch[heif]'" in lines[0]
    )
    assert "1000 skipped" in ran.out


def test_verbose_and_json_name_every_file(thousand_heic: Path, run: Run) -> None:
    assert run("index", thousand_heic, "--verbose").err.count("\nskipped ") >= 999
    skipped = run("index", thousand_heic, "--json").json["skipped"]
    assert len(skipped) == 1000
    assert skipped[0].keys() == {"path", "reason"}


def test_reasons_that_differ_in_numbers_are_one_group() -> None:
    skipped = [Skipped(f"/{n}.jpg", f"truncated ({n * 1000} bytes)") for n in range(9)]
    assert [*skipped_lines([*skipped, Skipped("/a.png", "empty")])] == [
        "skipped 9 .jpg files: truncated (0 bytes) (first: /0.jpg)",
        "skipped /a.png: empty",
    ]


@pytest.mark.parametrize("suffix", [".jp2", ".psb", ".xcf", ".svg", ".eps", ".x3f"])
def test_formats_that_are_not_read_are_named(image_folder: Path, run: Run, suffix: str) -> None:
    """Never ignored without a word."""
    (image_folder / f"drawing{suffix}").write_bytes(b"x")
    [skipped] = run("index", image_folder, "--json").json["skipped"]
    assert f"{suffix} files are not read" in skipped["reason"]


@pytest.mark.parametrize("suffix", [".cr2", ".nef", ".dng", ".psd"])
def test_raw_and_photoshop_files_are_looked_at(image_folder: Path, run: Run, suffix: str) -> None:
    (image_folder / f"broken{suffix}").write_bytes(b"x")
    assert "not an image" in run("index", image_folder, "--json").json["skipped"][0]["reason"]


def test_all_already_indexed(image_folder: Path, run: Run) -> None:
    """What "0 added" means."""
    assert "nothing added" not in run("index", image_folder).err
    assert "nothing added: all 4 images are already indexed" in run("index", image_folder).err


def test_some_indexed_the_others_skipped(image_folder: Path, run: Run) -> None:
    run("index", image_folder)
    (image_folder / "broken.jpg").write_bytes(b"x")
    said = "nothing added: 4 of 5 images are already indexed, the others were skipped"
    assert said in run("index", image_folder).err


def test_no_image_files_found(tmp_path: Path, run: Run) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "a.txt").touch()
    assert "nothing added: no image files found" in run("index", tmp_path / "texts").err


def test_all_excluded(image_folder: Path, run: Run) -> None:
    said = run("index", image_folder, "--exclude", "*").err
    assert "nothing added: --exclude left out all there is (4 files and folders)" in said


def test_the_index_folder_itself(indexed: Path, run: Run, tmp_path: Path) -> None:
    """`index P --index P` said "0 added"."""
    where = Path(run("index", "--json").json["index"])
    copy = shutil.copytree(where, tmp_path / "copy of the index")
    assert "is the index itself, whose files are not indexed" in run("index", where).err
    assert "this folder is an index" in run("index", copy).err


def test_only_unsupported_formats(tmp_path: Path, run: Run) -> None:
    (tmp_path / "drawings").mkdir()
    (tmp_path / "drawings" / "a.svg").touch()
    assert (
        "the only files found are in formats that are not read"
        in run("index", tmp_path / "drawings").err
    )


def test_the_scan_counts_while_it_runs(
    image_folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scanning, "_FILES_A_COUNT", 2)
    real, seen = pipeline.index, list[tuple[int, int | None]]()

    def index(*arguments: Any, progress: Any, **named: Any) -> Any:
        def show(event: Progress) -> None:
            if event.stage == "scan":
                seen.append((event.done, event.total))

        return real(*arguments, progress=show, **named)

    monkeypatch.setattr(pipeline, "index", index)
    run("index", image_folder)
    assert seen == [(0, None), (2, None), (4, None), (4, 4)]


@pytest.mark.parametrize(
    ("options", "pixels"), [((), DEFAULT_PIXELS), (("--decode-budget", "64"), 64_000_000)]
)
def test_the_decode_budget_is_set(
    image_folder: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    pixels: int,
) -> None:
    budgets: list[int] = []
    monkeypatch.setattr(pipeline.DECODING, "resize", budgets.append)
    assert run("index", image_folder, *options).code == 0
    assert budgets == [pixels]


def test_the_report_names_the_first_file_of_a_group(thousand_heic: Path, run: Run) -> None:
    assert re.search(r"\(first: .*IMG_0000\.HEIC\)", run("index", thousand_heic).err)
