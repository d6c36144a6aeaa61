"""Nearest rows by FAISS: an exact flat search up to 100,000 rows, an HNSW graph above.

The flat index is moved to the GPU where FAISS has one. A graph search is approximate: it may miss
rows. Thread counts and other global settings of FAISS are not changed.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders import atomic
from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.arrays import Rows, Slots, blocks

Mask: TypeAlias = NDArray[np.bool_]  # (rows,)

FLAT_LIMIT = 100_000  # rows; up to this size an exact search is as fast as an approximate one
_LINKS, _EF_CONSTRUCTION = 32, 200  # HNSW's M; a vector takes 4d + 8M bytes
_MIN_EF_SEARCH = 256


@dataclass(frozen=True, slots=True)
class Nearest:
    """The best rows for a query, and the lowest score among them.

    After an exact search no other row scores higher than `lowest` by more than rounding. After
    a graph search one may: the graph can miss rows.
    """

    slots: Slots
    lowest: float


class Flat:
    """Exact search: compares the query with every row."""

    def __init__(self, rows: Rows) -> None:
        index = _faiss().IndexFlatIP(rows.shape[1])
        _add(index, rows, 0)
        self._rows = rows
        self._on_gpu = _faiss().get_num_gpus() > 0
        self._index = _faiss().index_cpu_to_all_gpus(index) if self._on_gpu else index

    def nearest(self, query: Vectors, depth: int, mask: Mask | None) -> Nearest:
        """The `depth` best rows where `mask` is True.

        FAISS has no selectors on a GPU, so a masked search there scans the rows.
        """
        if self._on_gpu and mask is not None:
            return scan(query, self._rows, depth, mask)
        selector, bits = _selector(mask)
        return _search(self._index, query, depth, _faiss().SearchParameters(sel=selector), bits)


class Hnsw:
    """Approximate search on an HNSW graph, which may miss rows.

    Searches among few rows, and searches for many of them, scan all rows and are exact.
    """

    def __init__(self, rows: Rows, index: Any = None) -> None:
        if index is None:
            index = _faiss().IndexHNSWFlat(rows.shape[1], _LINKS, _faiss().METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _EF_CONSTRUCTION
        _add(index, rows, index.ntotal)
        self._rows, self.index = rows, index

    def nearest(self, query: Vectors, depth: int, mask: Mask | None) -> Nearest:
        """Approximately the best rows: `depth` of them, or efSearch of them when a graph is used.

        efSearch grows in steps of a factor of four. Two depths within one step visit the same
        nodes and return the same rows; a depth of another step may find rows that this missed.
        """
        total = len(self._rows) if mask is None else int(mask.sum())
        ef_search = _MIN_EF_SEARCH
        while ef_search < depth:
            ef_search *= 4
        if total <= FLAT_LIMIT or 8 * ef_search > total:
            return scan(query, self._rows, depth, mask)
        selector, bits = _selector(mask)
        parameters = _faiss().SearchParametersHNSW(sel=selector, efSearch=ef_search)
        return _search(self.index, query, ef_search, parameters, bits)


def build(rows: Rows) -> Flat | Hnsw:
    """A flat index for up to FLAT_LIMIT rows, a graph for more."""
    return Flat(rows) if len(rows) <= FLAT_LIMIT else Hnsw(rows)


def scan(query: Vectors, rows: Rows, depth: int, mask: Mask | None) -> Nearest:
    """Exact search with numpy over the rows where `mask` is True."""
    slots = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    parts = [block.astype(np.float32) @ query for block in blocks(rows, slots)]
    scores = np.concatenate([np.empty(0, np.float32), *parts])
    if depth < len(slots):
        best = np.argpartition(-scores, depth - 1)[:depth]
        slots, scores = slots[best], scores[best]
    return Nearest(slots, float(scores.min(initial=np.inf)))


def save(index: Hnsw, path: Path) -> str:
    """Writes the graph to `path`; returns the digest that `load` requires."""
    with atomic.replacing(path) as temporary:
        _faiss().write_index(index.index, str(temporary))
        return _digest(temporary)


def load(rows: Rows, path: Path, digest: str) -> Hnsw | None:
    """The graph from `path` with the rows appended since then added to it.

    None when there is no file, when its digest is another one, or when it does not fit `rows`.
    A crafted FAISS file can corrupt memory (faiss #5400), so only files we wrote are opened.
    """
    if not path.is_file() or _digest(path) != digest:
        return None
    index = _faiss().read_index(str(path))
    fits = index.d == rows.shape[1] and index.ntotal <= len(rows)
    return Hnsw(rows, index) if fits else None


def _faiss() -> Any:
    """The library, imported on first use; Any, as its type stubs lack most of what is used here."""
    import faiss

    return faiss


def _add(index: Any, rows: Rows, start: int) -> None:
    for block in blocks(rows, np.arange(start, len(rows))):
        index.add(np.ascontiguousarray(block, np.float32))


def _selector(mask: Mask | None) -> tuple[Any, Any]:
    """A FAISS selector, and the bits it points to: hold on to both while searching."""
    if mask is None:
        return None, None
    bits = np.packbits(mask, bitorder="little")
    return _faiss().IDSelectorBitmap(bits), bits


def _search(index: Any, query: Vectors, depth: int, parameters: Any, bits: Any) -> Nearest:
    row = np.ascontiguousarray(query, np.float32)[None]
    scores, slots = index.search(row, depth, params=parameters)
    filled = slots[0] >= 0  # FAISS pads with -1 when it finds fewer rows
    return Nearest(slots[0][filled], float(scores[0][filled].min(initial=np.inf)))


def _digest(path: Path) -> str:
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            state.update(chunk)
    return state.hexdigest()
