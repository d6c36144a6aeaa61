"""The catalog's tables, the migrations that create them, and connections to the database."""

from __future__ import annotations

import os
import sqlite3
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from capsearch.engine.errors import IndexProblem, SchemaTooNew

# Whatever is written about an image makes its words stale.
_STALE_TRIGGERS = "".join(
    f"CREATE TRIGGER words_stale_{table}_{event} AFTER {event} ON {table} "
    f"BEGIN UPDATE images SET words_current = 0 WHERE id = {row}.image_id; END;"
    for table in ("captions", "tags", "files", "metadata")
    for event, row in (("INSERT", "NEW"), ("DELETE", "OLD"))
)
# (name, SQL statements). The schema number is the number of migrations applied. Never change the
# statements of a released migration; append another.
MIGRATIONS: tuple[tuple[str, str], ...] = (
    (
        "first tables",
        """
        CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE roots (path TEXT PRIMARY KEY, indexed_at TEXT NOT NULL) WITHOUT ROWID;
        CREATE TABLE arrays (
            name TEXT PRIMARY KEY, generation INTEGER NOT NULL, dtype TEXT NOT NULL,
            width INTEGER NOT NULL, rows INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE images (
            id TEXT PRIMARY KEY,            -- BLAKE2b-128 of the file's bytes, in hex
            width INTEGER NOT NULL, height INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
            format TEXT NOT NULL, taken_at TEXT,
            slot INTEGER UNIQUE             -- row in features and vectors; NULL: not encoded yet
        ) WITHOUT ROWID;
        CREATE TABLE files (
            path TEXT PRIMARY KEY,
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
            sidecars TEXT NOT NULL          -- names, times and sizes of its sidecar files
        ) WITHOUT ROWID;
        CREATE INDEX files_by_image ON files(image_id);
        CREATE TABLE captions (
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            text TEXT NOT NULL, language TEXT NOT NULL, source TEXT NOT NULL,
            origin TEXT NOT NULL,           -- path of the image (sidecar) or captions file, or ''
            encoded INTEGER NOT NULL DEFAULT 0,  -- 1 once the text encoder has read it
            slot INTEGER UNIQUE,            -- row in captions; NULL: not encoded, or no known token
            UNIQUE (image_id, source, origin, text)
        );
        CREATE INDEX captions_to_encode ON captions(id) WHERE encoded = 0;
        CREATE INDEX captions_by_origin ON captions(origin) WHERE origin != '';
        CREATE TABLE tags (
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            label TEXT NOT NULL, language TEXT NOT NULL, confidence REAL NOT NULL,
            source TEXT NOT NULL,
            PRIMARY KEY (image_id, label, language, source)
        ) WITHOUT ROWID;
        CREATE INDEX tags_by_label ON tags(label);
        CREATE TABLE skipped (
            path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
            reason TEXT NOT NULL
        ) WITHOUT ROWID;
        """,
    ),
    (
        "words found as words",
        """
        ALTER TABLE images ADD COLUMN number INTEGER;  -- rowid in words
        ALTER TABLE images ADD COLUMN words_current INTEGER NOT NULL DEFAULT 0;
        CREATE TEMP TABLE numbered (id TEXT PRIMARY KEY, number INTEGER) WITHOUT ROWID;
        INSERT INTO numbered SELECT id, row_number() OVER (ORDER BY id) FROM images;
        UPDATE images SET number = (SELECT number FROM numbered WHERE numbered.id = images.id);
        DROP TABLE numbered;
        CREATE UNIQUE INDEX images_by_number ON images(number);
        CREATE INDEX images_by_date ON images(taken_at, id);
        CREATE INDEX images_words_stale ON images(number) WHERE words_current = 0;
        CREATE INDEX captions_by_image ON captions(image_id);
        CREATE TABLE metadata (         -- texts that are no captions: camera strings, bylines, ...
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            key TEXT NOT NULL, value TEXT NOT NULL,
            PRIMARY KEY (image_id, key, value)
        ) WITHOUT ROWID;
        -- Tokens are folded already; "ascii" leaves all but ASCII as it is.
        CREATE VIRTUAL TABLE words USING fts5(tokens, tokenize = "ascii");
        CREATE VIRTUAL TABLE words_vocab USING fts5vocab('words', 'row');
        CREATE TRIGGER words_deleted AFTER DELETE ON images
            BEGIN DELETE FROM words WHERE rowid = OLD.number; END;
        """
        + _STALE_TRIGGERS,
    ),
)
SCHEMA = len(MIGRATIONS)
WORDS_SCHEMA = 2  # the first with words
_TIMEOUT_S = 30.0


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """A connection to the catalog at `path`. With `write`, it is created or migrated first.

    SchemaTooNew when a newer capsearch wrote it, IndexProblem when the file is no database.
    """
    try:
        connection = _connect(path, write)
        number = connection.execute("PRAGMA user_version").fetchone()[0]
        if number > SCHEMA:
            connection.close()
            raise SchemaTooNew(
                f"{path.parent} has schema {number}, this capsearch reads up to {SCHEMA}; "
                "upgrade with `pip install -U capsearch` or choose another --index"
            )
        if write:
            _migrate(connection, number)
    except sqlite3.DatabaseError as problem:
        raise IndexProblem(f"{path} cannot be opened: {problem}") from problem
    return connection


def _connect(path: Path, write: bool) -> sqlite3.Connection:
    # On a read-only disk SQLite cannot create the files WAL needs, and no process writes there.
    read_only = not write and not os.access(path.parent, os.W_OK)
    options = "mode=rwc" if write else "immutable=1" if read_only else "mode=ro"
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?{options}",
        uri=True,
        timeout=_TIMEOUT_S,
        isolation_level=None,  # transactions are begun and committed explicitly
        check_same_thread=False,
    )
    connection.execute("PRAGMA foreign_keys = ON")
    if write:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
    return connection


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
