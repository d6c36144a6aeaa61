"""Indexes as older versions left them: the same rows in the tables of an older schema."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from capsearch.indexer.sqlite import schema

# Filled by migrations or by the next writer.
NOT_COPIED = ("migrations", "words", "generated_words", "sqlite")


def downgrade(where: Path, number: int) -> Path:
    """Rewrites the catalog of an index with the tables and columns of schema `number`."""
    path = where / "catalog.sqlite"
    newer = path.with_name("newer.sqlite")
    path.rename(newer)
    for file in where.glob("catalog.sqlite*"):
        file.unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema, "MIGRATIONS", schema.MIGRATIONS[:number])
        patch.setattr(schema, "SCHEMA", number)
        connection = schema.connect(path, write=True)
    connection.execute("ATTACH ? AS newer", (str(newer),))
    connection.execute("PRAGMA foreign_keys = OFF")
    for table in _tables(connection):
        columns = ", ".join(_columns(connection, table))
        connection.execute(
            f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM newer.{table}"
        )
    connection.execute("DELETE FROM meta WHERE key IN ('concepts', 'facets')")
    if number >= schema.WORDS_SCHEMA:
        connection.execute("UPDATE images SET words_current = 0")
    connection.close()
    newer.unlink()
    return where


def _tables(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM main.sqlite_master WHERE type = 'table'")
    return [name for (name,) in rows.fetchall() if not name.startswith(NOT_COPIED)]


def _columns(connection: sqlite3.Connection, table: str) -> list[str]:
    return [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
