"""The image of each caption, by their rows: a cache of what the catalog knows, as plain numbers.

`captions-G.images` belongs to generation G of the caption vectors and to the generation of the
image vectors that its first line names. While both last, a row is given to one caption or image and
to no other, so that no entry becomes wrong: a caption that was deleted since leads to an image that
is then scored by what the catalog says. Rows that were added since, and captions whose image had no
vector, are looked up. What a damaged file contains can hide images from a search but do no other
harm.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import replacing
from capsearch.indexer.embedded import nearest
from capsearch.indexer.embedded.arrays import Slots, VectorFile
from capsearch.indexer.embedded.catalog import SqliteCatalog, within
from capsearch.indexer.embedded.disk import writing

SCHEMA = 1
_LINE = 128  # bytes of the first line, filled up with spaces
_UNKNOWN, _NONE = -1, -2  # the image had no vector; the caption was deleted
_LACKING = 2_000  # captions whose images are looked up rather than written
_BLOCK = 65_536
_IMAGES = "SELECT c.slot, i.slot FROM captions c CROSS JOIN images i ON i.id = c.image_id WHERE {}"


@dataclass(frozen=True, slots=True)
class CaptionImages:
    """The rows of images by the rows of their captions, as far as the cache has them."""

    known: NDArray[np.int32]
    images: int  # rows there are

    @classmethod
    def open(cls, captions: VectorFile, images: VectorFile) -> CaptionImages:
        """The cache beside the captions, or an empty one."""
        known = _read(captions.images_path, images.generation)
        if known is None or len(known) > captions.rows:
            known = np.empty(0, np.int32)
        return cls(known, images.rows)

    def of(self, catalog: SqliteCatalog, captions: Slots) -> Slots:
        """The row of each caption's image, below 0 for a caption that has none (any more)."""
        found = np.full(len(captions), _UNKNOWN, np.int64)
        cached = captions < len(self.known)
        found[cached] = self.known[captions[cached]]
        found[found >= self.images] = _UNKNOWN  # of a later state, or damaged
        at = np.flatnonzero((found < 0) & (found != _NONE))
        if len(at):
            unknown = captions[at].tolist()
            sql = _IMAGES.format(within("c.slot", unknown) + " AND i.slot IS NOT NULL")
            looked_up: dict[int, int] = dict(catalog.rows(sql))
            found[at] = [looked_up.get(one, _NONE) for one in unknown]
        return found


def refresh(catalog: SqliteCatalog) -> None:
    """Writes the cache if there are many captions and it lacks more than some of them."""
    captions, images = catalog.array("captions"), catalog.array("vectors")
    path = captions.images_path
    if not nearest.needs_codes(captions.view()):
        path.unlink(missing_ok=True)
        return
    known = CaptionImages.open(captions, images).known
    if not len(known) or captions.rows - len(known) > _LACKING:
        numbers = np.append(known, _numbers(catalog, len(known), captions.rows))
        with writing(path):
            _write(path, images.generation, numbers)


def _numbers(catalog: SqliteCatalog, start: int, stop: int) -> NDArray[np.int32]:
    """The entries of some captions, by what the catalog says now."""
    numbers = np.full(stop - start, _NONE, np.int32)
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop) - 1
        sql = _IMAGES.format(f"c.slot BETWEEN {first} AND {last}")
        for caption, image in catalog.rows(sql):
            numbers[caption - start] = _UNKNOWN if image is None else image
    return numbers


def _write(path: Path, images: int, numbers: NDArray[np.int32]) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_line(images, len(numbers)))
        file.write(numbers.astype("<i4").tobytes())


def _read(path: Path, images: int) -> NDArray[np.int32] | None:
    """The numbers in a file that `_write` made for this generation of images, or None."""
    try:
        rows = (path.stat().st_size - _LINE) // 4
        with path.open("rb") as file:
            if rows < 1 or file.read(_LINE) != _line(images, rows):
                return None
            numbers = np.memmap(file, "<i4", "r", offset=_LINE, shape=(rows,))
    except (OSError, ValueError):
        return None
    return np.array(numbers) if os.name == "nt" else numbers  # a mapped file cannot be replaced


def _line(images: int, rows: int) -> bytes:
    stored = {"schema": SCHEMA, "images": images, "rows": rows}
    return json.dumps(stored).encode().ljust(_LINE - 1) + b"\n"
