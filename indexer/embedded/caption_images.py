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
from capsearch.engine.records import GENERATED
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
_ANY = "SELECT 1 FROM captions WHERE {} LIMIT 1"
_BY_PEOPLE = f"source NOT GLOB '{GENERATED}*'"


@dataclass(frozen=True, slots=True)
class _File:
    """What a file of this cache holds."""

    numbers: NDArray[np.int32]
    people: bool  # wrote any of these captions


@dataclass(frozen=True, slots=True)
class CaptionImages:
    """The rows of images by the rows of their captions, as far as the cache has them."""

    known: NDArray[np.int32]
    people: bool  # wrote any of these, or there is no cache
    images: int  # rows there are

    @classmethod
    def open(cls, captions: VectorFile, images: VectorFile) -> CaptionImages:
        """The cache beside the captions, or an empty one."""
        known = _read(captions.images_path, images.generation)
        if known is None or len(known.numbers) > captions.rows:
            known = _File(np.empty(0, np.int32), people=True)
        many_later = captions.rows - len(known.numbers) > _LACKING  # too many to look up
        return cls(known.numbers, known.people or many_later, images.rows)

    def by_people(self, catalog: SqliteCatalog) -> bool:
        """Whether people may have written any caption with a vector."""
        later = f"slot >= {len(self.known)} AND {_BY_PEOPLE}"
        return self.people or bool(catalog.rows(_ANY.format(later)))

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
        people = bool(catalog.rows(_ANY.format(f"+slot IS NOT NULL AND {_BY_PEOPLE}")))
        with writing(path):
            _write(path, images.generation, _File(numbers, people))


def _numbers(catalog: SqliteCatalog, start: int, stop: int) -> NDArray[np.int32]:
    """The entries of some captions, by what the catalog says now."""
    numbers = np.full(stop - start, _NONE, np.int32)
    for first in range(start, stop, _BLOCK):
        last = min(first + _BLOCK, stop) - 1
        sql = _IMAGES.format(f"c.slot BETWEEN {first} AND {last}")
        for caption, image in catalog.rows(sql):
            numbers[caption - start] = _UNKNOWN if image is None else image
    return numbers


def _write(path: Path, images: int, content: _File) -> None:
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(_line(images, len(content.numbers), content.people))
        file.write(content.numbers.astype("<i4").tobytes())


def _read(path: Path, images: int) -> _File | None:
    """What a file holds that `_write` made for this generation of images, or None."""
    try:
        rows = (path.stat().st_size - _LINE) // 4
        with path.open("rb") as file:
            line = file.read(_LINE)
            people = line == _line(images, rows, people=True)
            if rows < 1 or not (people or line == _line(images, rows, people=False)):
                return None
            numbers = np.memmap(file, "<i4", "r", offset=_LINE, shape=(rows,))
    except (OSError, ValueError):
        return None
    # On Windows a mapped file cannot be replaced.
    return _File(np.array(numbers) if os.name == "nt" else numbers, people)


def _line(images: int, rows: int, people: bool) -> bytes:
    stored = {"schema": SCHEMA, "images": images, "rows": rows, "people": people}
    return json.dumps(stored).encode().ljust(_LINE - 1) + b"\n"
