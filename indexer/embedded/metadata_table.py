"""Tags and other texts out of an image file's metadata, as the catalog keeps them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import astuple

from capsearch.encoders import concepts
from capsearch.engine.records import GENERATED, Tag
from capsearch.indexer.embedded.catalog import SqliteCatalog
from capsearch.indexer.embedded.past_files import METADATA_SOURCES

_LINKED = "concepts"  # meta
_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"


class MetadataTable:
    """Writes them; call inside a transaction."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog, self._connection = catalog, catalog.connection

    def linked_with(self) -> str | None:
        """The version of the concept table that people's tags are linked with; None: not yet."""
        return self._catalog.meta(_LINKED)

    def link(self) -> None:
        """Sets the concepts of people's tags anew, after the table has changed."""
        sql = f"SELECT DISTINCT label FROM tags WHERE {_BY_PEOPLE}"
        for (label,) in self._catalog.rows(sql):
            named = concepts.likeliest(label)
            self._connection.execute(
                f"UPDATE tags SET concept = ?1 WHERE label = ?2 AND concept != ?1 AND {_BY_PEOPLE}",
                (named.id if named else "", label),
            )
        self._connection.execute(
            "INSERT OR REPLACE INTO meta VALUES (?, ?)", (_LINKED, concepts.version())
        )

    def put_tags(self, image_id: str, tags: Sequence[Tag]) -> None:
        """Makes these the only tags from the metadata of an image."""
        marks = ", ".join("?" * len(METADATA_SOURCES))
        self._connection.execute(
            f"DELETE FROM tags WHERE image_id = ? AND source IN ({marks})",
            (image_id, *METADATA_SOURCES),
        )
        self.add_tags(image_id, tags)

    def add_tags(self, image_id: str, tags: Sequence[Tag]) -> None:
        """More tags from the metadata of an image."""
        self._connection.executemany(
            "INSERT OR REPLACE INTO tags (image_id, label, language, confidence, source, concept) "
            "VALUES (?, ?, ?, ?, ?, ?)",
            [(image_id, *astuple(tag)) for tag in tags],
        )

    def put_fields(self, image_id: str, fields: Mapping[str, str]) -> None:
        """Makes these the only other texts of an image: headline, byline, camera, ..."""
        self._connection.execute("DELETE FROM metadata WHERE image_id = ?", (image_id,))
        self._connection.executemany(
            "INSERT INTO metadata VALUES (?, ?, ?)",
            [(image_id, key, value) for key, value in fields.items()],
        )
