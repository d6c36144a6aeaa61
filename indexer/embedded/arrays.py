"""Vectors on disk: plain rows of numbers, appended to and never changed in place.

An array is one file without header: row after row of `width` little-endian numbers, float16
or float32, so `numpy.memmap` (or anything else) opens it as it is. The catalog's table
`arrays` knows file name, type, width and how many rows count:

    features-G.f16   backbone features, row = images.slot
    vectors-G.f32    image vectors of the shared space and their penalties, row = images.slot
    captions-G.f16   caption vectors and their penalties, row = captions.slot

Writing goes in one order: rows are appended and fsynced, then one SQLite transaction refers
to them. A process killed in between leaves a tail nobody refers to, cut off when the array
is next opened for writing. Rewriting (compaction, another model) fills a file of the next
generation G under a temporary name, fsyncs and renames it, and then switches over in one
transaction; files the catalog does not name are deleted when next opened for writing.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.errors import IndexProblem

Rows: TypeAlias = NDArray[Any]  # (N, W), float16 or float32
Slots: TypeAlias = NDArray[np.int64]  # row numbers
SUFFIXES = {"<f2": ".f16", "<f4": ".f32"}


@dataclass(frozen=True, slots=True)
class VectorFile:
    """One array as the catalog knows it."""

    folder: Path
    name: str  # "features", "vectors" or "captions"
    generation: int
    dtype: str  # a key of SUFFIXES
    width: int
    rows: int

    @property
    def path(self) -> Path:
        """Where its numbers lie."""
        return self.folder / f"{self.name}-{self.generation}{SUFFIXES[self.dtype]}"

    @property
    def stride(self) -> int:
        """Bytes a row."""
        return self.width * np.dtype(self.dtype).itemsize

    def view(self) -> Rows:
        """All rows that count, read from disk as they are touched."""
        if self.rows == 0:
            return np.empty((0, self.width), self.dtype)
        try:
            return np.memmap(self.path, self.dtype, "r", shape=(self.rows, self.width))
        except (OSError, ValueError) as problem:
            raise IndexProblem(
                f"{self.path} is missing or too short; run `capsearch index --rebuild`"
            ) from problem

    def appended(self, values: Rows) -> VectorFile:
        """The array with `values` (N, W) behind its rows, safely on disk."""
        if values.ndim != 2 or values.shape[1] != self.width:
            raise ValueError(f"{self.name} has rows of {self.width}, not {values.shape}")
        with self.path.open("r+b" if self.path.exists() else "w+b") as file:
            file.seek(self.rows * self.stride)
            file.write(np.ascontiguousarray(values, self.dtype).tobytes())
            file.truncate()
            flush(file.fileno())
        return replace(self, rows=self.rows + len(values))

    def trimmed(self) -> None:
        """Cuts off what a killed process appended but never referred to."""
        if self.path.exists() and self.path.stat().st_size > self.rows * self.stride:
            os.truncate(self.path, self.rows * self.stride)

    def rewritten(self, blocks: Iterable[Rows], width: int | None = None) -> VectorFile:
        """The next generation, holding `blocks` one after another; this one stays as it is."""
        new = replace(self, generation=self.generation + 1, width=width or self.width, rows=0)
        temporary = new.path.with_suffix(".tmp")
        rows = 0
        with temporary.open("wb") as file:
            for block in blocks:
                file.write(np.ascontiguousarray(block, self.dtype).tobytes())
                rows += len(block)
            file.flush()
            flush(file.fileno())
        temporary.replace(new.path)
        flush_folder(self.folder)
        return replace(new, rows=rows)


def blocks(rows: Rows, slots: Slots, size: int = 4096) -> Iterable[Rows]:
    """The rows at `slots` in that order, a bounded number at a time."""
    for start in range(0, len(slots), size):
        yield rows[slots[start : start + size]]


def remove_unreferenced(folder: Path, arrays: Iterable[VectorFile]) -> None:
    """Deletes array files that no catalog row names: leftovers of a killed rewrite."""
    known = {array.path.name for array in arrays}
    for pattern in (*(f"*-*{suffix}" for suffix in SUFFIXES.values()), "*.tmp"):
        for path in folder.glob(pattern):
            if path.name not in known:
                with suppress(OSError):  # Windows keeps a file a reader has open: next time
                    path.unlink()


def flush(descriptor: int) -> None:
    """Waits until a file's bytes are on the disk."""
    os.fsync(descriptor)


def flush_folder(folder: Path) -> None:
    """Makes a rename survive a power cut; Windows neither needs nor allows it."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
