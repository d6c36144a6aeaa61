"""Incremental indexing: what each change in a folder does to the index, and what is encoded."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from index_contents import counts, embedded, first, paths

from capsearch.engine.errors import IndexProblem, RootUnavailable
from capsearch.engine.query import Query
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sources import scan as scanning
from capsearch.indexer.sqlite.collection import Collection


def test_a_folder_is_indexed_and_its_images_are_found(collection, image_folder):
    summary = index(collection, [image_folder])
    assert counts(summary) == (4, 0, 0, 0)
    assert summary.skipped == () and not summary.interrupted
    assert first(collection, "something yellow") == "yellow.webp"
    assert first(collection, "红色的东西") == "red.png"


def test_a_second_run_opens_no_file(collection, image_folder, monkeypatch):
    index(collection, [image_folder])
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"opened {path}"))
    assert counts(index(collection, [image_folder])) == (0, 0, 0, 4)
    assert embedded(collection) == 4


def test_a_second_run_without_changes_opens_no_file_again(collection, image_folder):
    index(collection, [image_folder])
    state = collection.catalog.state()
    opened = collection.backend._open(state)
    index(collection, [image_folder])
    assert collection.catalog.state() == state
    assert collection.backend._open(state) is opened


def test_without_roots_the_known_roots_are_scanned_again(collection, image_folder, image):
    index(collection, [image_folder])
    image(image_folder / "new.png", "purple")
    assert counts(index(collection, [])) == (1, 0, 0, 4)


def test_without_any_root_there_is_nothing_to_index(collection):
    with pytest.raises(IndexProblem, match="nothing to index: name a folder"):
        index(collection, [])


def test_a_renamed_file_keeps_its_vector(collection, image_folder):
    index(collection, [image_folder])
    (image_folder / "red.png").rename(image_folder / "rouge.png")
    assert counts(index(collection, [image_folder])) == (0, 1, 1, 3)
    assert embedded(collection) == 4
    assert first(collection, "red") == "rouge.png"


def test_a_copied_file_is_the_same_image_in_two_places(collection, image_folder):
    index(collection, [image_folder])
    shutil.copy(image_folder / "red.png", image_folder / "trips" / "copy.png")
    assert counts(index(collection, [image_folder])) == (0, 1, 0, 4)
    result = collection.engine().search(Query("red", mode="cm", min_score=0.9))
    [record] = collection.catalog.images([hit.image_id for hit in result.hits]).values()
    assert [Path(path).name for path in record.paths] == ["red.png", "copy.png"]


def test_new_copies_are_encoded_once(collection, image_folder):
    shutil.copy(image_folder / "red.png", image_folder / "red2.png")
    assert counts(index(collection, [image_folder])) == (4, 1, 0, 0)
    assert embedded(collection) == 4


def test_two_files_that_swap_names_are_not_encoded_again(collection, image_folder):
    index(collection, [image_folder])
    (image_folder / "red.png").rename(image_folder / "tmp")
    (image_folder / "blue.png").rename(image_folder / "red.png")
    (image_folder / "tmp").rename(image_folder / "blue.png")
    index(collection, [image_folder])
    assert embedded(collection) == 4
    assert first(collection, "red") == "blue.png"


def test_a_deleted_file_is_removed_from_the_index(collection, image_folder):
    index(collection, [image_folder])
    (image_folder / "red.png").unlink()
    assert counts(index(collection, [image_folder])) == (0, 0, 1, 3)
    assert len(collection.engine().search(Query("red")).hits) == 3


def test_a_changed_file_replaces_its_image(collection, image_folder, image):
    index(collection, [image_folder])
    image(image_folder / "red.png", "purple", size=32)
    assert counts(index(collection, [image_folder])) == (1, 0, 0, 3)
    assert first(collection, "purple") == "red.png"
    assert collection.stats().images == 4


def test_a_file_that_became_broken_is_removed_and_reported(collection, image_folder):
    index(collection, [image_folder])
    (image_folder / "red.png").write_bytes(b"oops")
    [skipped] = index(collection, [image_folder]).skipped
    assert skipped.path.endswith("red.png")
    assert collection.stats().images == 3


def test_only_files_under_the_given_roots_are_removed(collection, image_folder, image, tmp_path):
    other = tmp_path / "other"
    image(other / "white.png", "white")
    index(collection, [image_folder, other])
    shutil.rmtree(other)
    assert counts(index(collection, [image_folder])) == (0, 0, 0, 4)
    assert "white.png" in paths(collection)


def test_a_missing_root_is_an_error_and_changes_nothing(collection, image_folder):
    index(collection, [image_folder])
    image_folder.rename(image_folder.with_name("moved"))
    with pytest.raises(RootUnavailable, match="does not exist"):
        index(collection, [])
    assert len(paths(collection)) == 4


def test_a_root_that_lost_all_images_is_an_error_and_changes_nothing(collection, image_folder):
    index(collection, [image_folder])
    shutil.rmtree(image_folder)
    image_folder.mkdir()
    with pytest.raises(RootUnavailable, match="holds no images, but the index has 4 from there"):
        index(collection, [image_folder])
    assert len(paths(collection)) == 4


def test_a_rebuild_accepts_a_root_that_lost_all_images(collection, image_folder):
    index(collection, [image_folder])
    shutil.rmtree(image_folder)
    image_folder.mkdir()
    assert index(collection, [image_folder], IndexOptions(rebuild=True)).removed == 4


def test_a_rebuild_of_one_root_does_not_accept_another_that_lost_all_images(
    collection, image_folder, image, tmp_path
):
    image(tmp_path / "usb" / "white.png", "white")
    index(collection, [image_folder, tmp_path / "usb"])
    (tmp_path / "usb" / "white.png").unlink()
    [skipped] = index(collection, [image_folder], IndexOptions(rebuild=True)).skipped
    assert skipped.path.endswith("usb") and "holds none of its 1 images" in skipped.reason
    assert first(collection, "white") == "white.png"


def test_images_in_a_folder_that_cannot_be_read_stay_in_the_index(
    collection, image_folder, monkeypatch
):
    index(collection, [image_folder])
    listing = os.scandir

    def deny(folder):
        if str(folder).endswith("trips"):
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(scanning.os, "scandir", deny)
    summary = index(collection, [image_folder])
    assert summary.removed == 0
    assert [skipped.reason for skipped in summary.skipped] == [
        "folder cannot be read: Permission denied"
    ]
    assert "yellow.webp" in paths(collection)


def test_excluded_files_are_removed_if_they_were_indexed(collection, image_folder):
    index(collection, [image_folder])
    summary = index(collection, [image_folder], IndexOptions(exclude=("trips",)))
    assert counts(summary) == (0, 0, 1, 3)


def test_an_index_inside_the_folder_is_not_indexed(fake_model, image_folder):
    with Collection.create(image_folder / "index", fake_model) as collection:
        index(collection, [image_folder])
        (image_folder / "index" / "thumbnails").mkdir()
        shutil.copy(image_folder / "red.png", image_folder / "index" / "thumbnails" / "t.png")
        assert counts(index(collection, [image_folder])) == (0, 0, 0, 4)


def test_roots_inside_known_roots_are_not_stored(collection, image_folder):
    index(collection, [image_folder / "trips"])
    index(collection, [image_folder])
    index(collection, [image_folder / "trips"])
    assert collection.stats().roots == (str(image_folder),)
