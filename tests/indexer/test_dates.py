"""When an image was taken: from its metadata, its name, or its file, and which of these."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path

import pytest

from capsearch.indexer.sources.blocks import date_in_name, date_of_file, parsed_date
from capsearch.indexer.sources.metadata import Metadata, dated

NOON = datetime(2024, 1, 31, 12, 34, 56)
DAY = datetime(2024, 1, 31)


@pytest.mark.parametrize(
    ("name", "moment"),
    [
        ("IMG_20240131_123456.jpg", NOON),
        ("PXL_20240131_123456789.jpg", NOON),
        ("20240131_123456.jpg", NOON),
        ("2024-01-31 12.34.56.jpg", NOON),
        ("2024-01-31_12-34-56_HDR.jpg", NOON),
        ("Screenshot_2024-01-31-12-34-56.png", NOON),
        ("Screenshot 2024-01-31 at 12.34.56.png", NOON),
        ("WhatsApp Image 2024-01-31 at 12.34.56.jpeg", NOON),
        ("signal-2024-01-31-123456.jpg", NOON),
        ("截屏2024-01-31 12.34.56.png", NOON),
        ("微信图片_20240131123456.jpg", None),  # 14 digits may be any number
        ("スクリーンショット 2024-01-31 12.34.56.png", NOON),
        ("IMG-20240131-WA0001.jpg", DAY),
        ("20240131.jpg", DAY),
        ("party 2024.01.31 (3).jpg", DAY),
        ("2024-01-31.jpg", DAY),
        ("2024-0131.jpg", None),
        ("IMG_1234.jpg", None),
        ("20241301_000000.jpg", None),
        ("20230231.jpg", None),  # no such day
        ("1234567890123.jpg", None),
        ("120240131.jpg", None),
        ("DSC_2024.jpg", None),
        ("wallpaper 1920x1080.png", None),
    ],
)
def test_a_date_in_a_name(name, moment):
    """Issue 11, 18."""
    assert date_in_name(name) == moment


def test_wechat_names_files_by_milliseconds():
    """Issue 11, 18."""
    moment = datetime(2024, 1, 31, 12, 34, 56)
    assert date_in_name(f"mmexport{int(moment.timestamp())}123.jpg") == moment


@pytest.mark.parametrize(
    ("stored", "moment"),
    [
        ("2024:01:31 12:34:56", NOON),
        ("2024-01-31T12:34:56+09:00", NOON),  # the clock on the wall
        ("2024-01-31T12:34:56.789Z", NOON),
        ("2024-01-31T12:34", NOON.replace(second=0)),
        ("2024-01-31", DAY),
        ("20240131", DAY),
        ("20240131 123456", NOON),
        ("2024", None),
        ("0000:00:00 00:00:00", None),
        ("2024:13:45 00:00:00", None),
        ("yesterday", None),
        ("", None),
    ],
)
def test_a_date_in_metadata(stored, moment):
    """Issue 11, 18."""
    assert parsed_date(stored) == moment


@pytest.mark.parametrize("mtime_s", [0, -1, 315532800, 10**15])
def test_a_file_from_a_clock_that_was_not_set_has_no_date(mtime_s):
    assert date_of_file(mtime_s * 10**9) is None


def test_the_name_comes_before_the_file_and_metadata_before_both():
    """Issue 11, 18: and `taken_from` says which."""
    mtime_ns = int(DAY.timestamp()) * 10**9
    inside = Metadata(taken_at=NOON, taken_from="exif")
    assert dated(inside, "/20200101.jpg", mtime_ns) is inside
    named = dated(Metadata(), "/2020-01-01/IMG_20220102.jpg", mtime_ns)
    assert (named.taken_at, named.taken_from) == (datetime(2022, 1, 2), "name")
    plain = dated(Metadata(), "/2020-01-01/beach.jpg", mtime_ns)
    assert (plain.taken_at, plain.taken_from) == (DAY, "file")
    assert dated(Metadata(), "/beach.jpg", 0) == Metadata()


def test_an_indexed_image_without_metadata_has_the_time_of_its_file(collection, image, tmp_path):
    """Issue 11, 18."""
    from capsearch.indexer.pipeline import index

    path = image(tmp_path / "images" / "beach.png", "blue")
    os.utime(path, (NOON.timestamp(), NOON.timestamp()))
    image(tmp_path / "images" / "IMG_20200229_235959.png", "red")
    index(collection, [tmp_path / "images"])
    records = collection.catalog.images(
        [row[0] for row in collection.catalog.rows("SELECT id FROM images")]
    )
    taken = {Path(record.path).name: record.taken_at for record in records.values()}
    assert taken == {
        "beach.png": NOON,
        "IMG_20200229_235959.png": datetime(2020, 2, 29, 23, 59, 59),
    }
