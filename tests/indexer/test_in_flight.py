"""A file that takes the process down: tried last and alone, and after that not again."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest
from index_contents import paths

from capsearch.engine.fakes import FakeImageEncoder
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.prepare import JOURNAL, TOOK_PROCESS_DOWN, DecodeJournal
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.collection import Collection

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")
NAMES = [f"{n:02}.png" for n in range(12)]
BOMB_SIZE = 24  # pixels; the others have 16


@pytest.fixture
def folder(tmp_path, image) -> Path:
    for name in NAMES:
        image(tmp_path / "images" / name, "red", "blue", size=16 if name != "03.png" else BOMB_SIZE)
    return tmp_path / "images"


def index_until_the_bomb(where: Path, folder: Path, model) -> None:
    """In a forked process: decoding 03.png ends it, as the kernel does when memory runs out."""
    preprocess = FakeImageEncoder.preprocess

    def explode(self, opened):
        if opened.size == (BOMB_SIZE, BOMB_SIZE):
            os.kill(os.getpid(), signal.SIGKILL)
        return preprocess(self, opened)

    FakeImageEncoder.preprocess = explode  # type: ignore[method-assign]
    with Collection.create(where, model) as collection:
        index(collection, [folder], IndexOptions(batch_size=2, decode_threads=3))


def run(where: Path, folder: Path, model) -> int | None:
    process = multiprocessing.get_context("fork").Process(
        target=index_until_the_bomb, args=(where, folder, model)
    )
    process.start()
    process.join(60)
    return process.exitcode


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_file_that_kills_the_process_is_tried_last_then_left_out(tmp_path, folder, fake_model):
    """Issue 11, 13: every run ended at the same file."""
    where = tmp_path / "index"
    assert run(where, folder, fake_model) == -signal.SIGKILL
    assert run(where, folder, fake_model) == -signal.SIGKILL  # alone, after the others
    with Collection.create(where, fake_model) as collection:
        others = {name for name in NAMES if name != "03.png"}
        assert len(others - set(paths(collection))) <= 2  # suspects that come after it
    assert run(where, folder, fake_model) == 0
    assert not (where / JOURNAL).exists()
    with Collection.create(where, fake_model) as collection:
        assert set(paths(collection)) == others
        [skipped] = index(collection, [folder]).skipped
        assert (Path(skipped.path).name, skipped.reason) == ("03.png", TOOK_PROCESS_DOWN)


def test_a_changed_file_is_tried_again(tmp_path):
    """Issue 11, 13."""
    file = ImageFile("/a.png", 1, 2)
    with DecodeJournal(tmp_path).decoding(file):
        journal = DecodeJournal(tmp_path)  # as the next process reads it
        assert journal.attempts(file) == 1
        assert journal.attempts(ImageFile("/a.png", 9, 2)) == 0
        with journal.decoding(file):
            assert DecodeJournal(tmp_path).attempts(file) == 2
    assert DecodeJournal(tmp_path).attempts(file) == 0


def test_a_shorter_line_over_a_longer_one_is_read_alone(tmp_path):
    journal, long = DecodeJournal(tmp_path), ImageFile("/" + "long" * 50, 1, 2)
    with journal.decoding(ImageFile("/a.png", 1, 2)):
        with journal.decoding(long):
            pass
        assert DecodeJournal(tmp_path).attempts(long) == 0
        assert DecodeJournal(tmp_path).attempts(ImageFile("/a.png", 1, 2)) == 1


@pytest.mark.parametrize("content", [b"", b"oops\n", b"[1, 2]\n", b"[[1]]\n", b"{}\n", b"\xff\n"])
def test_a_damaged_journal_counts_as_none(tmp_path, content):
    (tmp_path / JOURNAL).write_bytes(content)
    assert DecodeJournal(tmp_path).attempts(ImageFile("/a.png", 1, 2)) == 0


def test_a_complete_run_leaves_no_journal(collection, image_folder):
    index(collection, [image_folder])
    assert not (collection.path / JOURNAL).exists()
