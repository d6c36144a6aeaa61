"""Other ways to find the ten rows with the highest inner product, measured like ours.

Each is built and asked in a process of its own. Those that need a package which is not installed
are left out, as are graphs of more rows than GRAPH_ROWS: they take too long to build.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from time import perf_counter
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.nearest import Nearest, exact_scores
from capsearch.indexer.embedded.pool import BestRows
from capsearch.indexer.embedded.ranking import MIN_DEPTH

TOP = 10
GRAPH_ROWS = 100_000
LINKS, EFFORT, SEARCH_EFFORT = 16, 100, 100  # of the graphs: M, ef_construction, ef
Answer: TypeAlias = NDArray[np.int64]
Search: TypeAlias = Callable[[Vectors], Answer]


@dataclass(frozen=True, slots=True)
class Peer:
    """What one of them took, and what it found."""

    name: str
    build_s: float
    seconds: tuple[float, ...]  # one for each query
    found: tuple[tuple[int, ...], ...]


def numpy_search(rows: Vectors) -> Search:
    """Brute force: one matrix product over all rows."""

    def search(query: Vectors) -> Answer:
        scores = rows @ query  # (N, D) x (D,) -> (N,)
        best = np.argpartition(-scores, TOP)[:TOP]
        return np.asarray(best[np.argsort(-scores[best])])

    return search


def faiss_flat(rows: Vectors) -> Search:
    """FAISS's exact index."""
    import faiss

    index: Any = faiss.IndexFlatIP(rows.shape[1])
    index.add(np.ascontiguousarray(rows))
    return lambda query: np.asarray(index.search(query[None], TOP)[1][0])


def hnswlib_graph(rows: Vectors) -> Search:
    """A graph of hnswlib."""
    import hnswlib

    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(len(rows), M=LINKS, ef_construction=EFFORT)
    index.add_items(rows)
    index.set_ef(SEARCH_EFFORT)
    return lambda query: np.asarray(index.knn_query(query[None], TOP)[0][0], np.int64)


def usearch_graph(rows: Vectors) -> Search:
    """A graph of usearch."""
    from usearch.index import Index

    index = Index(
        ndim=rows.shape[1],
        metric="ip",
        dtype="f32",
        connectivity=LINKS,
        expansion_add=EFFORT,
        expansion_search=SEARCH_EFFORT,
    )
    index.add(np.arange(len(rows)), np.ascontiguousarray(rows))
    return lambda query: np.asarray(index.search(query, TOP).keys, np.int64)


def codes_search(search: Nearest, rows: Vectors) -> Search:
    """Ours: candidates and their exact scores, as the embedded backend searches."""

    def top(query: Vectors) -> Answer:
        score = partial(exact_scores, query, rows)
        slots, _ = BestRows(query, rows, search, None, score).find(MIN_DEPTH).first(TOP)
        return slots

    return top


EXACT: Mapping[str, tuple[str, Callable[[Vectors], Search]]] = {
    "numpy": ("numpy", numpy_search),
    "FAISS flat": ("faiss", faiss_flat),
}
GRAPHS: Mapping[str, tuple[str, Callable[[Vectors], Search]]] = {
    "hnswlib": ("hnswlib", hnswlib_graph),
    "usearch": ("usearch", usearch_graph),
}


def names(rows: int) -> Iterator[str]:
    """Those that can be measured with so many rows."""
    known = {**EXACT, **GRAPHS} if rows <= GRAPH_ROWS else EXACT
    return (name for name, (package, _) in known.items() if find_spec(package) is not None)


def measure(name: str, rows: Vectors, queries: Vectors) -> Peer:
    """Builds one of them and asks it every query."""
    _, build = {**EXACT, **GRAPHS}[name]
    return measured(name, lambda: build(rows), queries)


def measured(name: str, build: Callable[[], Search], queries: Vectors) -> Peer:
    """Builds a search and asks it every query, the first one twice: it warms up."""
    started = perf_counter()
    search = build()
    built = perf_counter() - started
    search(queries[0])
    seconds, found = [], []
    for query in queries:
        started = perf_counter()
        slots = search(query)
        seconds.append(perf_counter() - started)
        found.append(tuple(slots.tolist()))
    return Peer(name, built, tuple(seconds), tuple(found))
