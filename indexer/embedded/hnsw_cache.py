"""HNSW graphs cached on disk beside large vector files, so that a search need not build them.

`NAME.faiss` belongs to one generation of one vector file. The catalog stores its digest under the
key "graph:NAME"; a file with another digest is not opened, and the graph is built in memory.
"""

from __future__ import annotations

import json
from pathlib import Path

from capsearch.indexer.embedded import nearest
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter

_MAX_MISSING = 0.1  # of the rows; a cached graph that lacks more is written again


def load(catalog: SqliteCatalog, array: VectorFile) -> nearest.Hnsw | None:
    """The cached graph with later rows added in memory; None if there is none, or few rows."""
    cached = _cached(catalog, array)
    if cached is None or array.rows <= nearest.FLAT_LIMIT:
        return None
    return nearest.load(array.view(), _path(array), cached[0])


def refresh(writer: CatalogWriter, array: VectorFile) -> None:
    """Writes the graph of a large vector file unless the cached one is recent enough."""
    if array.rows <= nearest.FLAT_LIMIT:
        _path(array).unlink(missing_ok=True)
        return
    cached = _cached(writer.catalog, array)
    if cached and _path(array).is_file() and array.rows - cached[1] < array.rows * _MAX_MISSING:
        return
    graph = load(writer.catalog, array) or nearest.Hnsw(array.view())
    digest = nearest.save(graph, _path(array))
    value = {"digest": digest, "rows": array.rows, "generation": array.generation}
    with writer.transaction(visible=False):
        writer.set_meta(f"graph:{array.name}", json.dumps(value))


def _cached(catalog: SqliteCatalog, array: VectorFile) -> tuple[str, int] | None:
    """(digest, rows) of the graph cached for this generation, or None."""
    text = catalog.meta(f"graph:{array.name}")
    value = json.loads(text) if text else {}
    if value.get("generation") != array.generation:
        return None
    return str(value["digest"]), int(value["rows"])


def _path(array: VectorFile) -> Path:
    return array.folder / f"{array.name}.faiss"
