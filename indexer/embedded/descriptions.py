"""What models write about the images of an index folder, one transaction for each batch."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from capsearch.engine.records import Caption, ImageRecord, Tag, Vectors
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.enriched import EnrichedTable
from capsearch.indexer.embedded.facets import StoredFacets
from capsearch.indexer.store import Head

_SLOTS = "SELECT id, slot FROM images WHERE slot IS NOT NULL AND id IN ({})"
_GIVEN = "SELECT value FROM json_each(?)"


class EmbeddedDescriptions:
    """indexer.store.Descriptions over a catalog; `make_searchable` encodes and indexes captions."""

    def __init__(self, writer: CatalogWriter, make_searchable: Callable[[], None]) -> None:
        self._writer, self._make_searchable = writer, make_searchable
        self._catalog = writer.catalog
        self._table, self._facets = EnrichedTable(writer.catalog), StoredFacets(writer)

    def count(self, head: Head, name: str, folders: Sequence[str] = ()) -> int:
        """How many images the model called `name` has not described."""
        return self._table.count(head, name, folders)

    def pending(
        self, head: Head, name: str, folders: Sequence[str], after: str, limit: int
    ) -> list[str]:
        """The next of them by id, after one."""
        return self._table.pending(head, name, folders, after, limit)

    def features(self, ids: Sequence[str]) -> Mapping[str, Vectors]:
        """Rows of the vector file."""
        found = self._catalog.rows(_SLOTS.format(_GIVEN), (json.dumps(list(ids)),))
        rows = self._catalog.array("features").view()
        return {image_id: np.array(rows[slot], np.float32) for image_id, slot in found}

    def records(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Images by id."""
        return self._catalog.images(ids)

    def reset(self, folders: Sequence[str] = ()) -> None:
        """Makes images pending for every model."""
        with self._writer.transaction(visible=False):
            self._table.reset(folders)

    def put_tags(self, model: str, tags: Mapping[str, Sequence[Tag]]) -> None:
        """Makes these the only generated tags of images."""
        with self._writer.transaction():
            for image_id, found in tags.items():
                self._table.put_tags(image_id, model, found)

    def put_captions(self, model: str, captions: Mapping[str, Sequence[Caption]]) -> int:
        """Makes these the only generated captions of images, but for what people decided."""
        with self._writer.transaction():
            kept = sum(
                self._table.put_captions(image_id, model, found)
                for image_id, found in captions.items()
            )
        self._facets.refresh_now_and_then()
        return kept

    def accept(self, image_id: str, caption: Caption, text: str, language: str) -> bool:
        """A generated caption becomes a person's."""
        return self._review(
            image_id, caption, lambda: self._table.accept(image_id, caption, text, language)
        )

    def reject(self, image_id: str, caption: Caption) -> bool:
        """A generated caption goes and does not come back."""
        return self._review(image_id, caption, lambda: self._table.reject(image_id, caption))

    def _review(self, image_id: str, caption: Caption, change: Callable[[], None]) -> bool:
        if caption not in self._catalog.captions([image_id]).get(image_id, ()):
            return False
        with self._writer.transaction():
            change()
        self._make_searchable()
        return True
