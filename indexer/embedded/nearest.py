"""The rows of a vector file with the highest inner product: exact, or by compressed codes.

Exact search is one matrix product over the memory-mapped rows. Codes (embedded.pq) propose
candidates, whose scores are then computed from the rows themselves. Thread counts and other global
settings of FAISS are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.arrays import Rows, Slots, as_float32, blocks, sequential
from capsearch.indexer.embedded.pq import Codes, faiss

# Rows up to which one matrix product takes some milliseconds: float32 as stored; float16 has to be
# converted first.
EXACT_ROWS = {np.dtype("<f4"): 20_000, np.dtype("<f2"): 8_000}


class Nearest(Protocol):
    """Finds candidate rows."""

    def top(self, query: Vectors, depth: int) -> Slots:
        """`depth` rows or more, among them about all with the highest inner products."""
        ...

    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """What `top` finds for the first of rising depths, then what each of the others adds.

        There may be fewer steps than `depths`, but one.
        """
        ...


class ExactSearch:
    """Compares with every row."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def top(self, query: Vectors, depth: int) -> Slots:
        """The `depth` best rows."""
        return best_of(query, self._rows, None, depth)

    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """By one product."""
        return _split(self.top(query, depths[-1]), depths)


class CodeSearch:
    """Scans compressed codes: the best ten are among some hundred, but not all the last of these.

    Rows at the end that have no code yet are compared one by one.
    """

    def __init__(self, rows: Rows, codes: Codes) -> None:
        self._rows, self.codes = rows, codes
        self._uncoded = np.arange(codes.rows, len(rows))

    def top(self, query: Vectors, depth: int) -> Slots:
        """About the `depth` best rows by codes, and as many of those without any."""
        return self.steps(query, [depth])[0]

    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """By one scan, of as many lists as the first depth needs."""
        found = _split(self.codes.top(query, depths[-1], depths[0]), depths)
        if not len(self._uncoded):
            return found
        others = _split(best_of(query, self._rows, self._uncoded, depths[-1]), depths)
        return [np.append(one, other) for one, other in zip(found, others, strict=True)]


class GpuSearch:
    """Exact search on all GPUs. Tested by its interface only: no GPU was at hand."""

    MAX_DEPTH = 2048  # of FAISS on GPUs

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        index = faiss().IndexFlatIP(rows.shape[1])
        for block in sequential(rows):
            index.add(np.ascontiguousarray(as_float32(block)))
        self._index = faiss().index_cpu_to_all_gpus(index)

    def top(self, query: Vectors, depth: int) -> Slots:
        """The `depth` best rows."""
        if depth > self.MAX_DEPTH:
            return best_of(query, self._rows, None, depth)
        row = np.ascontiguousarray(query, np.float32)[None]
        _, slots = self._index.search(row, depth)
        return np.asarray(slots[0][slots[0] >= 0], np.int64)

    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """As many as one search on the GPUs finds."""
        some = [depth for depth in depths if depth <= self.MAX_DEPTH] or depths[:1]
        return _split(self.top(query, some[-1]), some)


def needs_codes(rows: Rows) -> bool:
    """Whether there are too many rows to compare with each of them."""
    return len(rows) > EXACT_ROWS[rows.dtype]


def build(rows: Rows, codes: Callable[[], Codes]) -> Nearest:
    """The search that suits the number of rows and the machine; `codes` only if it needs them."""
    if not needs_codes(rows):
        return ExactSearch(rows)
    return GpuSearch(rows) if faiss().get_num_gpus() > 0 else CodeSearch(rows, codes())


def coded(rows: Rows) -> Codes:
    """Codes of all rows, made now."""
    codes = Codes.of(rows)
    codes.add(rows)
    return codes


def best_of(query: Vectors, rows: Rows, slots: Slots | None, depth: int) -> Slots:
    """The `depth` best of some rows, or of all, by plain arithmetic; the best first."""
    chosen = np.arange(len(rows)) if slots is None else slots
    if slots is None and rows.dtype == np.float32:
        scores = np.asarray(rows @ query)
    else:
        parts = [as_float32(block) @ query for block in blocks(rows, chosen)]
        scores = np.concatenate([np.empty(0, np.float32), *parts])
    best = np.arange(len(chosen))
    if depth < len(chosen):
        best = np.argpartition(-scores, depth - 1)[:depth]
    return np.asarray(chosen[best[np.argsort(-scores[best])]])


def _split(slots: Slots, depths: Sequence[int]) -> list[Slots]:
    """Slots, the best first, at rising depths."""
    return np.split(slots, depths[:-1])


def image_scores(query: EncodedQuery, rows: Rows, slots: Slots) -> NDArray[np.float64]:
    """(n,) what images score: inner products with a query's image vector, and what it names."""
    assert query.image is not None
    scores = exact_scores(query.image, rows, slots)
    if query.named is None:
        return scores
    parts = [query.named.scores(as_float32(block)) for block in blocks(rows, slots, size=256)]
    return np.asarray(scores + np.concatenate([np.empty(0), *parts]))


def exact_scores(query: Vectors, rows: Rows, slots: Slots) -> NDArray[np.float64]:
    """(n,) inner products that depend on query and row alone.

    A matrix product may sum a row differently according to its neighbours; products summed
    row by row in float64 and rounded to float32 cannot.
    """
    wide = query.astype(np.float64)
    parts = [
        np.einsum("nd,d->n", as_float32(block).astype(np.float64), wide)
        for block in blocks(rows, slots, size=32)  # stays in the cache, and in malloc's arena
    ]
    return np.concatenate([np.empty(0), *parts]).astype(np.float32).astype(np.float64)
