"""The tables of the catalog, connections to it, and what to tell about a disk that fails."""

from __future__ import annotations

import os
import shlex
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import quote

from capsearch.encoders import atomic
from capsearch.encoders.atomic import write_failed
from capsearch.engine.errors import (
    CapsearchError,
    IndexProblem,
    NotAnIndex,
    SchemaTooNew,
    SchemaTooOld,
    WriteFailed,
)

SCHEMA = 6  # user_version; another number is refused, an older one with the way to `convert` it
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE roots (
    path TEXT PRIMARY KEY, indexed_at TEXT NOT NULL,
    exclude TEXT NOT NULL DEFAULT '[]'  -- globs, as JSON
) WITHOUT ROWID;
CREATE TABLE mount_points (path TEXT PRIMARY KEY) WITHOUT ROWID;  -- below roots
CREATE TABLE captions_files (
    path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE skipped (
    path TEXT PRIMARY KEY, mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL, reason TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE arrays (
    name TEXT PRIMARY KEY, generation INTEGER NOT NULL, dtype TEXT NOT NULL,
    width INTEGER NOT NULL, rows INTEGER NOT NULL
) WITHOUT ROWID;

CREATE TABLE images (
    id TEXT PRIMARY KEY,            -- BLAKE2b-128 of the file's bytes, in hex
    width INTEGER NOT NULL, height INTEGER NOT NULL, size_bytes INTEGER NOT NULL,
    format TEXT NOT NULL, taken_at TEXT,
    slot INTEGER UNIQUE,            -- row in features and vectors; NULL: not encoded yet
    number INTEGER,                 -- rowid in words and generated_words
    words_current INTEGER NOT NULL DEFAULT 0,
    missing_since TEXT              -- when its last file was missed
) WITHOUT ROWID;
CREATE UNIQUE INDEX images_by_number ON images(number);
CREATE INDEX images_words_stale ON images(number) WHERE words_current = 0;
CREATE INDEX images_missing ON images(missing_since) WHERE missing_since IS NOT NULL;
CREATE INDEX images_newest ON images(taken_at DESC, id);
CREATE TABLE files (
    path TEXT PRIMARY KEY,
    image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
    mtime_ns INTEGER NOT NULL, size INTEGER NOT NULL,
    sidecars TEXT NOT NULL          -- names, times and sizes of its sidecar files
) WITHOUT ROWID;
CREATE INDEX files_by_image ON files(image_id);
CREATE TABLE past_files (           -- where images were before; the latest id was last
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    path TEXT NOT NULL,
    image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
    UNIQUE (path, image_id)
);
CREATE INDEX past_files_by_image ON past_files(image_id);

CREATE TABLE captions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
    text TEXT NOT NULL, language TEXT NOT NULL, source TEXT NOT NULL,
    origin TEXT NOT NULL,           -- path of the image (sidecar) or captions file, or ''
    encoded INTEGER NOT NULL DEFAULT 0,  -- 1 once the text encoder has read it
    slot INTEGER UNIQUE,            -- row in captions; NULL: not encoded, or no known token
    confidence REAL NOT NULL DEFAULT 1.0,
    UNIQUE (image_id, source, origin, text)
);
CREATE INDEX captions_to_encode ON captions(id) WHERE encoded = 0;
CREATE INDEX captions_by_origin ON captions(origin) WHERE origin != '';
CREATE INDEX captions_by_language ON captions(language, image_id);
-- Searches read these two without the rows of the table.
CREATE INDEX captions_by_image ON captions(image_id, slot, language, source);
CREATE INDEX captions_by_slot ON captions(slot, image_id) WHERE slot IS NOT NULL;
CREATE TABLE tags (
    image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
    label TEXT NOT NULL, language TEXT NOT NULL, confidence REAL NOT NULL, source TEXT NOT NULL,
    concept TEXT NOT NULL DEFAULT '',  -- '': names none
    PRIMARY KEY (image_id, label, language, source)
) WITHOUT ROWID;
CREATE INDEX tags_by_label_and_image ON tags(label, image_id);
CREATE INDEX tags_by_concept ON tags(concept, image_id, confidence) WHERE concept != '';
CREATE TABLE metadata (             -- texts that are no captions: camera strings, bylines, ...
    image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
    key TEXT NOT NULL, value TEXT NOT NULL,
    PRIMARY KEY (image_id, key, value)
) WITHOUT ROWID;
CREATE TABLE enriched (             -- the models that described an image last, or ''
    image_id TEXT PRIMARY KEY REFERENCES images(id) ON DELETE CASCADE,
    tagger TEXT NOT NULL DEFAULT '', captioner TEXT NOT NULL DEFAULT ''
) WITHOUT ROWID;
CREATE TABLE rejected (             -- generated captions that a person refused
    image_id TEXT NOT NULL REFERENCES images(id) ON DELETE CASCADE,
    text TEXT NOT NULL,
    PRIMARY KEY (image_id, text)
) WITHOUT ROWID;

CREATE TABLE facets (
    kind TEXT NOT NULL, value TEXT NOT NULL, count INTEGER NOT NULL,
    PRIMARY KEY (kind, value)
) WITHOUT ROWID;
-- What people and what models wrote. Tokens are folded already; "ascii" leaves all but ASCII as it
-- is.
CREATE VIRTUAL TABLE words USING fts5(tokens, tokenize = "ascii");
CREATE VIRTUAL TABLE words_vocab USING fts5vocab('words', 'row');
CREATE VIRTUAL TABLE generated_words USING fts5(tokens, tokenize = "ascii");
CREATE VIRTUAL TABLE generated_words_vocab USING fts5vocab('generated_words', 'row');
CREATE TRIGGER words_deleted AFTER DELETE ON images
    BEGIN DELETE FROM words WHERE rowid = OLD.number; END;
CREATE TRIGGER generated_words_deleted AFTER DELETE ON images
    BEGIN DELETE FROM generated_words WHERE rowid = OLD.number; END;

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
""" + "".join(  # whatever is written about an image makes its words stale
    f"CREATE TRIGGER words_stale_{table}_{event} AFTER {event} ON {table} "
    f"BEGIN UPDATE images SET words_current = 0 WHERE id = {row}.image_id; END;\n"
    for table in ("captions", "tags", "files", "metadata")
    for event, row in (("INSERT", "NEW"), ("DELETE", "OLD"))
)
# The tables that `convert` copies. All else is counted, indexed or rebuilt by the run after it.
_COPIED = (
    "meta", "roots", "mount_points", "captions_files", "skipped", "arrays", "images", "files",
    "past_files", "captions", "tags", "metadata", "enriched", "rejected",
)  # fmt: skip
# By message: sqlite3 has error codes only since Python 3.11.
_DISK_ERRORS = {"database or disk is full": "the disk is full", "disk I/O error": "the disk failed"}
_TIMEOUT_S = 30.0


def is_disk_error(problem: sqlite3.Error) -> bool:
    """True if SQLite could not write: not for constraints, locks and wrong statements."""
    return str(problem) in _DISK_ERRORS


def disk_failed(path: Path, problem: sqlite3.Error) -> WriteFailed:
    """What to tell about a disk error of the catalog at `path`."""
    return write_failed(path, f"{_DISK_ERRORS.get(str(problem), 'the disk failed')} ({problem})")


def connect(path: Path, write: bool) -> sqlite3.Connection:
    """A connection to the catalog at `path`, which is created with `write` if it is not there.

    SchemaTooNew or SchemaTooOld when another capsearch wrote it, IndexProblem when the file is no
    database, NotAnIndex when it is a database of something else.
    """
    try:
        return _writer(path) if write else _reader(path)
    except sqlite3.DatabaseError as problem:
        if is_disk_error(problem):
            raise disk_failed(path, problem) from problem
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
    return sqlite3.connect(
        f"file:{quote(str(path))}?{options}",
        uri=True,
        timeout=_TIMEOUT_S,
        isolation_level=None,  # transactions are begun and committed explicitly
        check_same_thread=False,
    )


def _writer(path: Path) -> sqlite3.Connection:
    connection = _open(path, "mode=rwc")
    try:
        new = _require_schema(path, connection) == 0
    except BaseException:
        connection.close()
        raise
    try:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        if new:
            _create(connection)
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()  # opens the log
    except BaseException:
        close(connection, path, write=True)
        raise
    return connection


def _require_schema(path: Path, connection: sqlite3.Connection) -> int:
    """SCHEMA, or 0 for a new catalog; SchemaTooNew, SchemaTooOld, NotAnIndex."""
    number = _schema(path, connection)
    if number > SCHEMA:
        raise SchemaTooNew(
            f"{path.parent} has schema {number}, this capsearch reads {SCHEMA}; "
            "upgrade with `pip install -U capsearch` or choose another --index"
        )
    if 0 < number < SCHEMA:
        raise SchemaTooOld(
            f"{path.parent} has schema {number}, this capsearch reads {SCHEMA}; run `capsearch "
            f"index --rebuild --index {shlex.quote(str(path.parent))}`, which keeps vectors, "
            "captions and what people said about them"
        )
    return number


def _schema(path: Path, connection: sqlite3.Connection) -> int:
    """The schema of a catalog, 0 for an empty database; NotAnIndex for one of something else."""
    sql = "SELECT user_version, name FROM pragma_user_version LEFT JOIN sqlite_master"
    numbers, names = zip(*connection.execute(sql), strict=True)
    tables = {name for name in names if name is not None}
    if tables and not {"meta", "images", "captions"} <= tables:
        raise NotAnIndex(f"{path} is a database of something else; choose another --index")
    return int(numbers[0])


def _create(connection: sqlite3.Connection) -> None:
    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES} PRAGMA user_version = {SCHEMA}; COMMIT;")


def convert(path: Path) -> bool:
    """Copies an older catalog into the tables of this schema; False if it needs no copy.

    Rows of vector files stay where they are. Counts, words and links to concepts are left out:
    the next run of the pipeline makes them. The file is replaced whole or not at all.
    """
    try:
        with closing(_open(path, "mode=rw")) as connection:
            if not 0 < _schema(path, connection) < SCHEMA:
                return False
            connection.execute("PRAGMA journal_mode = DELETE")  # what is in a log is in the file
        with (
            atomic.writing(path),
            atomic.replacing(path) as temporary,
            closing(_open(temporary, "mode=rwc")) as connection,
        ):
            _create(connection)
            _copy_from(connection, path)
    except sqlite3.Error as problem:
        if is_disk_error(problem):
            raise disk_failed(path, problem) from problem
        raise IndexProblem(f"{path} cannot be rebuilt: {problem}") from problem
    return True


def _copy_from(connection: sqlite3.Connection, older: Path) -> None:
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("ATTACH ? AS older", (str(older),))
    connection.execute("BEGIN")
    for table in _COPIED:
        both = _columns(connection, "older", table) & _columns(connection, "main", table)
        into = from_ = ", ".join(sorted(both - {"number", "words_current"}))
        if table == "images":
            into, from_ = f"{into}, number", f"{from_}, row_number() OVER (ORDER BY id)"
        if both:
            connection.execute(f"INSERT INTO {table} ({into}) SELECT {from_} FROM older.{table}")
    # The first schemas did not remember captions files.
    connection.execute(
        "INSERT OR IGNORE INTO captions_files "
        "SELECT DISTINCT origin, 0, 0 FROM captions WHERE source IN ('csv', 'coco')"
    )
    connection.execute(
        "DELETE FROM meta WHERE key IN ('concepts', 'facets', 'searchable', 'rebuilding')"
    )
    connection.execute("COMMIT")


def _columns(connection: sqlite3.Connection, database: str, table: str) -> set[str]:
    return {row[1] for row in connection.execute(f"PRAGMA {database}.table_info({table})")}


def _reader(path: Path) -> sqlite3.Connection:
    """A connection that sees every commit of a writer.

    With a write-ahead log SQLite needs the files of the log, or must create them. Where nobody
    can write, there is no log to miss, and SQLite may be told so (immutable).
    """
    connection = _open(path, "mode=ro")
    try:
        _require_schema(path, connection)
        return connection
    except CapsearchError:
        connection.close()
        raise
    except sqlite3.OperationalError as problem:
        connection.close()
        if _read_only_disk(path) and not path.with_name(path.name + "-wal").exists():
            connection = _open(path, "mode=ro&immutable=1")
            _require_schema(path, connection)
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
