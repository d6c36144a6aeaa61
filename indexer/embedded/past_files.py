"""What is kept of images whose files went: by content for a while, by path for what comes there.

An image without a file is not found by any search, but keeps its vectors, captions and tags: it
comes back at once when a file with the same content does. When a file gets new content (edited
EXIF, a crop), what people wrote about the old content follows to the new one.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from capsearch.engine.records import GENERATED
from capsearch.indexer.embedded.catalog import SqliteCatalog

SIDECAR = "sidecar"
METADATA_SOURCES = ("exif", "iptc", "xmp")
# Sidecars and metadata are read from the new content; models describe only what they have seen.
_READ_ANEW = ", ".join(f"'{source}'" for source in (SIDECAR, *METADATA_SOURCES))
_BY_PEOPLE = f"source NOT IN ({_READ_ANEW}) AND source NOT GLOB '{GENERATED}*'"


class PastFiles:
    """Images that files left. Methods that change something belong inside a transaction."""

    def __init__(self, catalog: SqliteCatalog) -> None:
        self._catalog, self._connection = catalog, catalog.connection

    def leave(self, path: str, except_image: str = "") -> None:
        """Notes that a path no longer holds the image it had.

        The captions of its sidecars stay if the image has no other file: both may return.
        """
        sql = "SELECT image_id FROM files WHERE path = ? AND image_id != ?"
        for (image_id,) in self._catalog.rows(sql, (path, except_image)):
            self._connection.execute(
                "INSERT OR REPLACE INTO past_files (path, image_id) VALUES (?, ?)",
                (path, image_id),
            )
            # Not left to INSERT OR REPLACE, which fires no trigger for the row it replaces.
            self._connection.execute("DELETE FROM files WHERE path = ?", (path,))
            self._delete_other_sidecars(image_id)

    def follow(self, path: str, image_id: str) -> int:
        """Copies what people wrote about the image that was last at `path` to the one there now.

        Returns the number of new captions.
        """
        sql = "SELECT image_id FROM past_files WHERE path = ? ORDER BY id DESC LIMIT 1"
        rows = self._catalog.rows(sql, (path,))
        if not rows or rows[0][0] == image_id:
            return 0
        before = rows[0][0]
        self._connection.execute(
            "INSERT OR IGNORE INTO tags (image_id, label, language, confidence, source, concept) "
            "SELECT ?, label, language, confidence, source, concept FROM tags "
            f"WHERE image_id = ? AND {_BY_PEOPLE}",
            (image_id, before),
        )
        self._connection.execute(
            "INSERT OR IGNORE INTO rejected SELECT ?, text FROM rejected WHERE image_id = ?",
            (image_id, before),
        )
        cursor = self._connection.execute(
            "INSERT OR IGNORE INTO captions (image_id, text, language, source, origin) "
            f"SELECT ?, text, language, source, origin FROM captions "
            f"WHERE image_id = ? AND {_BY_PEOPLE} ORDER BY id",
            (image_id, before),
        )
        return cursor.rowcount

    def arrive(self, path: str, image_id: str) -> None:
        """Notes that `path`, which is in the table of files, holds this image."""
        self._connection.execute(
            "UPDATE images SET missing_since = NULL WHERE id = ? AND missing_since IS NOT NULL",
            (image_id,),
        )
        self._connection.execute(
            "DELETE FROM past_files WHERE path = ? AND image_id = ?", (path, image_id)
        )
        self._delete_other_sidecars(image_id)

    def mark_missing(self) -> None:
        """Sets the time on images that have no file since this run."""
        self._connection.execute(
            "UPDATE images SET missing_since = ? WHERE missing_since IS NULL "
            "AND id NOT IN (SELECT image_id FROM files)",
            (_now().isoformat(timespec="seconds"),),
        )

    def prune(self, keep_days: float) -> int:
        """Deletes images that have been without a file for so long; returns how many."""
        latest = (_now() - timedelta(days=keep_days)).isoformat(timespec="seconds")
        cursor = self._connection.execute("DELETE FROM images WHERE missing_since <= ?", (latest,))
        return cursor.rowcount

    def count(self) -> int:
        """How many images have no file."""
        sql = "SELECT count(*) FROM images WHERE missing_since IS NOT NULL"
        return int(self._catalog.rows(sql)[0][0])

    def _delete_other_sidecars(self, image_id: str) -> None:
        """Deletes captions of sidecars of paths that left, unless the image has no file at all."""
        self._connection.execute(
            "DELETE FROM captions WHERE image_id = ?1 AND source = ?2 "
            "AND origin NOT IN (SELECT path FROM files WHERE image_id = ?1) "
            "AND EXISTS (SELECT 1 FROM files WHERE image_id = ?1)",
            (image_id, SIDECAR),
        )


def _now() -> datetime:
    return datetime.now(timezone.utc)
