"""The folders of an index: missing ones, and what they leave out."""

from __future__ import annotations

import os

import pytest
from index_contents import counts, paths

from capsearch.engine.errors import RootUnavailable
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sources.scan import NOT_TEXT


@pytest.fixture
def usb(collection, image_folder, image, tmp_path):
    image(tmp_path / "usb" / "white.png", "white")
    index(collection, [image_folder, tmp_path / "usb"])
    return tmp_path / "usb"


def test_a_dead_root_is_named_and_the_others_are_indexed(collection, image_folder, usb, image):
    """Issue 11, 3: it blocked `index` and `--rebuild` for ever."""
    usb.rename(usb.with_name("away"))
    image(image_folder / "new.png", "purple")
    summary = index(collection, [])
    assert counts(summary) == (1, 0, 0, 4)
    [skipped] = summary.skipped
    assert skipped.path == str(usb)
    assert "1 images from there stay in the index" in skipped.reason
    assert f"let go of it with `capsearch forget {usb}`" in skipped.reason
    assert "white.png" in paths(collection)


def test_a_rebuild_keeps_what_a_dead_root_has(collection, image_folder, usb):
    """Issue 11, 3."""
    usb.rename(usb.with_name("away"))
    assert index(collection, [], IndexOptions(rebuild=True)).added == 4
    assert len(collection.backend) == 5


def test_a_root_whose_name_is_not_utf_8_is_named(collection, image_folder, tmp_path):
    other = tmp_path / os.fsdecode(b"b\xe4der")
    other.mkdir()
    [skipped] = index(collection, [image_folder, other]).skipped
    assert skipped.path.endswith("b\\udce4der")
    assert skipped.reason == NOT_TEXT
    with pytest.raises(RootUnavailable, match="not valid UTF-8"):
        index(collection, [other])


def test_nothing_but_dead_roots_is_an_error(collection, usb):
    usb.rename(usb.with_name("away"))
    with pytest.raises(RootUnavailable, match=r"does not exist.*the index was not changed"):
        index(collection, [usb])


def test_exclude_is_remembered_for_each_root(collection, image_folder, usb):
    """Issue 11, 3."""
    assert index(collection, [image_folder], IndexOptions(exclude=("trips",))).removed == 1
    assert counts(index(collection, [])) == (0, 0, 0, 4)
    assert collection.stats().excludes == {str(image_folder): ("trips",)}
    assert counts(index(collection, [image_folder / "trips" / "2024"])) == (0, 1, 0, 0)
    assert index(collection, []).removed == 1
    assert counts(index(collection, [image_folder], IndexOptions(exclude=("",)))) == (0, 1, 0, 3)
    assert collection.stats().excludes == {}
