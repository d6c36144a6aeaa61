"""Vector files: appending, trimming, rewriting, and recovery after a kill."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from capsearch.engine.errors import IndexProblem
from capsearch.engine.vectors import blocks
from capsearch.indexer.sqlite.arrays import VectorFile


@pytest.fixture
def empty(tmp_path) -> VectorFile:
    return VectorFile(tmp_path, "vectors", 1, "<f4", 2, 0)


def test_an_empty_vector_file_need_not_exist(empty):
    assert empty.view().shape == (0, 2)


def test_rows_come_back_in_the_order_they_were_appended(empty):
    array = empty.appended(np.array([[1, 2]], np.float32)).appended(np.array([[3, 4], [5, 6]]))
    assert array.rows == 3
    assert array.view().tolist() == [[1, 2], [3, 4], [5, 6]]
    assert array.path.read_bytes() == np.arange(1, 7, dtype="<f4").tobytes()


def test_half_precision_takes_two_bytes_per_number(tmp_path):
    array = VectorFile(tmp_path, "features", 1, "<f2", 3, 0).appended(np.ones((4, 3)))
    assert array.path.name == "features-1.f16"
    assert array.path.stat().st_size == 4 * 3 * 2


def test_rows_of_another_width_are_refused(empty):
    with pytest.raises(ValueError, match="vectors has rows of 2, not"):
        empty.appended(np.ones((1, 3)))


def test_rows_that_were_never_committed_are_cut_off(empty):
    array = empty.appended(np.ones((2, 2)))
    array.appended(np.zeros((5, 2)))  # never committed: `array` does not count them
    array.trim()
    assert array.path.stat().st_size == 2 * 2 * 4


def test_appending_overwrites_uncommitted_rows(empty):
    array = empty.appended(np.ones((1, 2)))
    array.appended(np.zeros((5, 2)))
    again = array.appended(np.full((1, 2), 7))
    assert again.view().tolist() == [[1, 1], [7, 7]]
    assert again.path.stat().st_size == 2 * 2 * 4


def test_a_file_with_fewer_rows_than_the_catalog_counts_is_an_error_with_advice(empty):
    array = empty.appended(np.ones((2, 2)))
    with pytest.raises(IndexProblem, match=r"too short .*; run `capsearch index --rebuild`"):
        replace(array, rows=3).view()
    array.path.unlink()
    with pytest.raises(IndexProblem, match=r"vectors-1\.f32 is missing; run"):
        array.view()


def test_rewriting_creates_a_new_generation_and_leaves_the_old_one(empty):
    old = empty.appended(np.arange(10).reshape(5, 2))
    new = old.emptied(2).filled(blocks(old.view(), np.array([0, 3])))
    assert (new.generation, new.rows, new.view().tolist()) == (2, 2, [[0, 1], [6, 7]])
    assert old.view().shape == (5, 2)


def test_blocks_are_bounded_and_in_order():
    rows = np.arange(10).reshape(10, 1)
    parts = list(blocks(rows, np.array([9, 1, 2, 3, 4]), size=2))
    assert [len(part) for part in parts] == [2, 2, 1]
    assert np.concatenate(parts).ravel().tolist() == [9, 1, 2, 3, 4]
