"""The contents of an index in the short forms that tests compare."""

from __future__ import annotations

from pathlib import Path

from capsearch.engine.query import Query
from capsearch.indexer.sqlite.collection import Collection


def first(collection: Collection, text: str, **query) -> str:
    """The file name of the best hit."""
    hit = collection.engine().search(Query(text, **query)).hits[0]
    return Path(collection.catalog.images([hit.image_id])[hit.image_id].path).name


def paths(collection: Collection) -> list[str]:
    return [Path(row[0]).name for row in collection.catalog.rows("SELECT path FROM files")]


def captions(collection: Collection) -> list[tuple[str, str, str]]:
    sql = "SELECT text, language, source FROM captions ORDER BY text"
    return [tuple(row) for row in collection.catalog.rows(sql)]


def embedded(collection: Collection) -> int:
    return collection.model.image.embedded


def counts(summary) -> tuple[int, int, int, int]:
    return summary.added, summary.reused, summary.removed, summary.unchanged
