"""Rewriting an index: rebuilding with another model, and compaction after deletions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from capsearch.encoders.models import Model
from capsearch.indexer.embedded.arrays import Rows, Slots, VectorFile, blocks, remove_unreferenced
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.collection import ARRAYS, Collection, empty_arrays
from capsearch.indexer.embedded.manifest import Identity

_TABLES = {"images": ("features", "vectors"), "captions": ("captions",)}
_REBUILDING = "rebuilding"
MAX_UNUSED = 1 / 3  # of a vector file's rows


def rebuild(collection: Collection) -> None:
    """Switches the index to the collection's model.

    With another model of the same backbone, image vectors are projected again from the stored
    features, and captions are marked for encoding. With another backbone, or with the same
    model, all images and captions are marked for encoding. The texts of captions and tags stay.
    If the process is killed, the index is either still the old one, or the new one with images
    and captions left to encode; the next rebuild continues there.
    """
    made, wanted = collection.identity, Identity.of(collection.model)
    if collection.catalog.meta(_REBUILDING) == wanted.text():
        return
    if made.same_backbone(wanted) and not made.same_vectors(wanted):
        _reproject(collection, wanted)
    else:
        _clear_vectors(collection, wanted)


def finish_rebuild(collection: Collection) -> None:
    """Marks the rebuild as complete, so that the next one starts from the beginning."""
    writer = CatalogWriter(collection.catalog)
    with writer.transaction(visible=False):
        writer.set_meta(_REBUILDING, "")


def compact(collection: Collection) -> None:
    """Rewrites vector files of which more than MAX_UNUSED of the rows are unused."""
    for table, names in _TABLES.items():
        slots = used_slots(collection.catalog, table)
        rows = collection.catalog.array(names[0]).rows
        if rows - len(slots) > rows * MAX_UNUSED:
            _drop_unused(collection, table, names, slots)


def used_slots(catalog: SqliteCatalog, table: str) -> Slots:
    """The rows that the table "images" or "captions" refers to, ascending."""
    sql = f"SELECT slot FROM {table} WHERE slot IS NOT NULL ORDER BY slot"
    return np.array([row[0] for row in catalog.rows(sql)], np.int64)


def _drop_unused(collection: Collection, table: str, names: Sequence[str], slots: Slots) -> None:
    # The new files come first, then one transaction that switches to them; the old ones go last.
    old = [collection.catalog.array(name) for name in names]
    new = [array.rewritten(blocks(array.view(), slots)) for array in old]
    writer = CatalogWriter(collection.catalog)
    with writer.transaction():
        for array in new:
            writer.set_array(array)
        writer.renumber(table, slots.tolist())
    _remove_old_files(collection)


def _reproject(collection: Collection, wanted: Identity) -> None:
    catalog, writer = collection.catalog, CatalogWriter(collection.catalog)
    features = catalog.array("features").view()
    vectors = catalog.array("vectors").rewritten(
        _projected(collection.model, features), wanted.dimension
    )
    with writer.transaction():
        writer.set_array(vectors)
        writer.set_array(_emptied(catalog.array("captions"), wanted.caption_dimension))
        writer.clear_vectors("captions")
        writer.set_meta("model", wanted.text())
        writer.set_meta(_REBUILDING, wanted.text())
    _remove_old_files(collection)


def _clear_vectors(collection: Collection, wanted: Identity) -> None:
    writer = CatalogWriter(collection.catalog)
    with writer.transaction():
        for empty in empty_arrays(collection.path, wanted):
            writer.set_array(_emptied(collection.catalog.array(empty.name), empty.width))
        writer.clear_vectors("images", "captions")
        writer.clear_skipped()
        writer.set_meta("model", wanted.text())
        writer.set_meta(_REBUILDING, wanted.text())
    _remove_old_files(collection)


def _emptied(array: VectorFile, width: int) -> VectorFile:
    return replace(array, generation=array.generation + 1, width=width, rows=0)


def _projected(model: Model, features: Rows) -> Iterator[Rows]:
    for block in blocks(features, np.arange(len(features))):
        yield model.image.project(block.astype(np.float32))


def _remove_old_files(collection: Collection) -> None:
    remove_unreferenced(collection.path, [collection.catalog.array(name) for name in ARRAYS])
