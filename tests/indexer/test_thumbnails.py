"""Thumbnails are upright, made once, and only for ids in the catalog."""

from __future__ import annotations

import pytest
from PIL import Image

from capsearch.engine.errors import InvalidImage
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.embedded.thumbnails import thumbnail
from capsearch.indexer.pipeline import index


@pytest.fixture
def folder(tmp_path):
    root = tmp_path / "p"
    root.mkdir()
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate right by 90 degrees
    Image.new("RGB", (600, 300), (255, 0, 0)).save(root / "turned.jpg", exif=exif)
    return root


@pytest.fixture
def collection(tmp_path, fake_model, folder):
    with Collection.create(tmp_path / "index", fake_model) as opened:
        index(opened, [folder])
        yield opened


@pytest.fixture
def image_id(collection) -> str:
    [[only]] = collection.catalog.rows("SELECT id FROM images")
    return only


def test_a_thumbnail_is_upright_and_no_larger_than_its_edge(collection, image_id):
    with Image.open(thumbnail(collection, image_id, 100)) as small:
        assert small.size == (50, 100)


def test_a_thumbnail_is_inside_the_index_and_made_once(collection, image_id, monkeypatch):
    path = thumbnail(collection, image_id)
    assert path.is_relative_to(collection.path / "thumbnails")
    monkeypatch.setattr(
        "capsearch.indexer.embedded.thumbnails._write", lambda *_: pytest.fail("made again")
    )
    assert thumbnail(collection, image_id) == path


def test_each_size_has_a_file_of_its_own(collection, image_id):
    assert thumbnail(collection, image_id, 64) != thumbnail(collection, image_id, 128)


def test_a_small_image_is_not_enlarged(collection, folder, image):
    image(folder / "small.png", "blue", size=16)
    index(collection, [folder])
    [[small_id]] = collection.catalog.rows("SELECT id FROM images WHERE width = 16")
    with Image.open(thumbnail(collection, small_id)) as small:
        assert small.size == (16, 16)


@pytest.mark.parametrize("unknown", ["f" * 32, "../../etc/passwd", ""])
def test_ids_that_are_not_in_the_catalog_are_refused(collection, unknown):
    with pytest.raises(InvalidImage, match="no image with id"):
        thumbnail(collection, unknown)


@pytest.mark.parametrize("edge", [0, -5, 100_000])
def test_sizes_out_of_range_are_refused(collection, image_id, edge):
    with pytest.raises(ValueError, match="between 16 and 4096"):
        thumbnail(collection, image_id, edge)


def test_a_missing_image_file_is_an_error_and_no_thumbnail_is_written(collection, image_id, folder):
    (folder / "turned.jpg").unlink()
    with pytest.raises(InvalidImage, match=r"turned\.jpg: .*No such file"):
        thumbnail(collection, image_id)
    assert [path for path in (collection.path / "thumbnails").rglob("*") if path.is_file()] == []


def test_a_copy_is_used_when_the_first_file_is_missing(collection, image_id, folder):
    (folder / "zz.jpg").write_bytes((folder / "turned.jpg").read_bytes())
    index(collection, [folder])
    (folder / "turned.jpg").unlink()
    assert thumbnail(collection, image_id).is_file()
