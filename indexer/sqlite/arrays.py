"""Vector files: rows of numbers on disk that are appended to and never changed in place.

A vector file has no header. It holds one row after another, each row `width` little-endian
numbers of type float16 or float32, so that `numpy.memmap` opens it directly. The catalog's
table `arrays` stores the file's generation, type, width and number of valid rows:

    features-G.f16   image features of the backbone; row = images.slot
    vectors-G.f32    image vectors of the shared space with their hubness penalty; row = images.slot
    captions-G.f16   caption vectors with their hubness penalty; row = captions.slot

Appending: the new rows are written and fsynced first, then one SQLite transaction raises the
row count and refers to them. If the process is killed in between, the file has extra rows at its
end that the catalog does not count; the next writer cuts them off.

Rewriting (compaction, another model): the rows go into a new file of generation G + 1, which is
written under a temporary name, fsynced and renamed. One transaction then switches the catalog to
it. Old generations are deleted by the next writer (sqlite.collection).
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from capsearch.encoders import atomic
from capsearch.encoders.atomic import write_failed
from capsearch.engine.errors import IndexProblem
from capsearch.engine.vectors import Rows

SUFFIXES = {"<f2": ".f16", "<f4": ".f32"}
ARRAY_TYPES = {"features": "<f2", "vectors": "<f4", "captions": "<f2"}  # name -> a key of SUFFIXES
CODES, IMAGES = ".codes", ".images"


class VectorFileMissing(IndexProblem):
    """A file that the catalog named when it was read; a writer may have replaced it since."""


@dataclass(frozen=True, slots=True)
class VectorFile:
    """One row of the catalog's table `arrays`, and the file it describes."""

    folder: Path
    name: str  # "features", "vectors" or "captions"
    generation: int
    dtype: str  # a key of SUFFIXES
    width: int
    rows: int

    @property
    def path(self) -> Path:
        """The file that holds the rows; it need not exist while there are none."""
        return self.folder / f"{self.name}-{self.generation}{SUFFIXES[self.dtype]}"

    @property
    def codes_path(self) -> Path:
        """The cache of compressed codes of these rows (sqlite.nearest)."""
        return self.path.with_suffix(CODES)

    @property
    def images_path(self) -> Path:
        """The cache of the images of these captions (sqlite.matches)."""
        return self.path.with_suffix(IMAGES)

    @property
    def stride(self) -> int:
        """Bytes per row."""
        return self.width * np.dtype(self.dtype).itemsize

    def view(self) -> Rows:
        """All rows the catalog counts, memory-mapped. IndexProblem if the file lacks some."""
        if self.rows == 0:
            return np.empty((0, self.width), self.dtype)
        try:
            return np.memmap(self.path, self.dtype, "r", shape=(self.rows, self.width))
        except FileNotFoundError as problem:
            raise VectorFileMissing(
                f"{self.path} is missing; run `capsearch index --rebuild`"
            ) from problem
        except (OSError, ValueError) as problem:
            raise IndexProblem(
                f"{self.path} is too short or cannot be read; run `capsearch index --rebuild`"
            ) from problem

    def appended(self, values: Rows) -> VectorFile:
        """Writes and fsyncs `values` (N, W) after the counted rows; the file with them counted.

        Rows that an earlier, uncommitted append left there are overwritten.
        """
        if values.ndim != 2 or values.shape[1] != self.width:
            raise ValueError(f"{self.name} has rows of {self.width}, not {values.shape}")
        new = not self.path.exists()
        try:
            with self.path.open("w+b" if new else "r+b") as file:
                file.seek(self.rows * self.stride)
                file.write(np.ascontiguousarray(values, self.dtype).tobytes())
                file.truncate()
            atomic.sync_file(self.path)
            if new:
                atomic.sync_folder(self.folder)  # or a power cut may take the name away
        except OSError as problem:
            with suppress(OSError):
                self.trim()  # a full disk gets its space back
            raise write_failed(self.path, problem) from problem
        return replace(self, rows=self.rows + len(values))

    def trim(self) -> None:
        """Cuts off rows that a killed process appended without committing them."""
        if self.path.exists() and self.path.stat().st_size > self.rows * self.stride:
            os.truncate(self.path, self.rows * self.stride)

    def with_rows(self, rows: int) -> VectorFile:
        """The same file with so many rows counted."""
        return replace(self, rows=rows)

    def emptied(self, generation: int) -> VectorFile:
        """A later generation, still without rows."""
        return replace(self, generation=generation, rows=0)

    def filled(self, blocks: Iterable[Rows]) -> VectorFile:
        """Writes `blocks` one after another as all rows of this file, whole or not at all."""
        rows = 0
        try:
            with atomic.replacing(self.path) as temporary, temporary.open("wb") as file:
                for block in blocks:
                    file.write(np.ascontiguousarray(block, self.dtype).tobytes())
                    rows += len(block)
        except OSError as problem:
            raise write_failed(self.path, problem) from problem
        return replace(self, rows=rows)


def sequential(rows: Rows, start: int = 0, size: int = 16_384) -> Iterable[Rows]:
    """All rows from `start` on, in blocks; a mapped file takes no memory beyond the block."""
    for at in range(start, len(rows), size):
        yield rows[at : at + size]
        if isinstance(rows.base, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            rows.base.madvise(mmap.MADV_DONTNEED)
