"""FaissIndex passes the contract: flat, HNSW, with unused rows, from a cache."""

from __future__ import annotations

import numpy as np
import pytest
from store_contracts import VectorIndexContract

from capsearch.indexer.embedded import nearest
from capsearch.indexer.embedded.vector_index import FaissIndex, exact_scores


def matrix(rows, dtype) -> np.ndarray:
    return np.array([vector for _, _, vector in rows], dtype).reshape(len(rows), 3)


def built(rows, dtype=np.float32, searcher=None) -> FaissIndex:
    return FaissIndex(
        matrix(rows, dtype),
        np.arange(len(rows)),
        [owner for owner, _, _ in rows],
        np.array([item for _, item, _ in rows], np.int64),
        searcher,
    )


class TestFlat(VectorIndexContract):
    def build(self, rows):
        return built(rows)


class TestHalfPrecision(VectorIndexContract):
    tolerance = 1e-3

    def build(self, rows):
        return built(rows, np.float16)


class TestWithUnusedRows(VectorIndexContract):
    """Every other row is unused and would win every search."""

    def build(self, rows):
        table = np.full((2 * len(rows), 3), 10, np.float32)
        table[::2] = matrix(rows, np.float32)
        return FaissIndex(
            table,
            np.arange(len(rows)) * 2,
            [owner for owner, _, _ in rows],
            np.array([item for _, item, _ in rows], np.int64),
        )


class TestGraph(VectorIndexContract):
    """With a graph, collections this small are still searched exactly."""

    def build(self, rows):
        return built(rows, searcher=nearest.Hnsw(matrix(rows, np.float32)))


@pytest.fixture
def unit_rows() -> np.ndarray:
    rows = np.random.default_rng(1).normal(size=(6000, 16)).astype(np.float32)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.fixture
def graph(unit_rows, monkeypatch) -> FaissIndex:
    monkeypatch.setattr(nearest, "FLAT_LIMIT", 100)
    ids = [f"i{n:04}" for n in range(len(unit_rows))]
    numbers = np.arange(len(unit_rows))
    return FaissIndex(unit_rows, numbers, ids, numbers)


def test_a_graph_search_finds_98_of_100_of_the_best_images(graph, unit_rows):
    assert isinstance(graph._searcher, nearest.Hnsw)
    hits = 0
    for query in unit_rows[:50]:
        best = {f"i{n:04}" for n in np.argsort(-(unit_rows @ query))[:10]}
        hits += len(best & {match.image_id for match in graph.search(query, 10)})
    assert hits >= 0.98 * 50 * 10


def test_graph_searches_with_the_same_ef_search_agree(graph, unit_rows):
    long = graph.search(unit_rows[3], 100)
    assert graph.search(unit_rows[3], 11) == long[:11]


def test_a_graph_search_returns_only_allowed_images(graph, unit_rows):
    allowed = {f"i{n:04}" for n in range(0, 6000, 2)}
    found = graph.search(unit_rows[3], 20, allowed)
    assert len(found) == 20 and {match.image_id for match in found} <= allowed


def test_a_cached_graph_is_loaded_and_new_rows_are_added(tmp_path, unit_rows):
    old = nearest.Hnsw(unit_rows[:5000])
    digest = nearest.save(old, tmp_path / "vectors.faiss")
    loaded = nearest.load(unit_rows, tmp_path / "vectors.faiss", digest)
    assert loaded.index.ntotal == 6000
    assert 5500 in loaded.nearest(unit_rows[5500], 10, None).slots


def test_a_cache_with_another_digest_is_not_opened(tmp_path, unit_rows):
    path = tmp_path / "vectors.faiss"
    digest = nearest.save(nearest.Hnsw(unit_rows[:200]), path)
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert nearest.load(unit_rows, path, digest) is None
    assert nearest.load(unit_rows, tmp_path / "nowhere.faiss", digest) is None


def test_a_cache_of_more_rows_or_other_dimensions_is_not_used(tmp_path, unit_rows):
    path = tmp_path / "vectors.faiss"
    digest = nearest.save(nearest.Hnsw(unit_rows[:200]), path)
    assert nearest.load(unit_rows[:100], path, digest) is None
    assert nearest.load(np.ascontiguousarray(unit_rows[:, :8]), path, digest) is None


def test_the_size_decides_between_flat_and_graph(unit_rows, monkeypatch):
    monkeypatch.setattr(nearest, "FLAT_LIMIT", 300)
    assert isinstance(nearest.build(unit_rows[:300]), nearest.Flat)
    assert isinstance(nearest.build(unit_rows[:301]), nearest.Hnsw)


def test_a_score_does_not_depend_on_the_rows_around_it(unit_rows):
    query = unit_rows[0]
    together = exact_scores(query, unit_rows, np.arange(6000))
    for at in (0, 1, 17, 4095, 4096, 5999):
        assert exact_scores(query, unit_rows, np.array([at]))[0] == together[at]
