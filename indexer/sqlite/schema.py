"""Connections to the catalog, which is created or migrated by its writers.

The catalog's tables: one migration after another.

A disk that is full or fails: one message that names the cause and the place.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path
from urllib.parse import quote

from capsearch.engine.errors import (
    CapsearchError,
    IndexProblem,
    NotAnIndex,
    SchemaTooNew,
    WriteFailed,
)

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
    (
        "images without files, remembered folders and captions files, rebuilding beside",
        """
        ALTER TABLE images ADD COLUMN missing_since TEXT;  -- when its last file was missed
        CREATE INDEX images_missing ON images(missing_since) WHERE missing_since IS NOT NULL;
        DROP INDEX images_by_date;
        CREATE INDEX images_newest ON images(taken_at DESC, id);
        CREATE INDEX tags_by_label_and_image ON tags(label, image_id);
        DROP INDEX tags_by_label;
        CREATE INDEX captions_by_language ON captions(language, image_id);
        CREATE TABLE past_files (           -- where images were before; the latest id was last
            id INTEGER PRIMARY KEY AUTOINCREMENT,
            path TEXT NOT NULL,
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            UNIQUE (path, image_id)
        );
        CREATE INDEX past_files_by_image ON past_files(image_id);
        ALTER TABLE roots ADD COLUMN exclude TEXT NOT NULL DEFAULT '[]';  -- globs, as JSON
        CREATE TABLE mount_points (path TEXT PRIMARY KEY) WITHOUT ROWID;  -- below roots
        CREATE TABLE captions_files (
            path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL
        ) WITHOUT ROWID;
        INSERT INTO captions_files
            SELECT DISTINCT origin, 0, 0 FROM captions WHERE source IN ('csv', 'coco');
        CREATE TABLE facets (
            kind TEXT NOT NULL, value TEXT NOT NULL, count INTEGER NOT NULL,
            PRIMARY KEY (kind, value)
        ) WITHOUT ROWID;
        -- A rebuild: vectors beside the current ones, which serve searches until it is complete.
        CREATE TABLE next_arrays (
            name TEXT PRIMARY KEY, generation INTEGER NOT NULL, dtype TEXT NOT NULL,
            width INTEGER NOT NULL, rows INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE next_images (
            id TEXT PRIMARY KEY REFERENCES images(id) ON DELETE CASCADE, slot INTEGER NOT NULL
        ) WITHOUT ROWID;
        CREATE TABLE next_captions (
            id INTEGER PRIMARY KEY REFERENCES captions(id) ON DELETE CASCADE, slot INTEGER
        );
        CREATE TRIGGER next_caption_stale AFTER UPDATE OF language ON captions
            BEGIN DELETE FROM next_captions WHERE id = NEW.id; END;
        """,
    ),
    (
        "what models write: probabilities, concepts, and what people said about it",
        """
        ALTER TABLE captions ADD COLUMN confidence REAL NOT NULL DEFAULT 1.0;
        ALTER TABLE tags ADD COLUMN concept TEXT NOT NULL DEFAULT '';  -- '': names none
        CREATE INDEX tags_by_concept ON tags(concept, image_id, confidence) WHERE concept != '';
        CREATE TABLE enriched (             -- the models that described an image last, or ''
            image_id TEXT PRIMARY KEY REFERENCES images(id) ON DELETE CASCADE,
            tagger TEXT NOT NULL DEFAULT '', captioner TEXT NOT NULL DEFAULT ''
        ) WITHOUT ROWID;
        CREATE TABLE rejected (             -- generated captions that a person refused
            image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
            text TEXT NOT NULL,
            PRIMARY KEY (image_id, text)
        ) WITHOUT ROWID;
        -- Words of generated captions and tags; people's are in words.
        CREATE VIRTUAL TABLE generated_words USING fts5(tokens, tokenize = "ascii");
        CREATE VIRTUAL TABLE generated_words_vocab USING fts5vocab('generated_words', 'row');
        CREATE TRIGGER generated_words_deleted AFTER DELETE ON images
            BEGIN DELETE FROM generated_words WHERE rowid = OLD.number; END;
        """,
    ),
    (
        "indexes that answer a search without the rows of their tables",
        """
        DROP INDEX captions_by_image;
        CREATE INDEX captions_by_image ON captions(image_id, slot, language, source);
        CREATE INDEX captions_by_slot ON captions(slot, image_id) WHERE slot IS NOT NULL;
        """,
    ),
    ("words with a long vowel mark are folded again", "UPDATE images SET words_current = 0;"),
)

_FULL = {errno.ENOSPC, errno.EDQUOT}
# By message: sqlite3 has error codes only since Python 3.11.
_SQLITE = {"database or disk is full": "the disk is full", "disk I/O error": "the disk failed"}


def write_failed(place: Path, problem: OSError | sqlite3.Error) -> WriteFailed:
    """What to tell about a failed write to `place`."""
    return WriteFailed(
        f"cannot write {place}: {_cause(problem)}; what was saved before is still there. "
        "Make that folder writable, with room, or choose another --index; then run this again"
    )


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """WriteFailed instead of an OSError inside the block."""
    try:
        yield
    except OSError as problem:
        raise write_failed(place, problem) from problem


def is_disk_error(problem: sqlite3.Error) -> bool:
    """True if SQLite could not write: not for constraints, locks and wrong statements."""
    return str(problem) in _SQLITE


def _cause(problem: OSError | sqlite3.Error) -> str:
    if isinstance(problem, sqlite3.Error):
        return f"{_SQLITE.get(str(problem), 'the disk failed')} ({problem})"
    told = problem.strerror or str(problem)
    return f"the disk is full ({told})" if problem.errno in _FULL else told


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
