"""Filters as SQL: conditions on images, and the tables that pass them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from capsearch.engine.records import GENERATED, Filters
from capsearch.indexer.sources.unicode_names import spellings

_WRITTEN_BY = {"people": "NOT GLOB", "models": "GLOB"}
# A label, or a concept of those in a JSON array: two searches by index.
_TAGGED = "(label = ? OR (concept != '' AND concept IN (SELECT value FROM json_each(?))))"
_LABELLED = "label = ?"


def where(filters: Filters, linked: bool = True) -> tuple[str, list[object]]:
    """A condition on images `i`, checked for each: they have a file and pass the filters.

    Tags of a catalog that is not `linked`, of an older version, are not linked by concepts.
    """
    conditions = ["EXISTS (SELECT 1 FROM files WHERE image_id = i.id)"]
    values: list[object] = []
    for condition, operands in _conditions(filters, linked):
        conditions.append(condition)
        values.extend(operands)
    return " AND ".join(conditions), values


def _conditions(filters: Filters, linked: bool) -> Iterator[tuple[str, list[object]]]:
    """(SQL condition, its values) for each field of `filters` that is set."""
    if filters.folders:
        ranges, bounds = _inside(filters.folders)
        yield f"EXISTS (SELECT 1 FROM files WHERE image_id = i.id AND ({ranges}))", bounds
    for label in filters.tags:
        condition, values = _tagged(label, linked)
        yield f"EXISTS (SELECT 1 FROM tags WHERE image_id = i.id AND {condition})", values
    yield from _dates(filters)
    if filters.caption_language is not None or filters.written_by is not None:
        yield _caption_condition(filters)


def _inside(folders: Sequence[str]) -> tuple[str, list[object]]:
    """A condition on paths below one of these folders, however it is spelt; its values."""
    spelt = [one for folder in folders for one in spellings(folder)]
    bounds: list[object] = [bound for folder in spelt for bound in under(folder)]
    return " OR ".join(["path >= ? AND path < ?"] * len(spelt)), bounds


def sources(filters: Filters, linked: bool = True) -> Iterator[tuple[str, list[object]]]:
    """(FROM ... WHERE ..., its values) with the images that pass one of the filters."""
    for label in filters.tags:
        condition, values = _tagged(label, linked)
        yield f"FROM tags WHERE {condition}", values
    if filters.folders:
        ranges, bounds = _inside(filters.folders)
        yield f"FROM files WHERE {ranges}", bounds
    if filters.caption_language is not None:
        yield "FROM captions WHERE language = ?", [filters.caption_language]
    if dates := [*_dates(filters)]:
        conditions = " AND ".join(condition for condition, _ in dates)
        values = [value for _, operands in dates for value in operands]
        yield f"FROM (SELECT id AS image_id FROM images WHERE {conditions})", values


def _dates(filters: Filters) -> Iterator[tuple[str, list[object]]]:
    if filters.taken_from is not None:
        yield "taken_at >= ?", [filters.taken_from.isoformat()]
    if filters.taken_until is not None:
        # "T~" sorts after every time of that day, and unlike the next day exists for every date.
        yield "taken_at <= ?", [filters.taken_until.isoformat() + "T~"]


def _tagged(label: str, linked: bool) -> tuple[str, list[object]]:
    """A condition on tags: this label, another name of what it names, or something narrower."""
    if not linked:
        return _LABELLED, [label]
    from capsearch.encoders import concepts  # large, and most searches have no such filter

    ids = sorted(concepts.under(label))
    return (_TAGGED, [label, json.dumps(ids)]) if ids else (_LABELLED, [label])


def _caption_condition(filters: Filters) -> tuple[str, list[object]]:
    """A single caption must have both the language and the author."""
    conditions, values = ["image_id = i.id"], list[object]()
    if filters.caption_language is not None:
        conditions.append("language = ?")
        values.append(filters.caption_language)
    if filters.written_by is not None:
        conditions.append(f"source {_WRITTEN_BY[filters.written_by]} '{GENERATED}*'")
    return f"EXISTS (SELECT 1 FROM captions WHERE {' AND '.join(conditions)})", values


def under(folder: str | Path) -> tuple[str, str]:
    """The bounds of all paths below a folder: from "/a/" to before "/a0"."""
    prefix = str(folder).rstrip(os.sep)
    return prefix + os.sep, prefix + chr(ord(os.sep) + 1)
