"""Connections to the catalog, which is created or migrated by its writers."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing, suppress
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from capsearch.engine.errors import CapsearchError, IndexProblem, NotAnIndex, SchemaTooNew
from capsearch.indexer.embedded.disk import is_disk_error, write_failed
from capsearch.indexer.embedded.migrations import MIGRATIONS

SCHEMA = len(MIGRATIONS)
WORDS_SCHEMA = 2  # the first with words
FACETS_SCHEMA = 3  # the first with stored facets
ENRICHED_SCHEMA = 4  # the first with probabilities of captions and concepts of tags
_TIMEOUT_S = 30.0


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """A connection to the catalog at `path`. With `write`, it is created or migrated first.

    SchemaTooNew when a newer capsearch wrote it, IndexProblem when the file is no database,
    NotAnIndex when it is a database of something else.
    """
    try:
        return _writer(path) if write else _reader(path)
    except sqlite3.DatabaseError as problem:
        if is_disk_error(problem):
            raise write_failed(path, problem) from problem
        raise IndexProblem(f"{path} cannot be opened: {problem}") from problem


def close(connection: sqlite3.Connection, path: Path, write: bool) -> None:
    """Closes a connection to the catalog at `path`."""
    connection.close()
    if write:
        _leave_log(path)


def _leave_log(path: Path) -> None:
    """Ends the write-ahead log, unless readers are connected, who can read it.

    Users who may not create files in the folder, and all on a full disk, could not read a catalog
    with a log. A connection that locks out all others needs no files to end it.
    """
    with suppress(sqlite3.Error), closing(_open(path, "mode=rw")) as connection:
        connection.execute("PRAGMA busy_timeout = 0")
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        for mode in ("DELETE", "MEMORY"):  # a full disk has no room for a journal on it
            with suppress(sqlite3.Error):
                if connection.execute(f"PRAGMA journal_mode = {mode}").fetchone() != ("wal",):
                    return


def _open(path: Path, options: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{options}",
        uri=True,
        timeout=_TIMEOUT_S,
        isolation_level=None,  # transactions are begun and committed explicitly
        check_same_thread=False,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _writer(path: Path) -> sqlite3.Connection:
    connection = _open(path, "mode=rwc")
    try:
        number = _schema(path, connection)
    except BaseException:
        connection.close()
        raise
    try:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _migrate(connection, number)
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens the log
    except BaseException:
        close(connection, path, write=True)
        raise
    return connection


def _schema(path: Path, connection: sqlite3.Connection) -> int:
    """The schema's number, 0 for a new catalog; SchemaTooNew, NotAnIndex."""
    tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    if tables and "migrations" not in tables:
        raise NotAnIndex(f"{path} is a database of something else; choose another --index")
    number = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if number > SCHEMA:
        raise SchemaTooNew(
            f"{path.parent} has schema {number}, this capsearch reads up to {SCHEMA}; "
            "upgrade with `pip install -U capsearch` or choose another --index"
        )
    return number


def _reader(path: Path) -> sqlite3.Connection:
    """A connection that sees every commit of a writer.

    With a write-ahead log SQLite needs the files of the log, or must create them. Where nobody
    can write, there is no log to miss, and SQLite may be told so (immutable).
    """
    connection = _open(path, "mode=ro")
    try:
        _schema(path, connection)
        return connection
    except CapsearchError:
        connection.close()
        raise
    except sqlite3.OperationalError as problem:
        connection.close()
        if _read_only_disk(path) and not path.with_name(path.name + "-wal").exists():
            connection = _open(path, "mode=ro&immutable=1")
            _schema(path, connection)
            return connection
        if os.access(path.parent, os.W_OK):
            raise
        raise IndexProblem(
            f"{path} cannot be read by this user ({problem}): whoever writes the index must run "
            "`capsearch index` once more, and end it regularly"
        ) from problem


def _read_only_disk(path: Path) -> bool:
    """True if nobody can write there: not merely this user."""
    if not hasattr(os, "statvfs"):
        return False
    return bool(os.statvfs(path).f_flag & os.ST_RDONLY)


def _migrate(connection: sqlite3.Connection, number: int) -> None:
    for migration, (name, statements) in enumerate(MIGRATIONS[number:], start=number + 1):
        moment = datetime.now(timezone.utc).isoformat(timespec="seconds")
        connection.executescript(
            f"""
            BEGIN IMMEDIATE;
            CREATE TABLE IF NOT EXISTS migrations (
                number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TEXT NOT NULL
            );
            {statements}
            INSERT INTO migrations VALUES ({migration}, '{name}', '{moment}');
            PRAGMA user_version = {migration};
            COMMIT;
            """
        )
