"""Candidates by FAISS: Flat for up to 100,000 rows, HNSW above, on a GPU where there is one.

Thread counts and other global settings of FAISS are left as they are.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.arrays import Rows, Slots, blocks, flush_folder

Mask: TypeAlias = NDArray[np.bool_]  # (rows,)

FLAT_LIMIT = 100_000  # rows; up to here exact search is as quick as any
_LINKS, _BUILD_EFFORT = 32, 200  # HNSW: 4d + 8M bytes a vector
_MIN_EFFORT = 256


@dataclass(frozen=True, slots=True)
class Nearest:
    """Rows near a query, and a score that no row left out exceeds by more than rounding."""

    slots: Slots
    least: float


class Flat:
    """Exact: compares with every row."""

    def __init__(self, rows: Rows) -> None:
        index = _faiss().IndexFlatIP(rows.shape[1])
        _add(index, rows, 0)
        self._rows = rows
        self._on_gpu = _faiss().get_num_gpus() > 0
        self._index = _faiss().index_cpu_to_all_gpus(index) if self._on_gpu else index

    def nearest(self, query: Vectors, depth: int, mask: Mask | None) -> Nearest:
        """The `depth` best rows. Selectors do not exist on a GPU: those searches scan."""
        if self._on_gpu and mask is not None:
            return scan(query, self._rows, depth, mask)
        selector, held = _selector(mask)
        return _found(self._index, query, depth, _faiss().SearchParameters(sel=selector), held)


class Hnsw:
    """Approximate: walks a graph of neighbours. Small or deep searches are exact."""

    def __init__(self, rows: Rows, index: Any = None) -> None:
        if index is None:
            index = _faiss().IndexHNSWFlat(rows.shape[1], _LINKS, _faiss().METRIC_INNER_PRODUCT)
            index.hnsw.efConstruction = _BUILD_EFFORT
        _add(index, rows, index.ntotal)
        self._rows, self.index = rows, index

    def nearest(self, query: Vectors, depth: int, mask: Mask | None) -> Nearest:
        """About the `depth` best rows.

        The effort comes in steps of four, so that two depths within one step walk the same
        way and the shorter answer begins the longer one.
        """
        total = len(self._rows) if mask is None else int(mask.sum())
        effort = _MIN_EFFORT
        while effort < depth:
            effort *= 4
        if total <= FLAT_LIMIT or 8 * effort > total:
            return scan(query, self._rows, depth, mask)
        selector, held = _selector(mask)
        parameters = _faiss().SearchParametersHNSW(sel=selector, efSearch=effort)
        return _found(self.index, query, effort, parameters, held)


def build(rows: Rows) -> Flat | Hnsw:
    """The index that suits the number of rows."""
    return Flat(rows) if len(rows) <= FLAT_LIMIT else Hnsw(rows)


def scan(query: Vectors, rows: Rows, depth: int, mask: Mask | None) -> Nearest:
    """Exact search by plain arithmetic over the rows allowed."""
    slots = np.arange(len(rows)) if mask is None else np.flatnonzero(mask)
    parts = [block.astype(np.float32) @ query for block in blocks(rows, slots)]
    scores = np.concatenate([np.empty(0, np.float32), *parts])
    if depth < len(slots):
        best = np.argpartition(-scores, depth - 1)[:depth]
        slots, scores = slots[best], scores[best]
    return Nearest(slots, float(scores.min(initial=np.inf)))


def save(index: Hnsw, path: Path) -> str:
    """Writes the graph as a cache; the digest that `load` wants to see again."""
    temporary = path.with_suffix(".tmp")
    _faiss().write_index(index.index, str(temporary))
    digest = _digest(temporary)
    temporary.replace(path)
    flush_folder(path.parent)
    return digest


def load(rows: Rows, path: Path, digest: str) -> Hnsw | None:
    """The graph from a cache, brought up to date with rows added since.

    None when there is none or it is not the file that was written: FAISS files made by
    someone else can do harm (faiss #5400), so only our own are ever opened.
    """
    if not path.is_file() or _digest(path) != digest:
        return None
    index = _faiss().read_index(str(path))
    fits = index.d == rows.shape[1] and index.ntotal <= len(rows)
    return Hnsw(rows, index) if fits else None


def _faiss() -> Any:
    """The library, opened when first needed; its type stubs lack most of what is used here."""
    import faiss

    return faiss


def _add(index: Any, rows: Rows, start: int) -> None:
    for block in blocks(rows, np.arange(start, len(rows))):
        index.add(np.ascontiguousarray(block, np.float32))


def _selector(mask: Mask | None) -> tuple[Any, Any]:
    """A FAISS selector, and the memory it points into: keep both while searching."""
    if mask is None:
        return None, None
    bits = np.packbits(mask, bitorder="little")
    return _faiss().IDSelectorBitmap(bits), bits


def _found(index: Any, query: Vectors, depth: int, parameters: Any, held: Any) -> Nearest:
    row = np.ascontiguousarray(query, np.float32)[None]
    scores, slots = index.search(row, depth, params=parameters)
    found = slots[0] >= 0
    return Nearest(slots[0][found], float(scores[0][found].min(initial=np.inf)))


def _digest(path: Path) -> str:
    state = hashlib.blake2b(digest_size=16)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            state.update(chunk)
    return state.hexdigest()
