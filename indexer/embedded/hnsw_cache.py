"""HNSW graphs kept beside large arrays, so that a search need not build them again.

`NAME.faiss` belongs to one generation of one array; the catalog keeps its digest under
"graph:NAME". Anything else under that name is not opened but built anew in memory.
"""

from __future__ import annotations

import json
from pathlib import Path

from capsearch.indexer.embedded import nearest
from capsearch.indexer.embedded.arrays import VectorFile
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter

_STALE_SHARE = 10  # a graph that lacks more than a tenth of the rows is written again


def load(catalog: SqliteCatalog, array: VectorFile) -> nearest.Hnsw | None:
    """The graph of an array, completed in memory; None for a small array or without a cache."""
    known = _known(catalog, array)
    if known is None or array.rows <= nearest.FLAT_LIMIT:
        return None
    return nearest.load(array.view(), _path(array), known[0])


def refresh(writer: CatalogWriter, array: VectorFile) -> None:
    """Writes the graph of a large array unless the one on disk still serves."""
    if array.rows <= nearest.FLAT_LIMIT:
        _path(array).unlink(missing_ok=True)
        return
    known = _known(writer.catalog, array)
    if known and _path(array).is_file() and (array.rows - known[1]) * _STALE_SHARE < array.rows:
        return
    graph = load(writer.catalog, array) or nearest.Hnsw(array.view())
    digest = nearest.save(graph, _path(array))
    value = {"digest": digest, "rows": array.rows, "generation": array.generation}
    with writer.transaction(visible=False):
        writer.set_meta(f"graph:{array.name}", json.dumps(value))


def _known(catalog: SqliteCatalog, array: VectorFile) -> tuple[str, int] | None:
    """(digest, rows) of the graph last written for this generation."""
    text = catalog.meta(f"graph:{array.name}")
    value = json.loads(text) if text else {}
    if value.get("generation") != array.generation:
        return None
    return str(value["digest"]), int(value["rows"])


def _path(array: VectorFile) -> Path:
    return array.folder / f"{array.name}.faiss"
