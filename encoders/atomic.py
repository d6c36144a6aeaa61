"""Files that are written whole or not at all."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from capsearch.engine.errors import WriteFailed

_FULL = {errno.ENOSPC, errno.EDQUOT}
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+-\d+\.tmp")  # .NAME.PROCESS-THREAD.tmp


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; at the end of the block it replaces `path`.

    Readers find the old file or the new one, never a part, also after a power cut: the bytes are
    synced before the rename and the folder after it. After an error `path` is unchanged and the
    temporary file is deleted.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.tmp")
    try:
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def target_name(temporary: str) -> str | None:
    """The name of the file that a temporary file of `replacing` was to become; else None."""
    found = _TEMPORARY.fullmatch(temporary)
    return found["name"] if found else None


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text in UTF-8, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def sync_file(path: Path) -> None:
    """Wait until a file's bytes are on the disk."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make a new or renamed file survive a power cut; Windows neither needs nor allows it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """WriteFailed instead of an OSError inside the block."""
    try:
        yield
    except OSError as problem:
        raise write_failed(place, problem) from problem


def write_failed(place: Path, problem: OSError | str) -> WriteFailed:
    """What to tell about a failed write to `place`."""
    if isinstance(problem, OSError):
        reason = problem.strerror or str(problem)
        problem = f"the disk is full ({reason})" if problem.errno in _FULL else reason
    return WriteFailed(
        f"cannot write {place}: {problem}; what was saved before is still there. "
        "Make that folder writable, with room, or choose another --index; then run this again"
    )
