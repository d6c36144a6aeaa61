"""A disk that is full or fails: one message that names the cause and the place."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from capsearch.engine.errors import WriteFailed

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
