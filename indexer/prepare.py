"""Reading, hashing and decoding image files in threads, ahead of the image encoder.

Which files are being decoded, on disk, so that a run that was killed leaves their names.

A file that makes a decoder take all memory, or crash, would otherwise end every run at the same
place. The next run decodes the files of the journal last, one at a time. A file during which the
process ended twice, the second time alone, is not tried again until it changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import BinaryIO, TypeAlias

from capsearch.encoders.images.open import opened
from capsearch.encoders.images.preprocess import DecodedImage, Preprocess, decode_opened
from capsearch.engine.errors import InvalidCaptions, InvalidImage
from capsearch.engine.records import TAKEN_FROM, Caption, ImageRecord
from capsearch.indexer.sources.captions import read_sidecar
from capsearch.indexer.sources.metadata import (
    Metadata,
    dated,
    merged,
    read_metadata,
    read_xmp_sidecar,
)
from capsearch.indexer.sources.scan import ImageFile, Skipped

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
        self._before = _read_states(self._path)
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


def _read_states(path: Path) -> dict[_State, int]:
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


MAX_FILE_BYTES = 1 << 29
_AHEAD = 4  # files prepared ahead, per thread, at least


@dataclass(frozen=True, slots=True)
class Prepared:
    """A file ready for the image encoder; `decoded` is None for an image that has a vector."""

    file: ImageFile
    image_id: str
    decoded: DecodedImage | None
    metadata: Metadata  # of the file and its XMP sidecars
    sidecar_captions: tuple[Caption, ...]
    problems: tuple[Skipped, ...]  # sidecars that cannot be read

    @property
    def record(self) -> ImageRecord:
        """What is stored of a new image."""
        decoded = self.decoded
        assert decoded is not None  # only new images are stored
        return ImageRecord(
            self.image_id,
            (self.file.path,),
            decoded.width,
            decoded.height,
            self.file.size,
            decoded.format,
            self.metadata.taken_at,
        )

    @property
    def fields(self) -> dict[str, str]:
        """The texts of the image's metadata that are neither captions nor tags."""
        fields = {**self.metadata.fields, TAKEN_FROM: self.metadata.taken_from or ""}
        return {key: value for key, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that cannot be indexed.

    `permanent` is False when the file could not be read: the next run tries again, and an image
    that was indexed from it stays.
    """

    file: ImageFile
    reason: str
    permanent: bool = True

    @property
    def problems(self) -> tuple[Skipped, ...]:
        """The file itself with its reason."""
        return (Skipped(self.file.path, self.reason),)


Outcome: TypeAlias = Prepared | Refused


def prepare_in_groups(
    files: Sequence[ImageFile],
    known: Container[str],
    preprocess: Preprocess,
    max_pixels: int,
    threads: int | None,
    stop: threading.Event,
    journal: DecodeJournal,
    batch_size: int,
) -> Iterator[Iterable[Outcome]]:
    """The outcomes of all files; each group is to be committed before the next is asked for.

    While a batch is encoded, the next one is prepared.

    Files that were being decoded when a run died come last, one at a time, so that the next run
    knows which one it was. Those it happened with twice are refused.
    """
    by_attempts: dict[int, list[ImageFile]] = {0: [], 1: [], 2: []}
    for file in files:
        by_attempts[min(journal.attempts(file), 2)].append(file)
    yield [Refused(file, TOOK_PROCESS_DOWN) for file in by_attempts[2]]
    yield prepare_all(
        by_attempts[0], known, preprocess, max_pixels, threads, stop, journal, 2 * batch_size
    )
    for suspect in by_attempts[1]:
        yield prepare_all([suspect], known, preprocess, max_pixels, 1, stop, journal)
    if not stop.is_set():
        journal.close()


def prepare_all(
    files: Sequence[ImageFile],
    known: Container[str],
    preprocess: Preprocess,
    max_pixels: int,
    threads: int | None = None,
    stop: threading.Event | None = None,
    journal: DecodeJournal | None = None,
    ahead: int = 0,
) -> Iterator[Outcome]:
    """The outcome of each file, in order; `ahead` files or some more are prepared ahead.

    `known` are the ids of images that need no decoding. `threads` defaults to one per core.
    Once `stop` is set, no further file is started or returned. `journal` is told of every file
    before it is opened and after.
    """
    threads = threads or os.cpu_count() or 1
    ahead = max(ahead, _AHEAD * threads)

    def work(file: ImageFile) -> Outcome:
        with journal.decoding(file) if journal else nullcontext():
            return prepare(file, known, preprocess, max_pixels)

    pending: deque[Future[Outcome]] = deque()
    remaining = iter(files)
    with ThreadPoolExecutor(threads, "decode") as pool:
        while not (stop and stop.is_set()):
            while len(pending) < ahead and (file := next(remaining, None)) is not None:
                pending.append(pool.submit(work, file))
            if not pending:
                return
            yield pending.popleft().result()
        for future in pending:
            future.cancel()


def prepare(
    file: ImageFile, known: Container[str], preprocess: Preprocess, max_pixels: int
) -> Outcome:
    """Reads, hashes and, unless its image is known, decodes a file.

    The file is read only once, so that the id belongs to the pixels.
    """
    try:
        data = _read(file)
    except OSError as problem:
        return Refused(file, f"cannot be read: {problem.strerror or problem}", permanent=False)
    except InvalidImage as problem:
        return Refused(file, str(problem))
    try:
        image_id = content_id(data)
        decoded, metadata = None, Metadata()
        if image_id not in known:
            with opened(data, max_pixels) as image:
                metadata = read_metadata(image)
                decoded = decode_opened(image, preprocess)
    except InvalidImage as problem:
        return Refused(file, str(problem))
    captions, problems = read_sidecars(file)
    metadata = dated(merged([metadata, *xmp_sidecars(file)]), file.path, file.mtime_ns)
    return Prepared(file, image_id, decoded, metadata, captions, problems)


def content_id(data: bytes) -> str:
    """An image's id: BLAKE2b-128 of its file's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_sidecars(file: ImageFile) -> tuple[tuple[Caption, ...], tuple[Skipped, ...]]:
    """The captions in an image's sidecar files, and the sidecars that cannot be read."""
    captions: dict[str, Caption] = {}
    problems = []
    for path, _, _ in file.sidecars:
        try:
            for caption in read_sidecar(Path(path)):
                captions.setdefault(caption.text, caption)
        except InvalidCaptions as problem:
            problems.append(Skipped(path, str(problem).removeprefix(f"{path}: ")))
    return tuple(captions.values()), tuple(problems)


def xmp_sidecars(file: ImageFile) -> Iterator[Metadata]:
    """Tags, fields and dates of XMP sidecars; their captions are those of `read_sidecars`."""
    for path, _, _ in file.sidecars:
        if path.lower().endswith(".xmp"):
            with suppress(InvalidCaptions):  # reported by `read_sidecars`
                yield replace(read_xmp_sidecar(Path(path)), captions=())


def _read(file: ImageFile) -> bytes:
    if file.size == 0:
        raise InvalidImage("the file is empty")
    if file.size > MAX_FILE_BYTES:
        raise InvalidImage(
            f"larger than {MAX_FILE_BYTES >> 20} MB, which is not opened as an image"
        )
    return Path(file.path).read_bytes()
