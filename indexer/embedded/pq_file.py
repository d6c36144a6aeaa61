"""Files of compressed codes (embedded.pq): plain numbers, mapped into memory and not read.

Whatever such a file contains can hide rows from a search but do no other harm, which FAISS's own
files can (faiss #5400). Its parts, each padded to 64 bytes:

    a line of JSON    schema, width, rows, number of lists, a checksum of the next three
    float32           the lists' centres (lists, D), then the codebooks (parts, 16, D / parts)
    int64             the rows in each list
    for each list     codes in FAISS's blocks of 32 rows, then int64 row numbers
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import replacing
from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.pq import BLOCK_ROWS, MAX_LISTS, Codes, Shape, empty_index, faiss

SCHEMA = 1
_ALIGNMENT = 64
_MAX_LINE = 4096


def save(codes: Codes, path: Path) -> None:
    """Writes the file of codes, whole or not at all."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        for part in _parts(codes):
            file.write(part)
            file.write(bytes(-len(part) % _ALIGNMENT))


def open_codes(path: Path, width: int, writable: bool = False) -> Codes | None:
    """The codes in a file: mapped into memory, or with `writable` copied there.

    None if there is no such file, it was not written by `save` for rows of this width, or it was
    replaced in this moment.
    """
    try:
        with path.open("rb") as file:
            stored = _Stored.read(file, width)
            if stored is None:
                return None
            index, copied = stored.index(), writable or os.name == "nt"  # where FAISS cannot map
            if copied:
                stored.copy(np.memmap(file, np.uint8, "r"), index)
            else:
                stored.map(path, index)
            if not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return None  # FAISS may have mapped another file than was checked
    except OSError:
        return None
    return Codes(stored.shape, index, writable=copied)


def _parts(codes: Codes) -> Iterator[bytes]:
    index, lists = codes.index, range(codes.shape.lists)
    centres = faiss().downcast_index(index.quantizer).reconstruct_n(0, len(lists))
    floats = np.append(centres.ravel(), faiss().vector_to_array(index.pq.centroids))
    sizes = [index.invlists.list_size(one) for one in lists]
    head = floats.astype("<f4").tobytes(), np.array(sizes, "<i8").tobytes()
    yield _header(codes.shape, codes.rows, head)
    yield from head
    for one, size in zip(lists, sizes, strict=True):
        content, numbers = _memory(index.invlists, one, size, codes.shape)
        yield content.tobytes() + numbers.astype("<i8").tobytes()


@dataclass(frozen=True, slots=True)
class _Stored:
    """All parts of a file but its lists."""

    shape: Shape
    floats: Vectors
    sizes: Sequence[int]
    start: int  # of the lists

    @classmethod
    def read(cls, file: BinaryIO, width: int) -> _Stored | None:
        """None unless the file is as long as its header and sizes say."""
        line = file.readline(_MAX_LINE)
        try:
            header = json.loads(line)
            shape, rows = Shape(int(header["width"]), int(header["lists"])), header["rows"]
        except (ValueError, KeyError, TypeError):
            return None
        if shape.width != width or not 1 <= shape.lists <= MAX_LISTS:
            return None
        floats = _read_part(file, 4 * _floats(shape))
        sizes = _read_part(file, 8 * shape.lists)
        if _header(shape, rows, (floats, sizes)) != line:
            return None
        numbers = np.frombuffer(sizes, "<i8").tolist()
        stored = cls(shape, np.frombuffer(floats, "<f4"), numbers, _aligned(file.tell()))
        whole = stored.offsets()[-1] == os.fstat(file.fileno()).st_size
        return stored if whole and min(numbers) >= 0 and sum(numbers) == rows else None

    def offsets(self) -> list[int]:
        """Where each list begins, and the end of the file."""
        found = [self.start]
        for size in self.sizes:
            found.append(found[-1] + _aligned(self.shape.list_bytes(size) + 8 * size))
        return found

    def index(self) -> Any:
        """FAISS's index, without its lists."""
        index, centres = empty_index(self.shape), self.shape.lists * self.shape.padded
        index.quantizer.add(self.floats[:centres].reshape(self.shape.lists, -1))
        faiss().copy_array_to_vector(self.floats[centres:], index.pq.centroids)
        index.is_trained, index.ntotal = True, sum(self.sizes)
        return index

    def map(self, path: Path, index: Any) -> None:
        """Lets the index find its lists in the mapped file."""
        lists, offsets = faiss().OnDiskInvertedLists(), self.offsets()
        lists.nlist, lists.code_size = self.shape.lists, self.shape.code_bytes
        lists.filename, lists.read_only, lists.totsize = str(path), True, offsets[-1]
        # By default FAISS reads every list once more, in up to 32 threads, before each search.
        lists.prefetch_nthread = 0
        for size, offset in zip(self.sizes, offsets, strict=False):
            one = faiss().OnDiskOneList()
            # Row numbers are expected behind as many codes as the list could hold.
            one.size, one.offset = size, offset
            one.capacity = -(-size // BLOCK_ROWS) * BLOCK_ROWS
            lists.lists.push_back(one)
        lists.do_mmap()
        lists.this.disown()  # the index frees them
        index.replace_invlists(lists, True)

    def copy(self, content: NDArray[np.uint8], index: Any) -> None:
        """Copies the lists into the index, where rows can be added."""
        lists = faiss().downcast_InvertedLists(index.invlists)
        for one, (size, offset) in enumerate(zip(self.sizes, self.offsets(), strict=False)):
            lists.resize(one, size)
            codes, numbers = _memory(lists, one, size, self.shape)
            behind = offset + len(codes)
            codes[:] = content[offset:behind]
            numbers[:] = content[behind : behind + 8 * size].view("<i8")


def _memory(lists: Any, one: int, size: int, shape: Shape) -> tuple[Any, Any]:
    """The codes of a list and its row numbers, where FAISS has them."""
    if not size:
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    codes = faiss().rev_swig_ptr(lists.get_codes(one), shape.list_bytes(size))
    return codes, faiss().rev_swig_ptr(lists.get_ids(one), size)


def _read_part(file: BinaryIO, size: int) -> bytes:
    """The next part, or what there is of it."""
    file.seek(_aligned(file.tell()))
    return file.read(size)


def _floats(shape: Shape) -> int:
    """How many there are in centres and codebooks."""
    return shape.lists * shape.padded + 16 * shape.padded


def _header(shape: Shape, rows: int, head: Sequence[bytes]) -> bytes:
    stored = {
        "schema": SCHEMA,
        "width": shape.width,
        "rows": rows,
        "lists": shape.lists,
        "crc32": zlib.crc32(b"".join(head)),
    }
    return json.dumps(stored).encode() + b"\n"


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
