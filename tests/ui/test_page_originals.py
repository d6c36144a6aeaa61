"""Original files: which may leave, and in which form."""

from __future__ import annotations

import csv
import io
import os
import sys
import time
import zipfile
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import pytest

from capsearch.engine.records import Filters, ImageRecord
from capsearch.library import Library
from capsearch.ui.web import detail
from capsearch.ui.web.images import (
    mime_type,
    original,
    paths_as_csv,
    paths_as_text,
    read_original,
    records_of,
    total_bytes,
    zip_originals,
)
from capsearch.ui.web.settings import SECRETS


@pytest.fixture
def records(library: Library, image_folder: Path) -> dict[str, ImageRecord]:
    """The records of the four images, by file name."""
    library.index(image_folder)
    newest = library.newest(Filters(), limit=9)
    return {Path(one.record.path).name: one.record for one in newest}


def unzip(content: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        return {name: archive.read(name) for name in archive.namelist()}


def test_the_original_has_the_bytes_of_the_file(
    library: Library, records: dict[str, ImageRecord], image_folder: Path
) -> None:
    """The page showed scaled copies only."""
    assert original(library, records["red.png"]) == image_folder / "red.png"
    assert read_original(library, records["red.png"]) == (image_folder / "red.png").read_bytes()


def test_a_copy_stands_in_for_a_file_that_is_gone(
    library: Library, records: dict[str, ImageRecord], image_folder: Path
) -> None:
    copy = image_folder / "z.png"
    copy.write_bytes((image_folder / "red.png").read_bytes())
    library.index(image_folder)
    [record] = records_of(library, [records["red.png"].id])
    (image_folder / "red.png").unlink()
    assert original(library, record) == copy
    copy.unlink()
    assert original(library, record) is None
    with pytest.raises(FileNotFoundError):
        read_original(library, record)


def test_files_outside_the_indexed_folders_never_leave(
    library: Library, records: dict[str, ImageRecord], image_folder: Path, tmp_path: Path
) -> None:
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    red = image_folder / "red.png"
    red.unlink()
    red.symlink_to(secret)
    elsewhere = replace(records["blue.png"], paths=(str(secret), "../secret.png"))
    for record in (records["red.png"], elsewhere):
        assert original(library, record) is None
        assert b"secret" not in zip_originals(library, [record]).replace(b"secret.png", b"")


@pytest.mark.parametrize(
    ("name", "mime"),
    [("a.JPG", "image/jpeg"), ("a.png", "image/png"), ("a.html", "application/octet-stream")],
)
def test_only_images_have_a_type_that_browsers_show(name: str, mime: str) -> None:
    assert mime_type(Path(name)) == mime


def record(path: str, taken_at: datetime | None = None) -> ImageRecord:
    return ImageRecord(path, (path,), 4, 3, 100, "png", taken_at)


def test_paths_are_lines_with_the_bytes_of_the_file_system() -> None:
    name = os.fsdecode(b"/\xe7\x8c\xab/\xff.png")
    assert (
        paths_as_text([record("/a b.png"), record(name)]) == b"/a b.png\n/\xe7\x8c\xab/\xff.png\n"
    )


def test_the_table_has_a_row_for_each_image() -> None:
    moment = datetime(2024, 5, 31, 12)
    content = paths_as_csv([record('/猫, "1".png', moment), record("/b.png")])
    assert content.startswith(b"\xef\xbb\xbf")
    rows = list(csv.reader(io.StringIO(content.decode("utf-8-sig"))))
    assert rows == [
        ["path", "width", "height", "size_bytes", "format", "taken_at"],
        ['/猫, "1".png', "4", "3", "100", "png", "2024-05-31T12:00:00"],
        ["/b.png", "4", "3", "100", "png", ""],
    ]


def test_a_zip_contains_the_originals_under_different_names(
    library: Library, image_folder: Path, image: Callable[..., Path]
) -> None:
    image(image_folder / "trips" / "RED.png", "red", size=20)
    os.utime(image_folder / "red.png", (0, 0))  # zip has no dates before 1980
    library.index(image_folder)
    records = [document.record for document in library.newest(Filters(), limit=9)]
    files = unzip(zip_originals(library, records))
    assert {name.lower() for name in files} >= {"red.png", "red (2).png", "yellow.webp"}
    assert sorted(files.values()) == sorted(Path(one.path).read_bytes() for one in records)


def test_what_is_gone_or_does_not_fit_is_listed_in_the_zip(
    library: Library, records: dict[str, ImageRecord], image_folder: Path
) -> None:
    (image_folder / "blue.png").unlink()
    chosen = [records[name] for name in ("blue.png", "red.png", "yellow.webp")]
    room = records["red.png"].size_bytes
    files = unzip(zip_originals(library, chosen, max_bytes=room))
    assert set(files) == {"red.png", "left out.txt"}
    listed = files["left out.txt"].decode().splitlines()
    assert listed == [records["blue.png"].path, records["yellow.webp"].path]
    assert total_bytes(chosen) == sum(one.size_bytes for one in chosen)


def test_unknown_images_are_left_out(library: Library, records: dict[str, ImageRecord]) -> None:
    red = records["red.png"]
    assert records_of(library, ["nobody", red.id, "../x"]) == (red,)


@pytest.mark.skipif(sys.platform == "win32", reason="explorer takes the place of xdg-open")
def test_the_file_manager_opens_the_folder_and_learns_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / ("open" if sys.platform == "darwin" else "xdg-open")
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$1" > {tmp_path}/new; env >> {tmp_path}/new\n'
                       f"mv {tmp_path}/new {tmp_path}/seen\n")  # fmt: skip
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setenv("DISPLAY", ":0")
    for name in SECRETS:
        monkeypatch.setenv(name, "sesame")
    assert detail.open_folder(tmp_path / "-rf" / "a.png")
    deadline = time.monotonic() + 30
    while not (tmp_path / "seen").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    seen = (tmp_path / "seen").read_text()
    assert seen.splitlines()[0] == str(tmp_path / "-rf")
    assert "sesame" not in seen


def test_without_a_desktop_there_is_no_file_manager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.delenv("DISPLAY", raising=False)
    monkeypatch.delenv("WAYLAND_DISPLAY", raising=False)
    assert detail.file_manager() is None
    assert not detail.open_folder(Path("/a.png"))
