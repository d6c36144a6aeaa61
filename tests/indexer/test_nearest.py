"""Nearest rows: exact against brute force, codes against exact, GPUs by their interface."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from capsearch.engine.vectors import as_float32, exact_scores
from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite import nearest as pq
from capsearch.indexer.sqlite.nearest import (
    CodeSearch,
    ExactSearch,
    GpuSearch,
    coded,
    most_products,
)


@pytest.fixture(scope="module")
def unit_rows() -> np.ndarray:
    rows = np.random.default_rng(1).normal(size=(6000, 64)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def no_codes() -> pq.Codes:
    pytest.fail("codes are not needed")


def best(rows: np.ndarray, query: np.ndarray, count: int) -> set[int]:
    return set(np.argsort(-(rows.astype(np.float32) @ query))[:count].tolist())


@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_exact_search_finds_what_brute_force_finds(unit_rows, dtype):
    rows = unit_rows.astype(dtype)
    for query in unit_rows[:20]:
        assert set(ExactSearch(rows).top(query, 10).tolist()) == best(rows, query, 10)


def test_as_many_rows_as_there_are_can_be_asked_for(unit_rows):
    rows = unit_rows[:5]
    for search in (ExactSearch(rows), CodeSearch(rows, coded(rows))):
        assert sorted(search.top(unit_rows[0], 9).tolist()) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
def test_no_inner_product_is_more_than_its_bound_nor_much_less(unit_rows, dtype):
    rows = (3 * unit_rows[:2000]).astype(dtype)
    for query in unit_rows[:20]:
        exact = exact_scores(query, rows, np.arange(2000))
        some = most_products(query[None], rows, np.arange(0, 2000, 3))[:, 0]
        for most, scores in ((ExactSearch(rows).most(query), exact), (some, exact[::3])):
            assert (scores <= most).all() and (most - scores).max() < 1e-4


def test_codes_at_depth_100_hold_99_of_100_of_the_best_ten(unit_rows):
    rows = unit_rows[:3000]  # of random directions, the worst case: real images lie closer
    search, found = CodeSearch(rows, coded(rows)), 0
    queries = np.random.default_rng(2).normal(size=(100, 64)).astype(np.float32)
    for query in queries:
        found += len(best(rows, query, 10) & set(search.top(query, 100).tolist()))
    assert found >= 0.99 * 100 * 10


def test_rows_without_a_code_take_part(unit_rows):
    search = CodeSearch(unit_rows, coded(unit_rows[:5000]))
    assert 5500 in search.top(unit_rows[5500], 1) and 7 in search.top(unit_rows[7], 1)
    assert 100 <= len(search.top(unit_rows[0], 100)) <= 200


@pytest.mark.parametrize("coded_rows", [0, 3000, 2900])  # exact; all rows with a code; not all
def test_what_is_found_ahead_is_what_the_next_step_would_add(unit_rows, coded_rows):
    rows, query = unit_rows[:3000], unit_rows[5]
    search = CodeSearch(rows, coded(rows[:coded_rows])) if coded_rows else ExactSearch(rows)
    first, ahead = search.steps(query, [50, 200])
    assert len(first) == len(search.top(query, 50)) and 5 in first
    assert {*first, *ahead} == set(search.top(query, 200)) and not {*first} & {*ahead}


def test_what_is_found_ahead_scans_no_more_lists(unit_rows, monkeypatch):
    monkeypatch.setattr(pq, "_LISTED_ROWS", 100)
    monkeypatch.setattr(pq, "_ROWS_PER_LIST", 60)
    monkeypatch.setattr(pq, "_MIN_PROBES", 1)
    monkeypatch.setattr(pq, "_PROBED_DEPTH", 20)
    search = CodeSearch(unit_rows[:3000], coded(unit_rows[:3000]))
    first, ahead = search.steps(unit_rows[0], [100, 2900])
    assert len(first) == 100 and len(ahead) < 2000  # a quarter of the lists hold about 750
    assert len(search.top(unit_rows[0], 2900)) == 2900


def test_with_lists_more_rows_can_be_asked_for_than_the_nearest_lists_hold(unit_rows, monkeypatch):
    monkeypatch.setattr(pq, "_LISTED_ROWS", 100)
    monkeypatch.setattr(pq, "_ROWS_PER_LIST", 60)
    monkeypatch.setattr(pq, "_MIN_PROBES", 1)
    search = CodeSearch(unit_rows[:3000], coded(unit_rows[:3000]))
    assert search.codes.shape.lists == 50 and search.codes.probes == 12
    assert sorted(search.top(unit_rows[0], 3000).tolist()) == list(range(3000))


@pytest.mark.parametrize("value", [0.0, -0.0, 1.0, -1.5, 6e-8, -6.1e-5, 65504.0])
def test_float16_becomes_the_same_float32(value):
    half = np.array([[value]], np.float16)
    assert as_float32(half) == half.astype(np.float32)


def test_the_size_decides_between_exact_search_and_codes(unit_rows, monkeypatch):
    monkeypatch.setattr(nearest, "EXACT_ROWS", {np.dtype("<f4"): 300, np.dtype("<f2"): 100})
    assert isinstance(nearest.build(unit_rows[:300], no_codes), ExactSearch)
    assert isinstance(nearest.build(unit_rows[:301], lambda: coded(unit_rows[:301])), CodeSearch)
    half = unit_rows.astype("<f2")
    assert isinstance(nearest.build(half[:100], no_codes), ExactSearch)
    assert isinstance(nearest.build(half[:101], lambda: coded(half[:101])), CodeSearch)


def test_cached_codes_are_opened_only_when_needed(unit_rows, monkeypatch):
    nearest.build(unit_rows[:10], no_codes)
    monkeypatch.setattr(nearest, "EXACT_ROWS", {np.dtype("<f4"): 5})
    cached = coded(unit_rows[:10])
    assert nearest.build(unit_rows[:10], lambda: cached).codes is cached


def test_with_gpus_large_files_are_searched_there(unit_rows, monkeypatch):
    """By its interface: what would be on the GPU stays where it is."""
    import faiss

    gpu = SimpleNamespace(
        IndexFlatIP=faiss.IndexFlatIP,
        get_num_gpus=lambda: 1,
        index_cpu_to_all_gpus=lambda index: index,
    )
    monkeypatch.setattr(nearest, "faiss", lambda: gpu)
    monkeypatch.setattr(nearest, "EXACT_ROWS", {np.dtype("<f4"): 5})
    search = nearest.build(unit_rows, no_codes)
    assert isinstance(search, GpuSearch)
    assert set(search.top(unit_rows[0], 10).tolist()) == best(unit_rows, unit_rows[0], 10)
    monkeypatch.setattr(search._index, "search", lambda *_: pytest.fail("too deep for a GPU"))
    assert len(search.top(unit_rows[0], GpuSearch.MAX_DEPTH + 1)) == GpuSearch.MAX_DEPTH + 1


def test_a_gpu_finds_no_more_ahead_than_one_search_can(unit_rows):
    search = GpuSearch.__new__(GpuSearch)
    search._rows, asked = unit_rows, []

    def found(row, depth):
        asked.append(depth)
        return None, np.arange(depth)[None]

    search._index = SimpleNamespace(search=found)
    assert [len(step) for step in search.steps(unit_rows[0], [500, 2000])] == [500, 1500]
    assert [len(step) for step in search.steps(unit_rows[0], [1200, 4800])] == [1200]
    assert [len(step) for step in search.steps(unit_rows[0], [3000])] == [3000]
    assert asked == [2000, 1200]


def test_a_score_does_not_depend_on_the_rows_around_it(unit_rows):
    query = unit_rows[0]
    together = exact_scores(query, unit_rows, np.arange(6000))
    for at in (0, 1, 17, 4095, 4096, 5999):
        assert exact_scores(query, unit_rows, np.array([at]))[0] == together[at]


def test_nothing_has_no_scores(unit_rows):
    assert exact_scores(unit_rows[0], unit_rows, np.empty(0, np.int64)).tolist() == []
