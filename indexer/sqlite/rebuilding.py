"""Rebuilding an index beside itself: the current vectors serve searches until all new ones exist.

The tables `next_arrays`, `next_images` and `next_captions` describe the vectors of the rebuild.
One transaction at the end makes them the current ones, together with the model. A rebuild that
was stopped or killed goes on where it was.

Compaction: vector files without the rows of images and captions that were deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from capsearch.encoders.models.registry import Model
from capsearch.engine.vectors import Rows, Slots, blocks
from capsearch.indexer.identity import Identity
from capsearch.indexer.sqlite.arrays import VectorFile
from capsearch.indexer.sqlite.catalog import SqliteCatalog
from capsearch.indexer.sqlite.collection import Collection, empty_arrays, remove_unreferenced
from capsearch.indexer.sqlite.writer import CatalogWriter

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


_REBUILDING = "rebuilding"
_NEXT = ("next_arrays", "next_images", "next_captions")


class RebuildWriter(CatalogWriter):
    """Writes vectors to the next arrays, everything else as ever."""

    _ENCODED = "EXISTS (SELECT 1 FROM next_images n WHERE n.id = i.id)"
    _PENDING = "NOT EXISTS (SELECT 1 FROM next_captions n WHERE n.id = c.id)"

    def array(self, name: str) -> VectorFile:
        """The vector file of the rebuild."""
        return self.catalog.array(name, "next_arrays")

    def set_array(self, array: VectorFile) -> None:
        """Stores the row count of a vector file of the rebuild."""
        row = (array.name, array.generation, array.dtype, array.width, array.rows)
        self._connection.execute("INSERT OR REPLACE INTO next_arrays VALUES (?, ?, ?, ?, ?)", row)

    def set_caption_slots(self, slots: Sequence[tuple[int, int | None]]) -> None:
        """Marks captions as encoded by the new model."""
        self._connection.executemany("INSERT OR REPLACE INTO next_captions VALUES (?, ?)", slots)

    def set_image_slots(self, slots: Sequence[tuple[str, int | None]]) -> None:
        """Marks images as encoded by the new model."""
        self._connection.executemany("INSERT OR REPLACE INTO next_images VALUES (?, ?)", slots)

    def clear(self) -> None:
        """Deletes what a rebuild has made so far."""
        for table in _NEXT:
            self._connection.execute(f"DELETE FROM {table}")

    def switch(self, model: str) -> None:
        """Makes the vectors of the rebuild the current ones; those without one have none."""
        for table in ("images", "captions"):
            self._connection.execute(f"UPDATE {table} SET slot = NULL WHERE slot IS NOT NULL")
            self._connection.execute(
                f"UPDATE {table} SET slot = n.slot FROM next_{table} n WHERE n.id = {table}.id"
            )
        self._connection.execute(
            "UPDATE captions SET encoded = EXISTS "
            "(SELECT 1 FROM next_captions n WHERE n.id = captions.id)"
        )
        self._connection.execute("INSERT OR REPLACE INTO arrays SELECT * FROM next_arrays")
        self.clear()
        self.set_meta("model", model)
        self.set_meta(_REBUILDING, "")


def start(collection: Collection) -> RebuildWriter:
    """Begins to rebuild the index for the collection's model, or goes on with that.

    With another model of the same backbone, image vectors are projected again from the stored
    features. Otherwise every image is encoded again. Captions always are.
    """
    made, wanted = collection.identity, Identity.of(collection.model)
    writer = RebuildWriter(collection.catalog)
    if collection.catalog.meta(_REBUILDING) == wanted.text():
        return writer
    arrays = _next_arrays(collection, wanted)
    ids: list[tuple[str, int]] = []
    if made.same_backbone(wanted) and not made.same_vectors(wanted):
        ids = _encoded(writer, "SELECT id, slot FROM images WHERE slot IS NOT NULL ORDER BY slot")
        slots = np.array([slot for _, slot in ids], np.int64)
        arrays |= _projected(collection, arrays, slots)
    with writer.transaction(visible=False):
        writer.clear()
        for array in arrays.values():
            writer.set_array(array)
        writer.set_image_slots([(image_id, row) for row, (image_id, _) in enumerate(ids)])
        writer.set_meta(_REBUILDING, wanted.text())
        writer.clear_skipped()
    remove_old_files(collection)
    return writer


def finish(collection: Collection, writer: RebuildWriter) -> None:
    """Switches to the new vectors, all at once.

    Images whose files are out of reach keep the vectors they have if the model is the same.
    """
    wanted = Identity.of(collection.model)
    if collection.identity.same_vectors(wanted):
        _keep_unreachable(collection, writer)
    with writer.transaction():
        writer.switch(wanted.text())
    remove_old_files(collection)


def _next_arrays(collection: Collection, wanted: Identity) -> dict[str, VectorFile]:
    """Empty vector files of generations that no file has."""
    return {
        empty.name: replace(empty, generation=collection.catalog.last_generation(empty.name) + 1)
        for empty in empty_arrays(collection.path, wanted)
    }


def _projected(
    collection: Collection, arrays: dict[str, VectorFile], slots: Slots
) -> dict[str, VectorFile]:
    """The stored features and their projections by the new model, row n from slots[n]."""
    features = collection.catalog.array("features").view()
    return {
        "features": arrays["features"].filled(blocks(features, slots)),
        "vectors": arrays["vectors"].filled(
            _project(collection.model, block) for block in blocks(features, slots)
        ),
    }


def _project(model: Model, features: Rows) -> Rows:
    return model.image.project(features.astype(np.float32))


def _keep_unreachable(collection: Collection, writer: RebuildWriter) -> None:
    ids = _encoded(
        writer,
        "SELECT id, slot FROM images i WHERE slot IS NOT NULL "
        "AND NOT EXISTS (SELECT 1 FROM next_images n WHERE n.id = i.id) ORDER BY slot",
    )
    if not ids:
        return
    slots = np.array([slot for _, slot in ids], np.int64)
    first, arrays = writer.array("features").rows, []
    for name in ("features", "vectors"):
        array = writer.array(name)
        for block in blocks(collection.catalog.array(name).view(), slots):
            array = array.appended(block)
        arrays.append(array)
    with writer.transaction(visible=False):
        for array in arrays:
            writer.set_array(array)
        writer.set_image_slots([(one, row) for row, (one, _) in enumerate(ids, start=first)])


def _encoded(writer: RebuildWriter, sql: str) -> list[tuple[str, int]]:
    return [(image_id, slot) for image_id, slot in writer.catalog.rows(sql)]
