"""Folders as filters, spelt in composed or decomposed Unicode; the last date there is."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path
from unicodedata import normalize

import pytest
from image_bytes import exif, saved
from PIL import ExifTags, Image

from capsearch.engine.records import Filters
from capsearch.indexer.pipeline import index


@pytest.mark.parametrize(("stored", "given"), [("NFD", "NFC"), ("NFC", "NFD")])
def test_a_folder_is_found_in_either_spelling(collection, image, tmp_path, stored, given):
    """Issue 11, 9: `--folder` typed here, the folder copied from macOS."""
    root = tmp_path / "Fotos"
    path = image(root / normalize(stored, "がーでん") / "a.png", "red")
    image(root / "b.png", "blue")
    index(collection, [root])
    [(found,)] = collection.catalog.select(
        Filters(folders=(str(root / normalize(given, "がーでん")),))
    )
    assert Path(collection.catalog.images([found])[found].path).samefile(path)


def test_the_last_year_is_no_overflow(collection, tmp_path):
    """Issue 11, 10: `--until 9999`."""
    taken = exif(sub={ExifTags.Base.DateTimeOriginal: "2024:05:01 23:59:59"})
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.jpg").write_bytes(saved(Image.new("RGB", (8, 8)), "JPEG", exif=taken))
    index(collection, [tmp_path / "images"])
    [(image_id,)] = collection.catalog.select(Filters(taken_until=date.max))
    record = collection.catalog.images([image_id])[image_id]
    assert record.taken_at == datetime(2024, 5, 1, 23, 59, 59)
    assert collection.catalog.select(Filters(taken_until=date(2024, 5, 1))) == [(image_id,)]
    assert collection.catalog.select(Filters(taken_until=date(2024, 4, 30))) == []
