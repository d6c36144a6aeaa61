"""Which files are being decoded, on disk, so that a run that was killed leaves their names.

A file that makes a decoder take all memory, or crash, would otherwise end every run at the same
place. The next run decodes the files of the journal last, one at a time. A file during which the
process ended twice, the second time alone, is not tried again until it changes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import BinaryIO

from capsearch.indexer.sources.scan import ImageFile

JOURNAL = "decoding.json"
TOOK_PROCESS_DOWN = (
    "the process ended twice while this file was being decoded; it is tried again when it changes"
)


@dataclass(frozen=True, slots=True)
class _State:
    """A file as it was when it was opened: a changed one is another."""

    path: str
    mtime_ns: int
    size: int


class DecodeJournal:
    """The file `decoding.json` in the folder of an index: the files of all threads.

    Its first line is valid JSON at any moment, since one write replaces it. It reaches the disk
    cache only: this is about processes that die, not machines. Errors in writing it are ignored;
    a full disk stops the run where data is written.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / JOURNAL
        self._before = _read(self._path)
        self._now = dict(self._before)
        self._lock = threading.Lock()
        self._file: BinaryIO | None = None

    def attempts(self, file: ImageFile) -> int:
        """How many runs ended while this file was being decoded."""
        return self._before.get(_state(file), 0)

    @contextmanager
    def decoding(self, file: ImageFile) -> Iterator[None]:
        """The file is in the journal during the block."""
        state = _state(file)
        self._change(state, self.attempts(file) + 1)
        try:
            yield
        finally:
            self._change(state, None)

    def close(self) -> None:
        """After a complete run: nothing is suspected any more."""
        with self._lock, suppress(OSError):
            if self._file is not None:
                self._file.close()
                self._file = None
            self._path.unlink(missing_ok=True)

    def _change(self, state: _State, attempts: int | None) -> None:
        with self._lock, suppress(OSError):
            self._now.pop(state, None)
            if attempts is not None:
                self._now[state] = attempts
            self._write()

    def _write(self) -> None:
        if self._file is None:
            self._path.touch()
            self._file = self._path.open("r+b", buffering=0)  # one write is one system call
        rows = [[*astuple(state), attempts] for state, attempts in self._now.items()]
        # Text that is left behind the line from a longer one is not read.
        self._file.seek(0)
        self._file.write(json.dumps(rows).encode() + b"\n")


def _state(file: ImageFile) -> _State:
    return _State(file.path, file.mtime_ns, file.size)


def _read(path: Path) -> dict[_State, int]:
    """The journal of a run that was killed; a damaged one counts as none."""
    try:
        with path.open("rb") as file:
            rows = json.loads(file.readline())
        return {
            _State(str(name), int(mtime_ns), int(size)): int(attempts)
            for name, mtime_ns, size, attempts in rows
        }
    except (OSError, ValueError, TypeError):
        return {}
