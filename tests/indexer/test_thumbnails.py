"""Thumbnails are upright, made once, and lie in the index whatever an id says."""

from __future__ import annotations

from dataclasses import replace

import pytest
from PIL import Image

from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import Filters, ImageRecord
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.thumbnails import thumbnail


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


def record_of(collection, name: str) -> ImageRecord:
    [found] = [
        document.record
        for document in collection.backend.newest(Filters(), 9)
        if document.record.path.endswith(name)
    ]
    return found


@pytest.fixture
def record(collection) -> ImageRecord:
    return record_of(collection, "turned.jpg")


def test_a_thumbnail_is_upright_and_no_larger_than_its_edge(collection, record):
    with Image.open(thumbnail(collection.path, record, 100)) as small:
        assert small.size == (50, 100)


def test_a_thumbnail_is_inside_the_index_and_made_once(collection, record, monkeypatch):
    path = thumbnail(collection.path, record)
    assert path.is_relative_to(collection.path / "thumbnails")
    monkeypatch.setattr("capsearch.indexer.thumbnails._write", lambda *_: pytest.fail("made again"))
    assert thumbnail(collection.path, record) == path


def test_each_size_has_a_file_of_its_own(collection, record):
    assert thumbnail(collection.path, record, 64) != thumbnail(collection.path, record, 128)


def test_a_small_image_is_not_enlarged(collection, folder, image):
    image(folder / "small.png", "blue", size=16)
    index(collection, [folder])
    with Image.open(thumbnail(collection.path, record_of(collection, "small.png"))) as small:
        assert small.size == (16, 16)


@pytest.mark.parametrize("strange", ["../../etc/passwd", "f" * 31, "f" * 32 + "\n", ""])
def test_ids_that_are_no_digests_are_refused(collection, record, strange):
    with pytest.raises(InvalidImage, match="is not the id of an image"):
        thumbnail(collection.path, replace(record, id=strange))


@pytest.mark.parametrize("edge", [0, -5, 100_000])
def test_sizes_out_of_range_are_refused(collection, record, edge):
    with pytest.raises(ValueError, match="between 16 and 4096"):
        thumbnail(collection.path, record, edge)


def test_a_missing_image_file_is_an_error_and_no_thumbnail_is_written(collection, record, folder):
    (folder / "turned.jpg").unlink()
    with pytest.raises(InvalidImage, match=r"turned\.jpg: .*No such file"):
        thumbnail(collection.path, record)
    assert [path for path in (collection.path / "thumbnails").rglob("*") if path.is_file()] == []


def test_a_copy_is_used_when_the_first_file_is_missing(collection, record, folder):
    (folder / "zz.jpg").write_bytes((folder / "turned.jpg").read_bytes())
    index(collection, [folder])
    (folder / "turned.jpg").unlink()
    assert thumbnail(collection.path, record_of(collection, "turned.jpg")).is_file()
