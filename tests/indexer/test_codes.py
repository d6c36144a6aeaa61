"""Cached codes: mapped, checked, extended without computing any again, and removed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite import nearest as codes
from capsearch.indexer.sqlite import nearest as pq
from capsearch.indexer.sqlite import nearest as pq_file
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.nearest import Codes, ExactSearch

ROWS = np.random.default_rng(0).normal(size=(300, 16)).astype(np.float32)
FEW = 10  # rows that may lack a code


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch):
    monkeypatch.setattr(nearest, "EXACT_ROWS", {np.dtype("<f4"): 4 * FEW})
    monkeypatch.setattr(pq, "_LISTED_ROWS", 60)
    monkeypatch.setattr(pq, "_ROWS_PER_LIST", 40)


@pytest.fixture
def array(tmp_path) -> VectorFile:
    return VectorFile(tmp_path, "vectors", 1, "<f4", 16, 0).appended(ROWS[:200])


@pytest.fixture
def added(monkeypatch) -> list[int]:
    """How many rows were given codes, each time that some were."""
    counts: list[int] = []
    add = Codes.add
    monkeypatch.setattr(
        Codes, "add", lambda self, rows: counts.append(len(rows) - self.rows) or add(self, rows)
    )
    return counts


def test_a_large_file_gets_a_cache_that_the_next_search_maps(array, added):
    codes.refresh(array)
    assert array.codes_path.name == "vectors-1.codes"
    search = codes.open_search(array)
    assert added == [200] and not search.codes.writable
    assert search.codes.shape.lists == 5 and 7 in search.top(ROWS[7], 50)


def test_mapped_codes_find_what_codes_in_memory_find(array):
    codes.refresh(array)
    mapped = pq_file.open_codes(array.codes_path, 16)
    copied = pq_file.open_codes(array.codes_path, 16, writable=True)
    made = nearest.coded(array.view())
    for query in ROWS[:20]:
        found = [one.top(query, 30).tolist() for one in (mapped, copied, made)]
        assert found[0] == found[1] == found[2]


def test_without_a_cache_codes_are_made_in_memory(array, added):
    codes.open_search(array)
    assert added == [200] and not array.codes_path.exists()


@pytest.mark.parametrize("at", [0, 20, 200, 1500])
def test_a_cache_with_a_changed_byte_in_its_head_is_made_anew(array, added, at):
    codes.refresh(array)
    content = bytearray(array.codes_path.read_bytes())
    content[at] ^= 1
    array.codes_path.write_bytes(content)
    codes.open_search(array)
    codes.refresh(array)
    codes.open_search(array)
    assert added == [200, 200, 200]


def test_damaged_lists_name_no_row_that_is_not_there(array):
    codes.refresh(array)
    content = bytearray(array.codes_path.read_bytes())
    content[-1600:] = b"\xff" * 1600  # the last lists: their codes and row numbers
    array.codes_path.write_bytes(content)
    found = codes.open_search(array).codes.top(ROWS[7], 199)
    assert len(found) < 199 and set(found.tolist()) <= set(range(200))


@pytest.mark.parametrize("keep", [0, 5, 60, -1])
def test_a_file_that_is_cut_off_is_not_opened(array, keep):
    codes.refresh(array)
    array.codes_path.write_bytes(array.codes_path.read_bytes()[:keep])
    assert pq_file.open_codes(array.codes_path, 16) is None


@pytest.mark.parametrize("line", [b'{"schema": 2}\n', b'{"width": "x"}\n', b"[]\n", b"IwFl\x00"])
def test_a_file_of_something_else_is_not_opened(array, line):
    array.codes_path.write_bytes(line)
    assert pq_file.open_codes(array.codes_path, 16) is None


def test_a_file_that_is_replaced_while_it_is_opened_is_not_used(array, monkeypatch):
    codes.refresh(array)
    mapped = pq_file._Stored.map

    def replaced(self, path, index):
        mapped(self, path, index)
        pq_file.save(nearest.coded(ROWS[:100]), path)

    monkeypatch.setattr(pq_file._Stored, "map", replaced)
    assert pq_file.open_codes(array.codes_path, 16) is None


def test_few_rows_without_a_code_are_compared_one_by_one(array, added):
    codes.refresh(array)
    longer = array.appended(ROWS[200 : 200 + FEW])
    written = longer.codes_path.read_bytes()
    codes.refresh(longer)
    assert longer.codes_path.read_bytes() == written
    assert 205 in codes.open_search(longer).top(ROWS[205], 1)
    assert added == [200]


def test_many_rows_without_a_code_are_given_one_in_memory_by_a_search(array, added):
    codes.refresh(array)
    before = codes.open_search(array)
    longer = array.appended(ROWS[200:250])
    search = codes.open_search(longer, before)
    longest = longer.appended(ROWS[250:])
    assert 299 in codes.open_search(longest, search).top(ROWS[299], 5)
    assert added == [200, 50, 50]


def test_many_rows_without_a_code_are_given_one_on_disk_by_a_writer(array, added):
    codes.refresh(array)
    longer = array.appended(ROWS[200:])
    codes.refresh(longer)
    assert codes.open_search(longer).codes.rows == 300
    assert added == [200, 100]


def test_codes_are_trained_again_when_there_are_four_times_as_many_rows(array, added, tmp_path):
    small = replace(array, rows=60)
    codes.refresh(small)
    codes.refresh(replace(array, rows=130))  # three lists would suit, it has one
    codes.refresh(array)  # five
    assert added == [60, 70, 200]


def test_a_cache_of_more_rows_or_another_width_is_not_used(array, added):
    codes.refresh(array)
    codes.open_search(replace(array, rows=100))
    codes.open_search(replace(array, rows=400, width=8))
    assert added == [200, 100, 400]


def test_a_cache_is_removed_when_the_file_is_small_again(array):
    codes.refresh(array)
    small = replace(array, rows=40)
    codes.refresh(small)
    assert not array.codes_path.exists()
    assert isinstance(codes.open_search(small), ExactSearch)


@pytest.mark.parametrize("width", [1, 2, 3, 257, 513, 1025])
def test_any_width_is_padded_to_whole_parts(width):
    shape = pq.Shape(width, 1)
    assert width <= shape.padded < width + shape.part
    rows = np.random.default_rng(1).normal(size=(50, width)).astype(np.float32)
    assert len(nearest.coded(rows).top(rows[0], 25)) == 25


def test_lists_are_read_by_the_search_alone(array):
    codes.refresh(array)
    index = codes.open_search(array).codes.index  # owns its lists
    assert nearest.faiss().downcast_InvertedLists(index.invlists).prefetch_nthread == 0


def test_opening_leaves_the_number_of_threads_as_it_is(array):
    import faiss

    before = faiss.omp_get_max_threads()
    codes.open_search(array)
    assert faiss.omp_get_max_threads() == before
