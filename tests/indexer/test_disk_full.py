"""A full disk, or one that fails: one line, exit 2, the index as it was before (issue 11, 4)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsearch.engine.errors import WriteFailed
from capsearch.engine.query import Query
from capsearch.engine.records import Filters
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite import nearest as codes
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.thumbnails import thumbnail

pytestmark = pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can mount")


@pytest.fixture
def disk(tmp_path) -> Iterator[Path]:
    """A disk of 4 MB."""
    mounted = tmp_path / "disk"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", mounted]).returncode:
        pytest.skip("mounting is not allowed here")
    yield mounted
    subprocess.run(["umount", "-l", mounted], check=True)


def fill(disk: Path, leave: int = 0) -> Path:
    """Takes all space but `leave` bytes."""
    ballast = disk / "ballast"
    with ballast.open("ab", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as problem:
            assert problem.errno == errno.ENOSPC
    os.truncate(ballast, ballast.stat().st_size - leave)
    return ballast


def many_images(folder: Path, count: int, seed: int = 0) -> Path:
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(seed)
    for n in range(count):
        Image.fromarray(rng.integers(0, 255, (8, 8, 3), np.uint8)).save(folder / f"{seed}-{n}.png")
        (folder / f"{seed}-{n}.txt").write_text(f"a red car\nthe sea, image {n}, seed {seed}")
    return folder


def state(where: Path, model) -> object:
    with Collection.open(where, model) as reader:
        tables = ("images", "files", "captions", "arrays")
        rows = [reader.catalog.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables]
        return rows, reader.engine().search(Query("red car", limit=50)).hits


@pytest.mark.parametrize("leave", [0, 8 << 10, 32 << 10, 64 << 10, 128 << 10])
def test_a_run_on_a_full_disk_fails_in_one_line_and_leaves_a_whole_index(
    disk, tmp_path, fake_model, leave
):
    """Issue 11, 4: it was a traceback about ROLLBACK that hid the cause."""
    folder = many_images(tmp_path / "p", 20)
    with Collection.create(disk / "index", fake_model) as collection:
        index(collection, [folder])
    before = state(disk / "index", fake_model)
    many_images(folder, 150, seed=1)
    ballast = fill(disk, leave)
    with (
        pytest.raises(WriteFailed, match=r"cannot write .*index.*: the disk (is full|failed)"),
        Collection.create(disk / "index", fake_model) as collection,
    ):
        index(collection, [folder], IndexOptions(batch_size=150))
    assert state(disk / "index", fake_model) == before
    ballast.unlink()
    with Collection.create(disk / "index", fake_model) as collection:
        assert index(collection, [folder]).added == 150
        assert len(collection.backend) == 170


def test_a_new_index_on_a_full_disk(disk, tmp_path, fake_model):
    """Issue 11, 4."""
    ballast = fill(disk)
    with pytest.raises(WriteFailed, match="the disk"):
        Collection.create(disk / "index", fake_model)
    ballast.unlink()
    with Collection.create(disk / "index", fake_model) as collection:
        assert index(collection, [many_images(tmp_path / "p", 2)]).added == 2


def test_the_command_line_says_it_in_one_line(disk, tmp_path):
    """Issue 11, 4: in a process of its own."""
    folder = many_images(tmp_path / "p", 5)
    fill(disk)
    program = (
        "import conftest, sys; from capsearch.encoders import models; "
        "models.load = lambda name=None: conftest.build_fake_model(); "
        "from capsearch.ui.cli.main import main; sys.exit(main(sys.argv[1:]))"
    )
    path = os.pathsep.join([str(Path(__file__).parent.parent), *sys.path])
    ran = subprocess.run(
        [sys.executable, "-c", program, "index", folder, "--index", disk / "index"],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 2, ran.stderr
    [line] = ran.stderr.splitlines()
    assert line.startswith(f"capsearch: cannot write {disk / 'index'}") and "disk is full" in line


def test_thumbnails_codes_and_manifest(disk, tmp_path, fake_model, monkeypatch):
    """Issue 11, 4: the caches, too; none is left in part."""
    folder = many_images(tmp_path / "p", 20)
    monkeypatch.setattr(nearest, "EXACT_ROWS", {np.dtype("<f4"): 1, np.dtype("<f2"): 1})
    with Collection.create(disk / "index", fake_model) as collection:
        index(collection, [folder])
        array = collection.catalog.array("vectors")
        array.codes_path.unlink()
        [document] = collection.backend.newest(Filters(), 1)
        fill(disk)
        for write in (
            lambda: codes.refresh(array),
            lambda: thumbnail(collection.path, document.record),
            collection._write_manifest,
        ):
            with pytest.raises(WriteFailed, match="the disk is full"):
                write()
        assert not array.codes_path.exists()
        assert not list(collection.path.rglob("*.tmp")) + list(collection.path.rglob("*.jpg"))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_errors_of_the_disk_while_rows_are_written(tmp_path, fake_model, monkeypatch, error):
    """Issue 11, 4: EIO cannot be had from a real disk here, so it is injected."""
    folder = many_images(tmp_path / "p", 4)
    with Collection.create(tmp_path / "index", fake_model) as collection:
        index(collection, [folder])
    before = state(tmp_path / "index", fake_model)
    many_images(folder, 4, seed=1)

    def fail(path: Path) -> None:
        raise OSError(error, os.strerror(error))

    with (
        pytest.raises(WriteFailed, match=os.strerror(error)),
        Collection.create(tmp_path / "index", fake_model) as collection,
    ):
        monkeypatch.setattr("capsearch.encoders.atomic.sync_file", fail)
        index(collection, [folder])
    monkeypatch.undo()
    assert state(tmp_path / "index", fake_model) == before
