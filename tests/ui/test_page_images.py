"""Which images the page may show: those of the catalog, from the indexed folders only."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image

from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import InvalidImage
from capsearch.engine.records import Filters, ImageRecord
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.ui.web import images


@pytest.fixture
def collection(tmp_path: Path, image_folder: Path, fake_model: Model) -> Iterator[Collection]:
    with Collection.create(tmp_path / "index", fake_model) as created:
        index(created, [image_folder])
        yield created


def record_of(collection: Collection, name: str) -> ImageRecord:
    documents = collection.backend.newest(Filters(), limit=100)
    return next(one.record for one in documents if Path(one.record.path).name == name)


def id_of(collection: Collection, name: str) -> str:
    return record_of(collection, name).id


def test_an_image_of_the_catalog_is_served_from_a_cached_copy(collection: Collection) -> None:
    file = images.image_file(collection, id_of(collection, "red.png"), 64)
    assert file is not None
    assert file.is_relative_to(collection.path)


@pytest.mark.parametrize(
    "unknown", ["../images/red.png", "../../../etc/passwd", "/etc/passwd", "", "0" * 32, "\0"]
)
def test_any_other_id_is_refused(collection: Collection, unknown: str) -> None:
    assert images.image_file(collection, unknown, 64) is None


def test_an_absolute_path_of_an_indexed_file_is_no_id(
    collection: Collection, image_folder: Path
) -> None:
    assert images.image_file(collection, str(image_folder / "red.png"), 64) is None


def test_a_file_that_became_a_link_out_of_the_indexed_folders_is_refused(
    collection: Collection, image_folder: Path, tmp_path: Path, image: Callable[..., Path]
) -> None:
    secret = image(tmp_path / "private" / "secret.png", "black")
    image_id = id_of(collection, "red.png")
    (image_folder / "red.png").unlink()
    (image_folder / "red.png").symlink_to(secret)
    assert images.image_file(collection, image_id, 64) is None


def test_an_image_whose_file_is_missing_is_none_and_the_others_are_served(
    collection: Collection, image_folder: Path
) -> None:
    gone, there = record_of(collection, "red.png"), record_of(collection, "blue.png")
    (image_folder / "red.png").unlink()
    files = images.tile_files(collection, [gone, there])
    assert (files[0] is None, files[1] is None) == (True, False)


def test_an_upload_is_preprocessed_for_the_model(
    collection: Collection, image_folder: Path
) -> None:
    pixels = images.upload_pixels((image_folder / "red.png").read_bytes(), collection)
    assert pixels.shape == (16, 16, 3)


def test_an_upload_with_too_many_pixels_is_refused_before_it_is_decoded(
    collection: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MAX_UPLOAD_PIXELS", 99)
    content = BytesIO()
    Image.new("RGB", (10, 10)).save(content, "PNG")
    with pytest.raises(InvalidImage, match="megapixels"):
        images.upload_pixels(content.getvalue(), collection)


def test_an_upload_that_is_no_image_is_refused(collection: Collection) -> None:
    with pytest.raises(InvalidImage):
        images.upload_pixels(b"<svg onload=alert(1)>", collection)
