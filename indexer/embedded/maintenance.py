"""Rewriting an index: another model's vectors, and compaction once deletions left holes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from capsearch.encoders.models import Model
from capsearch.indexer.embedded.arrays import Rows, Slots, VectorFile, blocks, remove_unreferenced
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.collection import ARRAYS, Collection, first_arrays
from capsearch.indexer.embedded.manifest import Identity

_TABLES = {"images": ("features", "vectors"), "captions": ("captions",)}
_REBUILDING = "rebuilding"
MAX_HOLES = 1 / 3  # of an array's rows


def rebuild(collection: Collection) -> None:
    """Makes the collection's model the index's model.

    With the same backbone, vectors are projected anew from the stored features and captions
    wait to be encoded anew. With another backbone (or the very same model: someone wants a
    fresh start) every image waits to be embedded again. Captions and tags stay. Killed at
    any point, the index is either still the old one or already the new one with work to do,
    and the next rebuild goes on with that work.
    """
    made, wanted = collection.identity, Identity.of(collection.model)
    if collection.catalog.meta(_REBUILDING) == wanted.text():
        return
    if made.same_backbone(wanted) and not made.same_vectors(wanted):
        _project_again(collection, wanted)
    else:
        _start_over(collection, wanted)


def rebuilt(collection: Collection) -> None:
    """Says that a run came to its end: another rebuild starts afresh."""
    writer = CatalogWriter(collection.catalog)
    with writer.transaction(visible=False):
        writer.set_meta(_REBUILDING, "")


def compact(collection: Collection) -> None:
    """Closes the holes of arrays that are more than a third holes."""
    for table, names in _TABLES.items():
        slots = live_slots(collection.catalog, table)
        rows = collection.catalog.array(names[0]).rows
        if rows - len(slots) > rows * MAX_HOLES:
            _close_holes(collection, table, names, slots)


def live_slots(catalog: SqliteCatalog, table: str) -> Slots:
    """The rows that "images" or "captions" refer to, ascending."""
    sql = f"SELECT slot FROM {table} WHERE slot IS NOT NULL ORDER BY slot"
    return np.array([row[0] for row in catalog.rows(sql)], np.int64)


def _close_holes(collection: Collection, table: str, names: Sequence[str], slots: Slots) -> None:
    # First the new files, then one transaction that switches to them; the old ones go last.
    old = [collection.catalog.array(name) for name in names]
    new = [array.rewritten(blocks(array.view(), slots)) for array in old]
    writer = CatalogWriter(collection.catalog)
    with writer.transaction():
        for array in new:
            writer.set_array(array)
        writer.renumber(table, slots.tolist())
    _tidy(collection)


def _project_again(collection: Collection, wanted: Identity) -> None:
    catalog, writer = collection.catalog, CatalogWriter(collection.catalog)
    features = catalog.array("features").view()
    vectors = catalog.array("vectors").rewritten(
        _projected(collection.model, features), wanted.dimension
    )
    with writer.transaction():
        writer.set_array(vectors)
        writer.set_array(_emptied(catalog.array("captions"), wanted.caption_dimension))
        writer.forget_vectors("captions")
        writer.set_meta("model", wanted.text())
        writer.set_meta(_REBUILDING, wanted.text())
    _tidy(collection)


def _start_over(collection: Collection, wanted: Identity) -> None:
    writer = CatalogWriter(collection.catalog)
    with writer.transaction():
        for empty in first_arrays(collection.path, wanted):
            writer.set_array(_emptied(collection.catalog.array(empty.name), empty.width))
        writer.forget_vectors("images", "captions")
        writer.forget_refusals()
        writer.set_meta("model", wanted.text())
        writer.set_meta(_REBUILDING, wanted.text())
    _tidy(collection)


def _emptied(array: VectorFile, width: int) -> VectorFile:
    return replace(array, generation=array.generation + 1, width=width, rows=0)


def _projected(model: Model, features: Rows) -> Iterator[Rows]:
    for block in blocks(features, np.arange(len(features))):
        yield model.image.project(block.astype(np.float32))


def _tidy(collection: Collection) -> None:
    remove_unreferenced(collection.path, [collection.catalog.array(name) for name in ARRAYS])
