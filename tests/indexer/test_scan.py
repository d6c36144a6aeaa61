"""Which files are image files, and which are reported as skipped."""

from __future__ import annotations

import os
from pathlib import Path
from unicodedata import normalize

import pytest

from capsearch.encoders.images import formats as image_formats
from capsearch.engine.errors import RootUnavailable
from capsearch.indexer.sources import scan as scanning
from capsearch.indexer.sources.scan import Skipped, outermost, scan


def touch(root: Path, *names: str) -> None:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"x")


def names(root: Path, **options) -> list[str]:
    files = scan([root], **options).files
    return [str(Path(file.path).relative_to(root.resolve())) for file in files]


def test_all_image_formats_are_found_in_the_order_of_their_paths(tmp_path):
    formats = ["a.jpg", "b.JPEG", "c.png", "d.webp", "e.avif", "f.gif", "g.bmp", "h.tif", "i.TIFF"]
    touch(tmp_path, *reversed(formats), "notes.txt", "movie.mp4", "jpg")
    assert names(tmp_path) == formats


def test_folders_are_entered_to_any_depth(tmp_path):
    deep = "/".join(["d"] * 60) + "/p.jpg"
    touch(tmp_path, deep, "z.jpg")
    assert names(tmp_path) == [deep, "z.jpg"]


def test_hidden_files_and_folders_are_left_out(tmp_path):
    touch(tmp_path, ".hidden.jpg", ".cache/a.jpg", "visible.jpg")
    assert names(tmp_path) == ["visible.jpg"]


@pytest.mark.parametrize(
    ("glob", "left"),
    [
        ("raw", ["a.jpg", "b.png"]),
        ("raw/", ["a.jpg", "b.png"]),
        ("*.png", ["a.jpg", "raw/c.jpg"]),
        ("raw/*.jpg", ["a.jpg", "b.png"]),
        ("*/raw/*", ["a.jpg", "b.png"]),
    ],
)
def test_exclude_globs_match_names_relative_paths_and_whole_paths(tmp_path, glob, left):
    touch(tmp_path, "a.jpg", "b.png", "raw/c.jpg")
    assert names(tmp_path, exclude=[glob]) == left


def test_the_index_itself_is_never_scanned(tmp_path):
    touch(tmp_path, "a.jpg", "my.index/thumbnails/t.webp")
    assert names(tmp_path, avoid=tmp_path / "my.index") == ["a.jpg"]


def test_any_other_index_is_recognised_and_left_out(tmp_path):
    touch(tmp_path, "a.jpg", "i/catalog.sqlite", "i/manifest.json", "i/thumbnails/t.webp")
    assert names(tmp_path) == ["a.jpg"]


def test_linked_folders_are_entered_only_with_follow_symlinks(tmp_path):
    touch(tmp_path / "elsewhere", "a.jpg")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "elsewhere")
    assert names(tmp_path / "root") == []
    assert names(tmp_path / "root", follow_symlinks=True) == ["link/a.jpg"]


def test_a_loop_of_links_ends(tmp_path):
    touch(tmp_path, "a/p.jpg")
    (tmp_path / "a" / "again").symlink_to(tmp_path)
    assert names(tmp_path, follow_symlinks=True) == ["a/p.jpg"]


def test_a_broken_link_is_reported(tmp_path):
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    result = scan([tmp_path])
    assert result.files == []
    assert result.skipped == [
        Skipped(str(tmp_path / "gone.jpg"), "cannot be read: No such file or directory")
    ]
    assert result.unreadable == []


def test_a_folder_that_cannot_be_listed_is_reported_and_the_rest_is_found(tmp_path, monkeypatch):
    touch(tmp_path, "a.jpg", "locked/b.jpg")
    listing = os.scandir

    def deny(folder):
        if str(folder).endswith("locked"):
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(scanning.os, "scandir", deny)
    result = scan([tmp_path])
    assert [Path(file.path).name for file in result.files] == ["a.jpg"]
    locked = str(tmp_path / "locked")
    assert result.skipped == [Skipped(locked, "folder cannot be read: Permission denied")]
    assert result.unreadable == [locked]


def test_heic_without_its_decoder_is_reported_with_the_install_command(tmp_path, monkeypatch):
    monkeypatch.setattr(image_formats, "_installed", lambda package: False)
    touch(tmp_path, "phone.HEIC")
    result = scan([tmp_path])
    assert result.files == []
    assert "pip install 'capsearch[heif]'" in result.skipped[0].reason
    assert result.unreadable == [str(tmp_path / "phone.HEIC")]


def test_heic_with_its_decoder_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(image_formats, "_installed", lambda package: True)
    touch(tmp_path, "phone.heic", "old.heif")
    assert names(tmp_path) == ["old.heif", "phone.heic"]


@pytest.mark.skipif(os.name == "nt", reason="names are always text there")
def test_a_name_that_is_not_text_is_skipped_and_reported(tmp_path):
    try:
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.jpg")).write_bytes(b"x")
    except OSError:
        pytest.skip("this file system stores names as text")
    result = scan([tmp_path])
    assert result.files == []
    assert "rename it" in result.skipped[0].reason
    result.skipped[0].path.encode()  # can be printed and stored


def test_a_single_file_is_a_root_too(tmp_path):
    touch(tmp_path, "a.jpg", "a.txt", "b.jpg")
    [file] = scan([tmp_path / "a.jpg"]).files
    assert file.path == str(tmp_path / "a.jpg")
    assert [Path(path).name for path, _, _ in file.sidecars] == ["a.txt"]


def test_sidecars_are_listed_with_their_state(tmp_path):
    touch(tmp_path, "a.jpg", "a.txt", "a.json", "a.jpg.txt", "a.jpg.json", "b.txt")
    [file] = scan([tmp_path]).files
    listed = [Path(path).name for path, _, _ in file.sidecars]
    assert listed == ["a.txt", "a.json", "a.jpg.txt", "a.jpg.json"]
    before = file.sidecar_state
    (tmp_path / "a.txt").write_bytes(b"longer")
    assert scan([tmp_path]).files[0].sidecar_state != before


def test_a_missing_root_is_an_error_with_advice(tmp_path):
    with pytest.raises(RootUnavailable, match=r"does not exist; .* Mount the drive or correct"):
        scan([tmp_path / "usb"])


def test_roots_inside_other_roots_are_scanned_once(tmp_path):
    touch(tmp_path, "a/b/p.jpg")
    assert outermost([tmp_path / "a" / "b", tmp_path / "a", tmp_path / "a"]) == (tmp_path / "a",)
    assert len(scan([tmp_path, tmp_path / "a" / "b"]).files) == 1


def test_a_sibling_with_a_common_prefix_is_not_inside_a_root(tmp_path):
    roots = (tmp_path / "a", tmp_path / "ab")
    assert outermost(roots) == roots


def test_a_sidecar_may_be_composed_and_its_image_decomposed(tmp_path):
    """Issue 11, 9."""
    touch(tmp_path, normalize("NFD", "桜が.jpg"), normalize("NFC", "桜が.txt"))
    [file] = scan([tmp_path]).files
    assert [Path(path).name for path, _, _ in file.sidecars] == [normalize("NFC", "桜が.txt")]
    assert Path(file.path).name == normalize("NFD", "桜が.jpg")  # as on disk
