"""Readers beside a writer: other users, read-only disks, and compaction (issue 11, 5 and 7)."""

from __future__ import annotations

import multiprocessing
import os
import pwd
import sqlite3
import subprocess
import threading
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from capsearch.encoders import atomic
from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import CapsearchError, IndexProblem
from capsearch.engine.query import Query
from capsearch.engine.records import Filters
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite import rebuilding
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.thumbnails import thumbnail, user_thumbnails

only_root = pytest.mark.skipif(os.name == "nt" or os.getuid() != 0, reason="only root can do this")
PRUNE = IndexOptions(prune=True)


def read(where: Path, model: Model, pipe: Connection, user: int) -> None:
    """Runs in a forked process: counts what it finds whenever it is asked."""
    os.setgroups([])
    os.setgid(user)
    os.setuid(user)
    try:
        with Collection.open(where, model) as reader:
            while pipe.recv():
                hits = reader.engine().search(Query("red", limit=99)).hits
                pipe.send((len(reader.backend), len(hits)))
    except (CapsearchError, OSError) as problem:
        pipe.send(str(problem))


class Reader:
    """Another user, who may read the index and not write to its folder."""

    def __init__(self, where: Path, model: Model, user: int) -> None:
        context = multiprocessing.get_context("fork")
        self._pipe, end = context.Pipe()
        self._process = context.Process(target=read, args=(where, model, end, user))
        self._process.start()

    def look(self) -> object:
        self._pipe.send(True)
        assert self._pipe.poll(20), "no answer"
        return self._pipe.recv()

    def close(self) -> None:
        self._pipe.send(False)
        self._process.join(20)
        assert self._process.exitcode == 0


@pytest.fixture
def nobody(tmp_path) -> int:
    """The number of the second user, who may enter the folder of this test."""
    for folder in (tmp_path, *tmp_path.parents):  # pytest-of-USER/pytest-N[/popen-gwN]/test_NAME
        folder.chmod(0o755)
        if folder.name.startswith("pytest-of-"):
            break
    try:
        return pwd.getpwnam("nobody").pw_uid
    except KeyError:
        pytest.skip("there is no second user")


@only_root
def test_another_user_sees_every_commit_of_the_writer(
    tmp_path, fake_model, image_folder, image, nobody
):
    """Issue 11, 7: immutable=1 showed an old state for ever."""
    where = tmp_path / "index"
    with Collection.create(where, fake_model) as writer:
        index(writer, [image_folder])
    reader = Reader(where, fake_model, nobody)
    assert reader.look() == (4, 4)
    with Collection.create(where, fake_model) as writer:
        image(image_folder / "new.png", "purple")
        index(writer, [])
        assert reader.look() == (5, 5)
        late = Reader(where, fake_model, nobody)  # while the log exists
        assert late.look() == (5, 5)
    image(image_folder / "newer.png", "orange")
    with Collection.create(where, fake_model) as writer:
        index(writer, [])
    assert reader.look() == late.look() == (6, 6)
    for one in (reader, late):
        one.close()


@only_root
def test_another_user_is_told_what_to_do_about_a_log_that_is_missing(
    tmp_path, fake_model, image_folder, nobody
):
    """Issue 11, 7: a clear error, not an old state."""
    where = tmp_path / "index"
    with Collection.create(where, fake_model) as writer:
        index(writer, [image_folder])
    connection = sqlite3.connect(where / "catalog.sqlite")
    connection.execute("PRAGMA journal_mode = WAL")  # as older versions left it
    connection.close()
    answer = Reader(where, fake_model, nobody).look()
    assert isinstance(answer, str) and "must run `capsearch index` once more" in answer


@pytest.fixture
def read_only(tmp_path, fake_model, image_folder) -> Iterator[Path]:
    """An index on a disk that nobody can write to."""
    with Collection.create(tmp_path / "index", fake_model) as writer:
        index(writer, [image_folder])
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "--bind", tmp_path / "index", mounted]).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        if subprocess.run(["mount", "-o", "remount,bind,ro", mounted]).returncode:
            pytest.skip("mounting read-only is not allowed here")
        yield mounted
    finally:
        subprocess.run(["umount", "-l", mounted], check=True)


@only_root
def test_an_index_on_a_read_only_disk_can_be_searched(read_only, fake_model):
    """Issue 11, 7: on a real mount."""
    with Collection.open(read_only, fake_model) as reader:
        assert len(reader.engine().search(Query("red")).hits) == 4


@only_root
def test_an_index_of_an_older_version_on_a_read_only_disk(read_only, tmp_path, fake_model):
    """Issue 11, 7: it is in the mode of the log, without a log."""
    connection = sqlite3.connect(tmp_path / "index" / "catalog.sqlite")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.close()
    with Collection.open(read_only, fake_model) as reader:
        assert len(reader.engine().search(Query("red")).hits) == 4


@only_root
def test_thumbnails_of_a_read_only_index_are_in_the_users_cache(
    read_only, tmp_path, fake_model, monkeypatch
):
    """Issue 11, 7."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Collection.open(read_only, fake_model) as reader:
        [document, *_] = reader.backend.newest(Filters(), 1)
        made = thumbnail(read_only, document.record)
    assert made.is_relative_to(user_thumbnails(read_only))
    assert made.is_relative_to(tmp_path / "cache") and made.is_file()


def test_a_new_vector_file_survives_a_power_cut_by_name(tmp_path, monkeypatch):
    """Issue 11, 5: its folder was not synced."""
    synced: list[Path] = []
    monkeypatch.setattr(atomic, "sync_folder", synced.append)
    array = VectorFile(tmp_path, "vectors", 1, "<f4", 2, 0)
    array = array.appended(np.ones((1, 2)))
    assert synced == [tmp_path]
    array.appended(np.ones((1, 2)))
    assert synced == [tmp_path]


def test_a_reader_that_races_compaction_tries_again(
    tmp_path, collection, fake_model, image_folder, monkeypatch
):
    """Issue 11, 5: it was told to rebuild."""
    index(collection, [image_folder])
    with Collection.open(collection.path, fake_model) as reader:
        view, raced = VectorFile.view, []

        def compacted_meanwhile(self: VectorFile):
            if not raced and threading.current_thread() is threading.main_thread():
                raced.append(self.path.name)
                for name in ("red.png", "green.jpg"):
                    (image_folder / name).unlink()
                writer = threading.Thread(target=index, args=(collection, [], PRUNE))
                writer.start()
                writer.join()
            return view(self)

        monkeypatch.setattr(VectorFile, "view", compacted_meanwhile)
        hits = reader.engine().search(Query("blue")).hits
    assert raced == ["vectors-1.f32"]
    assert not (collection.path / "vectors-1.f32").exists()
    assert [Path(hit.record.path).name for hit in hits] == ["blue.png", "yellow.webp"]


def test_a_vector_file_that_is_really_missing_is_an_error_with_advice(
    collection, fake_model, image_folder
):
    index(collection, [image_folder])
    collection.catalog.array("vectors").path.unlink()
    with (
        Collection.open(collection.path, fake_model) as reader,
        pytest.raises(IndexProblem, match="is missing; run `capsearch index --rebuild`"),
    ):
        reader.engine().search(Query("red"))


def test_thumbnails_of_images_that_left_are_deleted_and_nothing_else(collection, image_folder):
    """Issue 11, 16."""
    index(collection, [image_folder])
    documents = collection.backend.newest(Filters(), 9)
    made = {one.record.path: thumbnail(collection.path, one.record) for one in documents}
    gone = made.pop(str(image_folder / "red.png"))
    strangers = [gone.parent / "mine.jpg", collection.path / "thumbnails" / gone.name]
    for path in strangers:
        path.write_bytes(b"mine")
    (image_folder / "red.png").unlink()
    index(collection, [])
    assert gone.exists()  # the file may return
    index(collection, [], PRUNE)
    assert not gone.exists()
    assert all(path.exists() for path in (*made.values(), *strangers))
    assert rebuilding.used_slots(collection.catalog, "images").tolist() == [0, 1, 3]
