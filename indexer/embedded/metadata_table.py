"""Tags and other texts out of an image file's metadata, as the catalog keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from capsearch.engine.records import Tag
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.past_files import METADATA_SOURCES


class MetadataTable:
    """Writes them; call inside a transaction."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._connection = catalog.connection

    def put_tags(self, image_id: str, tags: Sequence[Tag]) -> None:
        """Makes these the only tags from the metadata of an image."""
        marks = ", ".join("?" * len(METADATA_SOURCES))
        self._connection.execute(
            f"DELETE FROM tags WHERE image_id = ? AND source IN ({marks})",
            (image_id, *METADATA_SOURCES),
        )
        self._connection.executemany(
            "INSERT OR REPLACE INTO tags VALUES (?, ?, ?, ?, ?)",
            [(image_id, tag.label, tag.language, tag.confidence, tag.source) for tag in tags],
        )

    def put_fields(self, image_id: str, fields: Mapping[str, str]) -> None:
        """Makes these the only other texts of an image: headline, byline, camera, ..."""
        self._connection.execute("DELETE FROM metadata WHERE image_id = ?", (image_id,))
        self._connection.executemany(
            "INSERT INTO metadata VALUES (?, ?, ?)",
            [(image_id, key, value) for key, value in fields.items()],
        )
