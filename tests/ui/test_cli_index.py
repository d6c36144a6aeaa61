"""`capsearch index`: its summary, its exit codes, and Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsearch.encoders.images.open import MAX_PIXELS
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.indexer import pipeline, prepare
from capsearch.ui.cli.index import MAX_MEGAPIXELS
from capsearch.ui.cli.progress import stop_on_interrupt

Run = Callable[..., Any]


def test_a_first_run_adds_and_a_second_finds_everything_unchanged(
    image_folder: Path, run: Run
) -> None:
    first, second = (run("index", image_folder, "--json").json for _ in range(2))
    assert (first["added"], first["unchanged"]) == (4, 0)
    assert (second["added"], second["unchanged"]) == (0, 4)
    assert first["skipped"] == []
    assert first["interrupted"] is False


def test_without_a_path_the_known_folders_are_updated(
    indexed: Path, run: Run, image: Callable[..., Path]
) -> None:
    image(indexed / "new.png", "orange")
    assert run("index", "--json").json["added"] == 1


def test_without_a_path_and_without_an_index_it_is_a_usage_error(run: Run) -> None:
    ran = run("index")
    assert ran.code == 2
    assert "name a folder" in ran.err


def test_an_unreadable_file_is_reported_with_its_reason_and_counted(
    image_folder: Path, run: Run
) -> None:
    (image_folder / "broken.jpg").write_bytes(b"not an image")
    ran = run("index", image_folder)
    assert ran.code == 0
    [line] = [line for line in ran.err.splitlines() if line.startswith("skipped ")]
    path, _, reason = line.removeprefix("skipped ").partition(": ")
    assert path == str(image_folder / "broken.jpg")
    assert reason
    assert "warnings: 1" in ran.err
    assert "4 added" in ran.out


def test_strict_makes_a_skipped_file_an_exit_of_1(image_folder: Path, run: Run) -> None:
    assert run("index", image_folder, "--strict").code == 0
    (image_folder / "broken.jpg").write_bytes(b"")
    assert run("index", image_folder, "--strict").code == 1
    assert run("index", image_folder).code == 0


def test_json_names_skipped_files_too(image_folder: Path, run: Run) -> None:
    (image_folder / "broken.jpg").write_bytes(b"")
    [skipped] = run("index", image_folder, "--json").json["skipped"]
    assert skipped["path"] == str(image_folder / "broken.jpg")
    assert skipped["reason"]


def test_excluded_files_are_not_indexed(image_folder: Path, run: Run) -> None:
    assert run("index", image_folder, "--exclude", "*.png", "--json").json["added"] == 2


def test_follow_symlinks_enters_linked_folders(
    image_folder: Path, run: Run, image: Callable[..., Path], tmp_path: Path
) -> None:
    image(tmp_path / "elsewhere" / "white.png", "white")
    (image_folder / "link").symlink_to(tmp_path / "elsewhere")
    assert run("index", image_folder, "--json").json["added"] == 4
    assert run("index", image_folder, "--follow-symlinks", "--json").json["added"] == 1


def test_max_pixels_skips_larger_images(
    image_folder: Path, run: Run, image: Callable[..., Path]
) -> None:
    image(image_folder / "large.png", "white", size=64)  # 4096 pixels; the others have 256
    [skipped] = run("index", image_folder, "--max-pixels", "0.004", "--json").json["skipped"]
    assert skipped["path"] == str(image_folder / "large.png")
    assert "more than 0.004 megapixels" in skipped["reason"]


def test_max_pixels_defaults_to_the_most_that_can_be_opened() -> None:
    assert round(MAX_MEGAPIXELS * 1e6) == MAX_PIXELS


def test_batch_size_is_the_number_of_images_encoded_at_once(
    image_folder: Path, run: Run, toy_models: Model
) -> None:
    assert run("index", image_folder, "--batch-size", "3").code == 0
    assert toy_models.image.batches == [3, 1]  # type: ignore[attr-defined]


@pytest.mark.parametrize(("option", "threads"), [((), None), (("--decode-threads", "2"), 2)])
def test_decode_threads_reach_the_pipeline(
    image_folder: Path,
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    option: tuple[str, ...],
    threads: int | None,
) -> None:
    real, numbers = prepare.prepare_all, []

    def prepare_all(*arguments: Any) -> Any:
        numbers.append(arguments[4])
        return real(*arguments)

    monkeypatch.setattr(prepare, "prepare_all", prepare_all)
    assert run("index", image_folder, *option).code == 0
    assert numbers == [threads]


@pytest.mark.parametrize("option", ["--max-pixels", "--batch-size", "--decode-threads"])
def test_zero_is_refused(image_folder: Path, run: Run, option: str) -> None:
    ran = run("index", image_folder, option, "0")
    assert ran.code == 2
    assert option in ran.err


def test_captions_are_read_from_a_file(image_folder: Path, run: Run) -> None:
    captions = image_folder.parent / "captions.csv"
    captions.write_text("file,caption\nblue.png,a blue sea\n", encoding="utf-8")
    assert run("index", image_folder, "--captions", captions, "--json").json["captions_added"] == 1


def test_an_index_keeps_the_model_it_was_made_with(
    indexed: Path, run: Run, toy_models: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str | None] = []

    def load(name: str | None = None) -> Model:
        loaded.append(name)
        return toy_models

    monkeypatch.setattr(registry, "load", load)
    assert run("index", indexed).code == 0
    assert loaded == [toy_models.name]


def test_ctrl_c_saves_finished_batches_reports_it_and_exits_with_130(
    image_folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = pipeline.index

    def interrupted(*arguments: Any, stop: threading.Event, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(timeout=5)
        return real(*arguments, stop=stop, **named)

    monkeypatch.setattr(pipeline, "index", interrupted)
    ran = run("index", image_folder)
    assert ran.code == 130
    assert "interrupted; saved" in ran.out
    assert "to continue" in ran.err


def test_the_second_ctrl_c_interrupts_as_usual() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), stop_on_interrupt() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(timeout=5)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(timeout=5)
    assert signal.getsignal(signal.SIGINT) is before


def test_off_the_main_thread_signal_handlers_stay_unchanged() -> None:
    before, inside = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with stop_on_interrupt() as stop:
            inside.append((stop.is_set(), signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert inside == [(False, before)]
