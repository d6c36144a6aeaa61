"""Everything about a file that needs no model, done ahead of the model by a few threads."""

from __future__ import annotations

import hashlib
import os
import threading
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeAlias

from capsearch.encoders.image_files import opened
from capsearch.encoders.preprocess import DecodedImage, Preprocess, decode_opened
from capsearch.engine.errors import InvalidCaptions, InvalidImage
from capsearch.engine.records import Caption
from capsearch.indexer.sources.captions import read_sidecar
from capsearch.indexer.sources.metadata import Embedded, embedded, taken_at
from capsearch.indexer.sources.scan import ImageFile, Skipped

MAX_FILE_BYTES = 1 << 29
_AHEAD = 4  # files in flight for each thread


@dataclass(frozen=True, slots=True)
class Prepared:
    """A file ready for the model; `decoded` is None for an image the index has already."""

    found: ImageFile
    image_id: str
    decoded: DecodedImage | None
    taken_at: datetime | None
    inside: Embedded
    sidecar_captions: tuple[Caption, ...]
    problems: tuple[Skipped, ...]  # with its sidecars


@dataclass(frozen=True, slots=True)
class Refused:
    """A file that is no image we can open.

    `lasting` is False when only reading failed: it may work next time, and says nothing
    about the image that was there.
    """

    found: ImageFile
    reason: str
    lasting: bool = True

    @property
    def problems(self) -> tuple[Skipped, ...]:
        """The refusal itself."""
        return (Skipped(self.found.path, self.reason),)


Outcome: TypeAlias = Prepared | Refused


def prepared(
    files: Sequence[ImageFile],
    known: Collection[str],
    preprocess: Preprocess,
    max_pixels: int,
    threads: int | None = None,
    stop: threading.Event | None = None,
) -> Iterator[Outcome]:
    """Each file's outcome, in order, with a bounded number prepared ahead.

    Once `stop` is set no further file is started or handed out.
    """
    threads = threads or os.cpu_count() or 1
    flight: deque[Future[Outcome]] = deque()
    waiting = iter(files)
    with ThreadPoolExecutor(threads, "decode") as pool:
        while not (stop and stop.is_set()):
            while len(flight) < _AHEAD * threads and (found := next(waiting, None)) is not None:
                flight.append(pool.submit(prepare, found, known, preprocess, max_pixels))
            if not flight:
                return
            yield flight.popleft().result()
        for future in flight:
            future.cancel()


def prepare(
    found: ImageFile, known: Collection[str], preprocess: Preprocess, max_pixels: int
) -> Outcome:
    """Reads a file once; what is hashed is what is decoded."""
    try:
        data = _read(found)
    except OSError as problem:
        return Refused(found, f"cannot be read: {problem.strerror or problem}", lasting=False)
    except InvalidImage as problem:
        return Refused(found, str(problem))
    try:
        image_id = content_id(data)
        decoded, taken, inside = None, None, Embedded()
        if image_id not in known:
            with opened(data, max_pixels) as image:
                taken, inside = taken_at(image), embedded(image)
                decoded = decode_opened(image, preprocess)
    except InvalidImage as problem:
        return Refused(found, str(problem))
    captions, problems = read_sidecars(found)
    return Prepared(found, image_id, decoded, taken, inside, captions, problems)


def content_id(data: bytes) -> str:
    """An image's id: BLAKE2b-128 of its file's bytes."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def read_sidecars(found: ImageFile) -> tuple[tuple[Caption, ...], tuple[Skipped, ...]]:
    """The captions beside an image, and the caption files that cannot be read."""
    captions: dict[str, Caption] = {}
    problems = []
    for path, _, _ in found.sidecars:
        try:
            for caption in read_sidecar(Path(path)):
                captions.setdefault(caption.text, caption)
        except InvalidCaptions as problem:
            problems.append(Skipped(path, str(problem).removeprefix(f"{path}: ")))
    return tuple(captions.values()), tuple(problems)


def _read(found: ImageFile) -> bytes:
    if found.size == 0:
        raise InvalidImage("the file is empty")
    if found.size > MAX_FILE_BYTES:
        raise InvalidImage(f"more than {MAX_FILE_BYTES >> 20} MB is no image we open")
    return Path(found.path).read_bytes()
