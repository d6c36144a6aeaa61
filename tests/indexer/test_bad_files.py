"""A folder with bad files: good ones are indexed, each bad one is reported with its reason."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from image_bytes import png_header, saved
from PIL import Image

from capsearch.engine.query import Query
from capsearch.indexer.pipeline import IndexOptions, index

RED, BLUE = (255, 0, 0), (0, 0, 255)
GOOD = {"animated.gif", "cmyk.jpg", "sixteen-bit.png", "红色的猫 🐱.png"}
BAD = {
    "bomb.png": "too large to open safely",
    "dangling.jpg": "cannot be read: No such file or directory",
    "empty.jpg": "the file is empty",
    "text.jpg": "not an image in a format we read",
    "truncated.jpg": "broken image: image file is truncated",
    "unreadable.png": "cannot be read: Permission denied",
}


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "bad"
    root.mkdir()
    noise = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)
    jpeg = saved(Image.fromarray(noise), "JPEG")
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, BLUE)]
    (root / "truncated.jpg").write_bytes(jpeg[: len(jpeg) // 2])
    (root / "text.jpg").write_text("hello, this is no image")
    (root / "empty.jpg").touch()
    (root / "bomb.png").write_bytes(png_header(50_000, 50_000))
    (root / "dangling.jpg").symlink_to(root / "nowhere.jpg")
    (root / "unreadable.png").write_bytes(saved(Image.new("RGB", (16, 16), BLUE)))
    frames[0].save(root / "animated.gif", save_all=True, append_images=frames[1:])
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(root / "cmyk.jpg")
    Image.fromarray(np.full((16, 16), 65535, np.uint16)).save(root / "sixteen-bit.png")
    Image.new("RGB", (16, 16), (0, 0, 0)).save(root / "红色的猫 🐱.png")
    deny_reading(monkeypatch, "unreadable.png")
    return root


def deny_reading(monkeypatch, name: str) -> None:
    """Simulates missing permissions, which do not apply to the superuser."""
    read = Path.read_bytes

    def read_unless_denied(path: Path) -> bytes:
        if path.name == name:
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_unless_denied)


def reasons(summary) -> dict[str, str]:
    return {Path(skipped.path).name: skipped.reason for skipped in summary.skipped}


def assert_reported(summary) -> None:
    reported = reasons(summary)
    assert reported.keys() == BAD.keys()
    for name, reason in BAD.items():
        assert reported[name].startswith(reason), name


def test_good_files_are_indexed_and_bad_ones_reported(collection, folder):
    summary = index(collection, [folder])
    assert summary.added == len(GOOD)
    assert_reported(summary)
    files = {Path(row[0]).name for row in collection.catalog.rows("SELECT path FROM files")}
    assert files == GOOD


def test_bad_files_are_reported_again_without_being_opened(collection, folder, monkeypatch):
    index(collection, [folder])
    opened = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: opened.append(path.name) or read(path))
    assert_reported(index(collection, [folder]))
    assert opened == ["unreadable.png"]  # only opening it shows whether it has become readable


def test_a_bad_file_that_was_repaired_is_indexed(collection, folder):
    index(collection, [folder])
    (folder / "truncated.jpg").write_bytes(saved(Image.new("RGB", (16, 16), BLUE), "JPEG"))
    summary = index(collection, [folder])
    assert summary.added == 1
    assert "truncated.jpg" not in reasons(summary)


def test_a_bad_file_that_was_deleted_is_no_longer_reported(collection, folder):
    index(collection, [folder])
    (folder / "text.jpg").unlink()
    assert "text.jpg" not in reasons(index(collection, [folder]))
    assert collection.stats().skipped == 3  # bomb, empty, truncated


def test_an_indexed_image_that_cannot_be_read_stays_in_the_index(
    collection, image_folder, monkeypatch, image
):
    index(collection, [image_folder])
    image(image_folder / "red.png", "purple", size=32)
    with monkeypatch.context() as patch:
        deny_reading(patch, "red.png")
        assert reasons(index(collection, [image_folder])) == {
            "red.png": "cannot be read: Permission denied"
        }
        assert collection.stats().images == 4
    assert index(collection, [image_folder]).added == 1


def test_a_file_that_is_too_large_is_refused_without_being_read(
    collection, image_folder, monkeypatch
):
    monkeypatch.setattr("capsearch.indexer.prepare.MAX_FILE_BYTES", 1 << 20)
    with (image_folder / "movie.jpg").open("wb") as file:
        file.truncate((1 << 20) + 1)
    assert reasons(index(collection, [image_folder])) == {
        "movie.jpg": "larger than 1 MB, which is not opened as an image"
    }


def test_a_rebuild_opens_refused_files_again(collection, image_folder, image):
    image(image_folder / "big.png", "white", size=64)
    small = IndexOptions(max_pixels=1000)
    assert reasons(index(collection, [image_folder], small)).keys() == {"big.png"}
    assert reasons(index(collection, [image_folder])).keys() == {"big.png"}
    assert index(collection, [image_folder], IndexOptions(rebuild=True)).skipped == ()


def test_a_file_with_a_unicode_name_can_be_found(collection, folder):
    index(collection, [folder])
    hit = collection.engine().search(Query("black", mode="cm")).hits[0]
    assert collection.catalog.images([hit.image_id])[hit.image_id].path.endswith("红色的猫 🐱.png")
