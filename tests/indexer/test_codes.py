"""Cached codes: opened only with this machine's signature, extended, written anew, removed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capsearch.indexer.embedded import codes, nearest
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.nearest import CodeSearch, ExactSearch

ROWS = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch, tmp_path):
    monkeypatch.setattr(nearest, "EXACT_ROWS", {np.dtype("<f4"): 50})
    monkeypatch.setattr(codes, "user_data_path", lambda _: tmp_path / "user")


@pytest.fixture
def array(tmp_path) -> VectorFile:
    return VectorFile(tmp_path, "vectors", 1, "<f4", 16, 0).appended(ROWS[:200])


@pytest.fixture
def built(monkeypatch) -> list[int]:
    """How many rows were given codes, by each search that was built."""
    added: list[int] = []

    class Counting(CodeSearch):
        def __init__(self, rows, index=None):
            added.append(len(rows) - (index.ntotal if index is not None else 0))
            super().__init__(rows, index)

    monkeypatch.setattr(nearest, "CodeSearch", Counting)
    monkeypatch.setattr(codes, "CodeSearch", Counting)
    return added


def test_a_large_file_gets_a_cache_that_the_next_search_opens(array, built):
    codes.refresh(array)
    assert array.codes_path.name == "vectors-1.codes"
    search = codes.open_search(array)
    assert built == [200, 0]
    assert 7 in search.top(ROWS[7], 50)


def test_without_a_cache_codes_are_made_in_memory(array, built):
    codes.open_search(array)
    assert built == [200] and not array.codes_path.exists()


@pytest.mark.parametrize("at", [0, 40, -1])
def test_a_cache_with_a_changed_byte_is_not_opened_but_built_anew(array, built, at):
    """Issue 11, 14: the digest lay beside the file."""
    codes.refresh(array)
    content = bytearray(array.codes_path.read_bytes())
    content[at] ^= 1
    array.codes_path.write_bytes(content)
    codes.open_search(array)
    codes.refresh(array)
    codes.open_search(array)
    assert built == [200, 200, 200, 0]


def test_a_cache_signed_with_another_key_is_not_opened(array, built, tmp_path):
    """Issue 11, 14: the digest lay beside the file."""
    codes.refresh(array)
    (tmp_path / "user" / "cache.key").write_bytes(b"k" * 32)
    codes.open_search(array)
    assert built == [200, 200]


@pytest.mark.parametrize("content", [b"", b"short"])
def test_a_file_that_is_no_cache_is_not_opened(array, built, content):
    array.codes_path.write_bytes(content)
    codes.open_search(array)
    assert built == [200]


def test_a_key_is_secret_and_kept(tmp_path):
    key = codes._key()
    path = tmp_path / "user" / "cache.key"
    assert len(key) == 32 and codes._key() == key == path.read_bytes()
    assert path.stat().st_mode & 0o077 == 0


def test_an_empty_key_file_is_replaced(tmp_path):
    (tmp_path / "user").mkdir()
    (tmp_path / "user" / "cache.key").touch()  # a process was killed: this would sign anything
    assert len(codes._key()) == 32 and codes._key() == codes._key()


def test_where_no_key_can_be_kept_nothing_is_trusted(array, built, tmp_path):
    (tmp_path / "user").write_text("not a folder")
    codes.refresh(array)
    codes.open_search(array)
    assert built == [200, 200]


def test_a_cache_that_lacks_few_rows_is_extended_in_memory(array, built):
    codes.refresh(array)
    longer = array.appended(ROWS[200:215])  # 15 of 215: less than a tenth
    written = longer.codes_path.read_bytes()
    codes.refresh(longer)
    assert longer.codes_path.read_bytes() == written
    assert 210 in codes.open_search(longer).top(ROWS[210], 50)
    assert built == [200, 15]


def test_a_cache_that_lacks_many_rows_is_extended_on_disk(array, built):
    codes.refresh(array)
    longer = array.appended(ROWS[200:])
    codes.refresh(longer)
    codes.open_search(longer)
    assert built == [200, 100, 0]


def test_a_cache_of_more_rows_or_another_width_is_not_used(array, built):
    codes.refresh(array)
    codes.open_search(replace(array, rows=100))
    codes.open_search(replace(array, rows=400, width=8))
    assert built == [200, 100, 400]


def test_a_cache_is_removed_when_the_file_is_small_again(array):
    codes.refresh(array)
    small = replace(array, rows=50)
    codes.refresh(small)
    assert not array.codes_path.exists()
    assert isinstance(codes.open_search(small), ExactSearch)
