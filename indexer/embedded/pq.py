"""Compressed codes of the rows of a vector file, and the search over them.

Product quantization (Jégou et al. 2011) to some hundred parts of 4 bits, scanned in registers (fast
scan, André et al. 2015, as FAISS does it). Large files are divided into lists by
k-means, and a search scans those lists whose centres score highest (IVF). Inner products with all
coordinates: the hubness penalty is one of them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.arrays import Rows, Slots, as_float32, sequential
from capsearch.indexer.embedded.threads import Threads

BLOCK_ROWS = 32  # in a block of FAISS's fast scan
MAX_LISTS = 1024
_PARTS = 340  # sub-quantizers, about
_CENTRES = 16  # of each
# One list up to here: scanning 300,000 rows takes 2 ms. Above, a list for every 16,000 rows.
_LISTED_ROWS, _ROWS_PER_LIST = 300_000, 16_000
_TRAINING_ROWS = 16_384
_MIN_PROBES, _PROBED_SHARE = 24, 1 / 4  # of the lists; measured, docs/scale.md
_PROBED_DEPTH = 64  # all lists are scanned for more than one of so many rows
_OUTGROWN_BY = 4  # times as many lists would suit
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that follow from the width of a row and the number of lists."""

    width: int
    lists: int

    @property
    def part(self) -> int:
        """Coordinates in a part."""
        return max(1, round(self.width / _PARTS))

    @property
    def parts(self) -> int:
        """Sub-quantizers."""
        return -(-self.width // self.part)

    @property
    def padded(self) -> int:
        """D: rows are filled up with zeros to whole parts."""
        return self.part * self.parts

    @property
    def code_bytes(self) -> int:
        """Of one row."""
        return (self.parts + 1) // 2

    def list_bytes(self, rows: int) -> int:
        """Of the codes of a list, in whole blocks."""
        return -(-rows // BLOCK_ROWS) * BLOCK_ROWS * self.code_bytes


class Codes:
    """Codes of the first `rows` rows of a vector file."""

    def __init__(self, shape: Shape, index: Any, writable: bool = True) -> None:
        self.shape, self.index, self.writable = shape, index, writable
        self.probes = min(shape.lists, max(_MIN_PROBES, int(shape.lists * _PROBED_SHARE)))

    @classmethod
    def of(cls, rows: Rows) -> Codes:
        """Trained on some of the rows; none has a code yet."""
        shape = Shape(rows.shape[1], lists_for(len(rows)))
        index = empty_index(shape)
        chosen = np.linspace(0, len(rows) - 1, max(_TRAINING_ROWS, 64 * shape.lists))
        sample = _padded(as_float32(rows[np.unique(chosen.astype(np.int64))]), shape)
        sample = np.resize(sample, (max(len(sample), _CENTRES), shape.padded))  # too few: repeated
        _one_thread(lambda: index.train(sample))
        return cls(shape, index)

    @property
    def rows(self) -> int:
        """How many rows have a code."""
        return int(self.index.ntotal)

    def add(self, rows: Rows) -> None:
        """Gives a code to the rows that have none; only where codes are `writable`."""
        for block in sequential(rows, self.rows):
            self.index.add(_padded(as_float32(block), self.shape))

    def outgrown(self, rows: int) -> bool:
        """So many more rows than at first want codes that it is better to train again."""
        return lists_for(rows) >= _OUTGROWN_BY * self.shape.lists

    def top(self, query: Vectors, depth: int, needed: int | None = None) -> Slots:
        """About the `depth` best rows, the best first.

        If only some are `needed`, no more lists are scanned than these need.
        """
        row = _padded(query[None].astype(np.float32), self.shape)
        depth = min(depth, self.rows)
        # The lists next to the query may hold too few.
        deep = min(needed or depth, depth) * _PROBED_DEPTH > self.rows
        probes = self.shape.lists if deep else self.probes
        chosen = faiss().SearchParametersIVF(nprobe=probes)
        _, found = _one_thread(lambda: self.index.search(row, depth, params=chosen))
        inside = (found[0] >= 0) & (found[0] < self.rows)  # also of a damaged file
        return np.asarray(found[0][inside], np.int64)


def lists_for(rows: int) -> int:
    """How many lists suit so many rows."""
    return 1 if rows <= _LISTED_ROWS else min(rows // _ROWS_PER_LIST, MAX_LISTS)


def empty_index(shape: Shape) -> Any:
    """FAISS's index, not trained."""
    return faiss().IndexIVFPQFastScan(
        faiss().IndexFlatIP(shape.padded),
        shape.padded,
        shape.lists,
        shape.parts,
        4,
        faiss().METRIC_INNER_PRODUCT,
    )


def faiss() -> Any:
    """The library, imported when first needed; its type stubs lack most of what is used here."""
    import faiss

    return faiss


def _one_thread(work: Callable[[], Result]) -> Result:
    """Runs FAISS in one thread.

    With several it takes ten times as long to train small codebooks, and no less to search for one
    query: its threads wait for each other more than they work, and hold the cores meanwhile. The
    number of OpenMP threads belongs to the thread that sets it, so the caller's stays as it is.
    """
    return _threads.submit(work).result()


_threads = Threads(4, lambda: faiss().omp_set_num_threads(1))  # searches at once; more wait


def _padded(rows: Vectors, shape: Shape) -> Vectors:
    """(N, width) -> (N, D)."""
    if shape.padded == shape.width:
        return np.ascontiguousarray(rows, np.float32)
    wide = np.zeros((len(rows), shape.padded), np.float32)
    wide[:, : shape.width] = rows
    return wide
