"""An index has a folder of its own, and deletes nothing there that it did not write."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from capsearch.engine.errors import NotAnIndex, RootUnavailable
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection

STRANGERS = ("thesis.tmp", "embeddings-2024.f32", "features-2024.f16", "notes-1.f32", "x.faiss")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_folder_of_other_things_is_refused_and_nothing_in_it_is_touched(tmp_path, fake_model):
    """Issue 11, 1: *.tmp, *-*.f16 and *-*.f32 in such a folder were deleted."""
    for name in STRANGERS:
        (tmp_path / name).write_text("mine")
    with pytest.raises(NotAnIndex, match=r"neither empty nor an index: it holds .*--index"):
        Collection.create(tmp_path, fake_model)
    assert names(tmp_path) == sorted(STRANGERS)


def test_strange_files_in_an_index_stay(tmp_path, fake_model, image_folder):
    """Issue 11, 1."""
    with Collection.create(tmp_path / "index", fake_model) as collection:
        index(collection, [image_folder])
    for name in STRANGERS:
        (tmp_path / "index" / name).write_text("mine")
    with Collection.create(tmp_path / "index", fake_model) as collection:
        index(collection, [])
    assert set(STRANGERS) < set(names(tmp_path / "index"))


def test_what_a_killed_writer_left_is_deleted(tmp_path, fake_model, image_folder):
    """Issue 11, 1: by the exact names that the index gives."""
    left = (
        ".vectors-2.f32.12-345.tmp",
        ".manifest.json.1-2.tmp",
        "captions-2.f16",
        "vectors-2.codes",
    )
    with Collection.create(tmp_path / "index", fake_model) as collection:
        index(collection, [image_folder])
        before = names(collection.path)
    for name in left:
        (tmp_path / "index" / name).write_text("left")
    with Collection.create(tmp_path / "index", fake_model) as collection:
        assert names(collection.path) == before


def test_a_folder_with_the_remains_of_a_first_run_is_accepted(tmp_path, fake_model):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "writer.lock").touch()
    (tmp_path / "index" / "lost+found").mkdir()
    with Collection.create(tmp_path / "index", fake_model) as collection:
        assert collection.stats().images == 0


def test_a_database_of_something_else_is_refused(tmp_path, fake_model):
    """Issue 11, 1: its tables are not touched."""
    connection = sqlite3.connect(tmp_path / "catalog.sqlite")
    connection.execute("CREATE TABLE photographs (name)")
    connection.close()
    with pytest.raises(NotAnIndex, match="a database of something else"):
        Collection.create(tmp_path, fake_model)
    connection = sqlite3.connect(tmp_path / "catalog.sqlite")
    assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("photographs",)]
    connection.close()


def test_the_index_itself_is_no_folder_of_images(tmp_path, fake_model):
    """Issue 11, 1: `index P --index P` said "0 added" and not why."""
    with (
        Collection.create(tmp_path / "index", fake_model) as collection,
        pytest.raises(RootUnavailable, match="is the index itself, whose files are not"),
    ):
        index(collection, [tmp_path / "index"])
