"""Files that are written whole or not at all."""

from __future__ import annotations

import pytest

from capsearch.encoders import atomic


def test_a_file_is_replaced_by_the_new_text(tmp_path):
    (tmp_path / "a.txt").write_text("old")
    atomic.write_text(tmp_path / "a.txt", "新")
    assert (tmp_path / "a.txt").read_text("utf-8") == "新"
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


def test_after_an_error_the_old_file_is_left_and_no_temporary_one(tmp_path):
    target = tmp_path / "a.bin"
    target.write_bytes(b"old")
    with pytest.raises(OSError, match="No space"), atomic.replacing(target) as temporary:
        temporary.write_bytes(b"half")
        raise OSError(28, "No space left on device")
    assert target.read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.bin"]


def test_readers_find_the_old_file_until_the_new_one_is_complete(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")
    with atomic.replacing(target) as temporary:
        temporary.write_text("new")
        assert target.read_text() == "old"
    assert target.read_text() == "new"
