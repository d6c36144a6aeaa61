"""Letting go of a folder or of a captions file, in an index folder and in a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from places import document

from capsearch.engine.errors import IndexBusy, IndexMissing, IndexProblem
from capsearch.engine.records import Filters
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.roots import forget
from capsearch.indexer.sqlite.sources import opened_sources
from capsearch.indexer.thumbnails import thumbnail


@pytest.fixture
def usb(image, tmp_path):
    image(tmp_path / "usb" / "white.png", "white")
    return tmp_path / "usb"


def indexed(place, model, *roots, **options) -> None:
    with place.create(model) as collection:
        index(collection, roots, IndexOptions(**options))


def forgotten(place, model, path, agreed=True):
    """What was asked about."""
    asked = []
    with place.sources(model) as sources:
        done = forget(sources, path, lambda known: bool(asked.append(known)) or agreed)
    assert asked == ([done] if agreed else asked) and (done is None) != agreed
    return asked[0]


def names(collection) -> list[str]:
    found = collection.backend.newest(Filters(), 100)
    return sorted(Path(path).name for one in found for path in one.record.paths)


FOUR = ["blue.png", "green.jpg", "red.png", "yellow.webp"]


def test_forgetting_a_root_deletes_its_images_but_no_copies(place, fake_model, image_folder, usb):
    """Issue 11, 3."""
    (usb / "copy.png").write_bytes((image_folder / "red.png").read_bytes())
    (usb / "white.txt").write_text("a car")
    (usb / "copy.txt").write_text("a red car")
    indexed(place, fake_model, image_folder, usb)
    with place.open(fake_model) as collection:
        small = thumbnail(collection.path, document(collection, "white.png").record)
    known = forgotten(place, fake_model, usb, agreed=False)
    assert (known.path, known.images, known.captions) == (usb, 1, 1)
    with place.open(fake_model) as collection:
        assert small.is_file() and len(names(collection)) == 6
    assert forgotten(place, fake_model, usb) == known
    with place.open(fake_model) as collection:
        assert names(collection) == FOUR and collection.roots() == (image_folder,)
        assert not small.exists() and len(collection.backend) == 4
        assert document(collection, "red.png").captions == ()  # its copy had one
    with place.create(fake_model) as collection:
        assert index(collection, []).unchanged == 4


def test_what_is_known_of_images_that_were_there_goes_too(place, fake_model, image_folder, usb):
    indexed(place, fake_model, image_folder, usb)
    (usb / "white.png").unlink()
    indexed(place, fake_model, image_folder, usb, confirm_removed=(usb,))
    assert forgotten(place, fake_model, usb).images == 0
    with place.create(fake_model) as collection:
        assert index(collection, []).missing == 0


def test_a_single_file_can_be_a_root_and_be_forgotten(place, fake_model, usb, image):
    image(usb / "black.png", "black")
    indexed(place, fake_model, usb / "black.png", usb / "white.png")
    assert forgotten(place, fake_model, usb / "black.png").images == 1
    with place.open(fake_model) as collection:
        assert names(collection) == ["white.png"]


def test_forgetting_a_captions_file_deletes_its_captions(place, fake_model, image_folder, tmp_path):
    table = tmp_path / "c.csv"
    table.write_text("file,caption\nred.png,a car\n")
    (image_folder / "red.txt").write_text("a wall")
    indexed(place, fake_model, image_folder, captions=(table,))
    known = forgotten(place, fake_model, table)
    assert (known.images, known.captions) == (0, 1)
    with place.create(fake_model) as collection:
        assert [one.text for one in document(collection, "red.png").captions] == ["a wall"]
        assert index(collection, []).captions_added == 0  # it is not read again


def test_what_was_not_indexed_cannot_be_forgotten(place, fake_model, image_folder, tmp_path):
    indexed(place, fake_model, image_folder)
    with pytest.raises(IndexProblem, match="was not indexed; the indexed folders are: "):
        forgotten(place, fake_model, tmp_path / "other")
    with pytest.raises(IndexProblem, match="inside an indexed folder; leave it out with"):
        forgotten(place, fake_model, image_folder / "trips")


def test_forgetting_needs_an_index_that_nobody_writes(collection, tmp_path):
    with pytest.raises(IndexMissing), opened_sources(tmp_path / "none"):
        pass
    with pytest.raises(IndexBusy), opened_sources(collection.path):
        pass


@pytest.mark.parametrize("place", ["cluster"], indirect=True)
def test_a_collection_that_others_keep_indexing_is_an_error(
    place, fake_model, image_folder, monkeypatch
):
    indexed(place, fake_model, image_folder)
    monkeypatch.setattr("capsearch.indexer.elastic.sources.unchanged_delete", lambda hit: {
        "_op_type": "create", "_id": hit["_id"], "_source": {},  # refused, as a late delete is
    })  # fmt: skip
    with pytest.raises(IndexProblem, match="others keep indexing what is to be forgotten"):
        forgotten(place, fake_model, image_folder)
    with place.open(fake_model) as collection:
        assert collection.roots() == (image_folder,)
