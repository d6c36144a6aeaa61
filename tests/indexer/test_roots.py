"""The folders of an index: missing ones, what they leave out, and letting go of them."""

from __future__ import annotations

import pytest
from index_contents import counts, paths

from capsearch.engine.errors import IndexBusy, IndexMissing, IndexProblem, RootUnavailable
from capsearch.indexer.embedded.thumbnails import thumbnail
from capsearch.indexer.forgetting import forget, opened_for_forgetting
from capsearch.indexer.pipeline import IndexOptions, index


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


def test_forgetting_a_root_deletes_its_images_but_no_copies(collection, image_folder, usb):
    """Issue 11, 3."""
    (usb / "copy.png").write_bytes((image_folder / "red.png").read_bytes())
    (usb / "white.txt").write_text("a car")
    index(collection, [])
    [white] = collection.catalog.rows("SELECT image_id FROM files WHERE path LIKE '%white.png'")
    small = thumbnail(collection.path, collection.catalog.images(white)[white[0]])
    asked = []
    forget(collection.catalog, collection.path, usb, lambda known: bool(asked.append(known)))
    [known] = asked
    assert (known.path, known.images, known.captions) == (usb, 1, 1)
    assert small.is_file() and len(paths(collection)) == 6
    forget(collection.catalog, collection.path, usb, lambda known: True)
    assert sorted(paths(collection)) == ["blue.png", "green.jpg", "red.png", "yellow.webp"]
    assert collection.stats().roots == (str(image_folder),)
    assert not small.exists() and len(collection.backend) == 4


def test_forgetting_a_captions_file_deletes_its_captions(collection, image_folder, tmp_path):
    table = tmp_path / "c.csv"
    table.write_text("file,caption\nred.png,a car\n")
    index(collection, [image_folder], IndexOptions(captions=(table,)))
    forget(collection.catalog, collection.path, table, lambda known: True)
    assert (collection.stats().captions, collection.stats().captions_files) == (0, ())


def test_what_was_not_indexed_cannot_be_forgotten(collection, image_folder, usb, tmp_path):
    with pytest.raises(IndexProblem, match="was not indexed; the indexed folders are: "):
        forget(collection.catalog, collection.path, tmp_path / "other", lambda known: True)
    with pytest.raises(IndexProblem, match="inside an indexed folder; leave it out with"):
        forget(collection.catalog, collection.path, image_folder / "trips", lambda known: True)


def test_forgetting_needs_an_index_that_nobody_writes(collection, tmp_path):
    with pytest.raises(IndexMissing), opened_for_forgetting(tmp_path / "none"):
        pass
    with pytest.raises(IndexBusy), opened_for_forgetting(collection.path):
        pass
