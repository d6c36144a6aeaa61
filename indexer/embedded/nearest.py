"""The rows of a vector file with the highest inner product: exact, or by compressed codes.

Exact search is one matrix product over the memory-mapped rows. Codes (RaBitQ, Gao and Long 2024,
in FAISS's fast scan form) need no training, take an eighth of float16, and propose candidates whose
scores are then computed from the rows themselves. Thread counts and other global settings of
FAISS are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.arrays import Rows, Slots, blocks

# Rows up to which one matrix product is as quick as anything: float32 as stored, float16 has to
# be converted first, which costs ten times as much.
EXACT_ROWS = {np.dtype("<f4"): 100_000, np.dtype("<f2"): 8_000}


class Nearest(Protocol):
    """Finds candidate rows."""

    def top(self, query: Vectors, depth: int) -> Slots:
        """At most `depth` rows, those with the highest inner products, in any order."""
        ...


class ExactSearch:
    """Compares with every row."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def top(self, query: Vectors, depth: int) -> Slots:
        """The `depth` best rows."""
        return best_of(query, self._rows, None, depth)


class CodeSearch:
    """Scans compressed codes of all rows; what they rank first is nearly always the best."""

    def __init__(self, rows: Rows, index: Any = None) -> None:
        self._rows = rows
        if index is None:
            index = _faiss().index_factory(rows.shape[1], "RaBitQfs", _faiss().METRIC_INNER_PRODUCT)
            index.train(_sample(rows))  # RaBitQ learns nothing but the mean
        for block in blocks(rows, np.arange(index.ntotal, len(rows))):
            index.add(np.ascontiguousarray(block, np.float32))
        self.index = index

    def top(self, query: Vectors, depth: int) -> Slots:
        """About the `depth` best rows."""
        row = np.ascontiguousarray(query, np.float32)[None]
        depth = min(depth, self.index.ntotal)
        _, slots = self.index.search(row, depth)
        found = np.asarray(slots[0][slots[0] >= 0], np.int64)
        # Rows that equal the mean of all have no code; if some are missing, compare with each.
        return found if len(found) == depth else best_of(query, self._rows, None, depth)


class GpuSearch:
    """Exact search on all GPUs. Tested by its interface only: no GPU was at hand."""

    MAX_DEPTH = 2048  # of FAISS on GPUs

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        index = _faiss().IndexFlatIP(rows.shape[1])
        for block in blocks(rows, np.arange(len(rows))):
            index.add(np.ascontiguousarray(block, np.float32))
        self._index = _faiss().index_cpu_to_all_gpus(index)

    def top(self, query: Vectors, depth: int) -> Slots:
        """The `depth` best rows."""
        if depth > self.MAX_DEPTH:
            return best_of(query, self._rows, None, depth)
        row = np.ascontiguousarray(query, np.float32)[None]
        _, slots = self._index.search(row, depth)
        return np.asarray(slots[0][slots[0] >= 0], np.int64)


def needs_codes(rows: Rows) -> bool:
    """Whether there are too many rows to compare with each of them."""
    return len(rows) > EXACT_ROWS[rows.dtype]


def build(rows: Rows, codes: Callable[[], Any] = lambda: None) -> Nearest:
    """The search that suits the number of rows and the machine.

    `codes` opens a FAISS index of codes of the first rows, if there is one.
    """
    if not needs_codes(rows):
        return ExactSearch(rows)
    return GpuSearch(rows) if _faiss().get_num_gpus() > 0 else CodeSearch(rows, codes())


def best_of(query: Vectors, rows: Rows, slots: Slots | None, depth: int) -> Slots:
    """The `depth` best of some rows, or of all, by plain arithmetic."""
    chosen = np.arange(len(rows)) if slots is None else slots
    if slots is None and rows.dtype == np.float32:
        scores = np.asarray(rows @ query)
    else:
        parts = [block.astype(np.float32) @ query for block in blocks(rows, chosen)]
        scores = np.concatenate([np.empty(0, np.float32), *parts])
    if depth >= len(chosen):
        return chosen
    return np.asarray(chosen[np.argpartition(-scores, depth - 1)[:depth]])


def exact_scores(query: Vectors, rows: Rows, slots: Slots) -> NDArray[np.float64]:
    """(n,) inner products that depend on query and row alone.

    A matrix product may sum a row differently according to its neighbours; products summed
    row by row in float64 and rounded to float32 cannot.
    """
    wide = query.astype(np.float64)
    parts = [(block.astype(np.float64) * wide).sum(axis=1) for block in blocks(rows, slots)]
    return np.concatenate([np.empty(0), *parts]).astype(np.float32).astype(np.float64)


def _sample(rows: Rows) -> Vectors:
    chosen = np.linspace(0, len(rows) - 1, min(len(rows), 4096)).astype(np.int64)
    return np.ascontiguousarray(rows[chosen], np.float32)


def _faiss() -> Any:
    """The library, imported when first needed; its type stubs lack most of what is used here."""
    import faiss

    return faiss
