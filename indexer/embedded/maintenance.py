"""Compaction: vector files without the rows of images and captions that were deleted."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from capsearch.indexer.embedded.arrays import Slots, blocks
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.embedded.own_files import remove_unreferenced

_TABLES = {"images": ("features", "vectors"), "captions": ("captions",)}
MAX_UNUSED = 1 / 3  # of a vector file's rows


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


def remove_old_files(collection: Collection) -> None:
    """Deletes vector files that the catalog no longer names."""
    remove_unreferenced(collection.path, collection.catalog)


def _drop_unused(collection: Collection, table: str, names: Sequence[str], slots: Slots) -> None:
    # The new files come first, then one transaction that switches to them; the old ones go last.
    catalog = collection.catalog
    new = [
        catalog.array(name)
        .emptied(catalog.last_generation(name) + 1)
        .filled(blocks(catalog.array(name).view(), slots))
        for name in names
    ]
    writer = CatalogWriter(catalog)
    with writer.transaction():
        for array in new:
            writer.set_array(array)
        writer.renumber(table, slots.tolist())
    remove_old_files(collection)
