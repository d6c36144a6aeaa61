"""Which images the page may show: those of the catalog, from the indexed folders only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from capsearch.engine.records import Filters, ImageRecord
from capsearch.library import Library
from capsearch.ui.web import images


@pytest.fixture(autouse=True)
def indexed_images(library: Library, image_folder: Path) -> None:
    library.index(image_folder)


def record_of(library: Library, name: str) -> ImageRecord:
    documents = library.newest(Filters(), limit=100)
    return next(one.record for one in documents if Path(one.record.path).name == name)


def id_of(library: Library, name: str) -> str:
    return record_of(library, name).id


def test_an_image_of_the_catalog_is_served_from_a_cached_copy(library: Library) -> None:
    file = images.image_file(library, id_of(library, "red.png"), 64)
    assert file is not None
    assert file.is_relative_to(library.place)


@pytest.mark.parametrize(
    "unknown", ["../images/red.png", "../../../etc/passwd", "/etc/passwd", "", "0" * 32, "\0"]
)
def test_any_other_id_is_refused(library: Library, unknown: str) -> None:
    assert images.image_file(library, unknown, 64) is None


def test_an_absolute_path_of_an_indexed_file_is_no_id(library: Library, image_folder: Path) -> None:
    assert images.image_file(library, str(image_folder / "red.png"), 64) is None


def test_a_file_that_became_a_link_out_of_the_indexed_folders_is_refused(
    library: Library, image_folder: Path, tmp_path: Path, image: Callable[..., Path]
) -> None:
    secret = image(tmp_path / "private" / "secret.png", "black")
    image_id = id_of(library, "red.png")
    (image_folder / "red.png").unlink()
    (image_folder / "red.png").symlink_to(secret)
    assert images.image_file(library, image_id, 64) is None


def test_an_image_whose_file_is_missing_is_none_and_the_others_are_served(
    library: Library, image_folder: Path
) -> None:
    gone, there = record_of(library, "red.png"), record_of(library, "blue.png")
    (image_folder / "red.png").unlink()
    files = images.tile_files(library, [gone, there])
    assert (files[0] is None, files[1] is None) == (True, False)
