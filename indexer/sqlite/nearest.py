"""The rows of a vector file with the highest inner product: exact, or by compressed codes.

Exact search is one matrix product over the memory-mapped rows. For large files, codes propose
candidates, whose scores are then computed from the rows themselves: product quantization (Jégou et
al. 2011) to some hundred parts of 4 bits, scanned in registers (fast scan, André et al. 2015, as
FAISS does it), of the largest files in lists by k-means (IVF).

`NAME-G.codes` keeps the codes of generation G of the vector file NAME. It holds those of the first
rows; the others are compared one by one until they are too many, and then join the file. It is
plain numbers that are mapped into memory: whatever such a file contains can hide rows from a search
but do no other harm, which FAISS's own files can (faiss #5400). Its parts, padded to 64 bytes:

    a line of JSON    schema, width, rows, number of lists, a checksum of the next three
    float32           the lists' centres (lists, D), then the codebooks (parts, 16, D / parts)
    int64             the rows in each list
    for each list     codes in FAISS's blocks of 32 rows, then int64 row numbers
"""

from __future__ import annotations

import json
import os
import threading
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import replacing, writing
from capsearch.engine.evidence import Floats
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import Rows, Slots, as_float32, blocks
from capsearch.indexer.sqlite.arrays import VectorFile, sequential

P = ParamSpec("P")
Result = TypeVar("Result")


class Threads:
    """At most `count` threads, started when needed and again after a fork; each runs `initializer`
    first."""

    def __init__(self, count: int, initializer: Callable[[], object] | None = None) -> None:
        self._count, self._initializer = count, initializer
        self._pool: ThreadPoolExecutor | None = None
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def submit(
        self, work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs
    ) -> Future[Result]:
        """Starts some work; it is done at once where no thread can be started any more."""
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._count, initializer=self._initializer)
        try:
            return self._pool.submit(work, *args, **kwargs)
        except RuntimeError:  # the main thread has ended
            done: Future[Result] = Future()
            done.set_result(work(*args, **kwargs))
            return done

    def _forget(self) -> None:
        self._pool = None  # a forked process has none of its parent's threads


BLOCK_ROWS = 32  # in a block of FAISS's fast scan
MAX_LISTS = 1024
_PARTS = 340  # sub-quantizers, about
_CENTRES = 16  # of each
# One list up to here: scanning 300,000 rows takes 2 ms. Above, a list for every 16,000 rows.
_LISTED_ROWS, _ROWS_PER_LIST = 300_000, 16_000
_TRAINING_ROWS = 16_384
_MIN_PROBES, _PROBED_SHARE = 24, 1 / 4  # of the lists; measured, docs/scale.md
_PROBED_DEPTH = 64  # all lists are scanned for more than one of so many rows
_OUTGROWN_BY = 4  # times as many lists would suit


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes that follow from the width of a row and the number of lists."""

    width: int
    lists: int

    @property
    def part(self) -> int:
        """Coordinates in a part."""
        return max(1, round(self.width / _PARTS))

    @property
    def parts(self) -> int:
        """Sub-quantizers."""
        return -(-self.width // self.part)

    @property
    def padded(self) -> int:
        """D: rows are filled up with zeros to whole parts."""
        return self.part * self.parts

    @property
    def code_bytes(self) -> int:
        """Of one row."""
        return (self.parts + 1) // 2

    def list_bytes(self, rows: int) -> int:
        """Of the codes of a list, in whole blocks."""
        return -(-rows // BLOCK_ROWS) * BLOCK_ROWS * self.code_bytes


class Codes:
    """Codes of the first `rows` rows of a vector file."""

    def __init__(self, shape: Shape, index: Any, writable: bool = True) -> None:
        self.shape, self.index, self.writable = shape, index, writable
        self.probes = min(shape.lists, max(_MIN_PROBES, int(shape.lists * _PROBED_SHARE)))

    @classmethod
    def of(cls, rows: Rows) -> Codes:
        """Trained on some of the rows; none has a code yet."""
        shape = Shape(rows.shape[1], lists_for(len(rows)))
        index = empty_index(shape)
        chosen = np.linspace(0, len(rows) - 1, max(_TRAINING_ROWS, 64 * shape.lists))
        sample = _padded(as_float32(rows[np.unique(chosen.astype(np.int64))]), shape)
        sample = np.resize(sample, (max(len(sample), _CENTRES), shape.padded))  # too few: repeated
        _one_thread(lambda: index.train(sample))
        return cls(shape, index)

    @property
    def rows(self) -> int:
        """How many rows have a code."""
        return int(self.index.ntotal)

    def add(self, rows: Rows) -> None:
        """Gives a code to the rows that have none; only where codes are `writable`."""
        for block in sequential(rows, self.rows):
            self.index.add(_padded(as_float32(block), self.shape))

    def outgrown(self, rows: int) -> bool:
        """So many more rows than at first want codes that it is better to train again."""
        return lists_for(rows) >= _OUTGROWN_BY * self.shape.lists

    def top(self, query: Vectors, depth: int, needed: int | None = None) -> Slots:
        """About the `depth` best rows, the best first.

        If only some are `needed`, no more lists are scanned than these need.
        """
        row = _padded(query[None].astype(np.float32), self.shape)
        depth = min(depth, self.rows)
        # The lists next to the query may hold too few.
        deep = min(needed or depth, depth) * _PROBED_DEPTH > self.rows
        probes = self.shape.lists if deep else self.probes
        chosen = faiss().SearchParametersIVF(nprobe=probes)
        _, slots = _one_thread(lambda: self.index.search(row, depth, params=chosen))
        inside = (slots[0] >= 0) & (slots[0] < self.rows)  # also of a damaged file
        return np.asarray(slots[0][inside], np.int64)


def lists_for(rows: int) -> int:
    """How many lists suit so many rows."""
    return 1 if rows <= _LISTED_ROWS else min(rows // _ROWS_PER_LIST, MAX_LISTS)


def empty_index(shape: Shape) -> Any:
    """FAISS's index, not trained."""
    return faiss().IndexIVFPQFastScan(
        faiss().IndexFlatIP(shape.padded),
        shape.padded,
        shape.lists,
        shape.parts,
        4,
        faiss().METRIC_INNER_PRODUCT,
    )


def faiss() -> Any:
    """The library, imported when first needed; its type stubs lack most of what is used here."""
    import faiss

    return faiss


def _one_thread(work: Callable[[], Result]) -> Result:
    """Runs FAISS in one thread.

    With several it takes ten times as long to train small codebooks, and no less to search for one
    query: its threads wait for each other more than they work, and hold the cores meanwhile. The
    number of OpenMP threads belongs to the thread that sets it, so the caller's stays as it is.
    """
    if getattr(_thread, "single", False):
        return work()
    return in_thread(work).result()


def in_thread(work: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Future[Result]:
    """Work that goes on meanwhile, in one of a few threads; what it does in FAISS takes no more."""
    return _threads.submit(work, *args, **kwargs)


def _single() -> None:
    faiss().omp_set_num_threads(1)
    _thread.single = True


_thread = threading.local()
_threads = Threads(4, _single)  # searches at once; more wait


def _padded(rows: Vectors, shape: Shape) -> Vectors:
    """(N, width) -> (N, D)."""
    if shape.padded == shape.width:
        return np.ascontiguousarray(rows, np.float32)
    wide = np.zeros((len(rows), shape.padded), np.float32)
    wide[:, : shape.width] = rows
    return wide


# Rows up to which one matrix product takes some milliseconds: float32 as stored; float16 has to be
# converted first.
EXACT_ROWS = {np.dtype("<f4"): 20_000, np.dtype("<f2"): 8_000}


class Nearest(ABC):
    """Finds candidate rows."""

    @abstractmethod
    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """About the first of rising `depths` rows with the highest inner products, then what each
        of the other depths adds. There may be fewer steps than `depths`, but one.
        """

    def top(self, query: Vectors, depth: int) -> Slots:
        """About the `depth` rows with the highest inner products."""
        return self.steps(query, [depth])[0]


class ExactSearch(Nearest):
    """Compares with every row."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows

    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """By one product."""
        best = np.argsort(-self.most(query), kind="stable")
        return np.split(best[: depths[-1]], depths[:-1])

    def most(self, vector: Vectors) -> Vectors:
        """(N,) the most that products with all rows can be, as `most_products`."""
        return np.asarray(self._wide @ vector + _error(vector[None], self._lengths)[:, 0])

    @cached_property
    def _wide(self) -> Vectors:
        return as_float32(self._rows)

    @cached_property
    def _lengths(self) -> Vectors:
        return np.asarray(np.linalg.norm(self._wide, axis=1))


class CodeSearch(Nearest):
    """Scans compressed codes: the best ten are among some hundred, but not all the last of these.

    Rows at the end that have no code yet are compared one by one.
    """

    def __init__(self, rows: Rows, codes: Codes) -> None:
        self._rows, self.codes = rows, codes
        self._uncoded = np.arange(codes.rows, len(rows))

    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """By one scan, of as many lists as the first depth needs; of those without a code too."""
        coded = self.codes.top(query, depths[-1], depths[0])
        scores = most_products(query[None], self._rows, self._uncoded)[:, 0]
        others = self._uncoded[np.argsort(-scores, kind="stable")][: depths[-1]]
        steps = zip(np.split(coded, depths[:-1]), np.split(others, depths[:-1]), strict=True)
        return [np.append(first, uncoded) for first, uncoded in steps]


class GpuSearch(Nearest):
    """Exact search on all GPUs. Tested by its interface only: no GPU was at hand."""

    MAX_DEPTH = 2048  # of FAISS on GPUs

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        index = faiss().IndexFlatIP(rows.shape[1])
        for block in sequential(rows):
            index.add(np.ascontiguousarray(as_float32(block)))
        self._index = faiss().index_cpu_to_all_gpus(index)

    def steps(self, query: Vectors, depths: Sequence[int]) -> list[Slots]:
        """As many as one search on the GPUs finds."""
        some = [depth for depth in depths if depth <= self.MAX_DEPTH]
        if not some:
            return ExactSearch(self._rows).steps(query, depths[:1])
        row = np.ascontiguousarray(query, np.float32)[None]
        _, slots = self._index.search(row, some[-1])
        return np.split(np.asarray(slots[0][slots[0] >= 0], np.int64), some[:-1])


def needs_codes(rows: Rows) -> bool:
    """Whether there are too many rows to compare with each of them."""
    return len(rows) > EXACT_ROWS[rows.dtype]


def build(rows: Rows, codes: Callable[[], Codes]) -> Nearest:
    """The search that suits the number of rows and the machine; `codes` only if it needs them."""
    if not needs_codes(rows):
        return ExactSearch(rows)
    return GpuSearch(rows) if gpus() else CodeSearch(rows, codes())


def gpus() -> int:
    """How many GPUs search large files: 0 without faiss-gpu."""
    return int(faiss().get_num_gpus())


def coded(rows: Rows) -> Codes:
    """Codes of all rows, made now."""
    codes = Codes.of(rows)
    codes.add(rows)
    return codes


def most_products(vectors: Vectors, rows: Rows, slots: Slots) -> Vectors:
    """(K, D) -> (n, K) the most that inner products with some rows can be.

    A product in float32 sums a row differently according to its neighbours: it is only a bound.
    """
    parts = [
        wide @ vectors.T + _error(vectors, np.linalg.norm(wide, axis=1))
        for wide in map(as_float32, blocks(rows, slots))
    ]
    return np.concatenate([np.empty((0, len(vectors)), np.float32), *parts])


def _error(vectors: Vectors, lengths: Vectors) -> Vectors:
    """(K, D), (n,) -> (n, K) what products in float32 are off at most (Higham 2002, chapter 3)."""
    most = np.float32(vectors.shape[1]) * np.finfo(np.float32).eps
    return np.asarray(np.outer(lengths, most * np.linalg.norm(vectors, axis=1)), np.float32)


def most_image_scores(query: EncodedQuery, rows: Rows, slots: Slots) -> Floats:
    """(n,) the most that `image_scores` are."""
    assert query.image is not None
    if query.named is None:
        return most_products(query.image[None], rows, slots)[:, 0].astype(np.float64)
    vectors = np.concatenate([query.image[None], query.named.weights])
    most = most_products(vectors, rows, slots)
    return np.asarray(most[:, 0] + query.named.of_products(most[:, 1:]))


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
    sizes = [index.invlists.list_size(number) for number in lists]
    head = floats.astype("<f4").tobytes(), np.array(sizes, "<i8").tobytes()
    yield _header(codes.shape, codes.rows, head)
    yield from head
    for number, size in zip(lists, sizes, strict=True):
        content, numbers = _memory(index.invlists, number, size, codes.shape)
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
        offsets = [self.start]
        for size in self.sizes:
            offsets.append(offsets[-1] + _aligned(self.shape.list_bytes(size) + 8 * size))
        return offsets

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
            entry = faiss().OnDiskOneList()
            # Row numbers are expected behind as many codes as the list could hold.
            entry.size, entry.offset = size, offset
            entry.capacity = -(-size // BLOCK_ROWS) * BLOCK_ROWS
            lists.lists.push_back(entry)
        lists.do_mmap()
        lists.this.disown()  # the index frees them
        index.replace_invlists(lists, True)

    def copy(self, content: NDArray[np.uint8], index: Any) -> None:
        """Copies the lists into the index, where rows can be added."""
        lists = faiss().downcast_InvertedLists(index.invlists)
        for number, (size, offset) in enumerate(zip(self.sizes, self.offsets(), strict=False)):
            lists.resize(number, size)
            codes, numbers = _memory(lists, number, size, self.shape)
            behind = offset + len(codes)
            codes[:] = content[offset:behind]
            numbers[:] = content[behind : behind + 8 * size].view("<i8")


def _memory(lists: Any, number: int, size: int, shape: Shape) -> tuple[Any, Any]:
    """The codes of a list and its row numbers, where FAISS has them."""
    if not size:
        return np.empty(0, np.uint8), np.empty(0, np.int64)
    codes = faiss().rev_swig_ptr(lists.get_codes(number), shape.list_bytes(size))
    return codes, faiss().rev_swig_ptr(lists.get_ids(number), size)


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


_UNCODED = 1 / 4  # of EXACT_ROWS: so many rows may lack a code


def open_search(array: VectorFile, before: Nearest | None = None) -> Nearest:
    """The search over a vector file, by cached codes where there are any.

    `before` is a search over the same file when it had fewer rows, and no longer in use.
    """
    known = before.codes if isinstance(before, CodeSearch) else None
    return build(array.view(), lambda: _codes(array, known))


def refresh(array: VectorFile) -> None:
    """Writes the codes of a large vector file unless the cached ones still serve."""
    if not needs_codes(array.view()):
        array.codes_path.unlink(missing_ok=True)
        return
    cached = _load(array)
    if cached is None or _lacking(array, cached):
        with writing(array.codes_path):
            save(_complete(array), array.codes_path)


def _codes(array: VectorFile, known: Codes | None) -> Codes:
    """Codes of all rows but a few."""
    codes = known or _load(array)
    if codes is None or not _lacking(array, codes):
        return codes or _complete(array)
    if not codes.writable:
        return _complete(array)
    codes.add(array.view())
    return codes


def _complete(array: VectorFile) -> Codes:
    """Codes of all rows, in memory: those in the cache and those of later rows."""
    codes = _load(array, writable=True)
    if codes is None or codes.outgrown(array.rows):
        return coded(array.view())
    codes.add(array.view())
    return codes


def _lacking(array: VectorFile, codes: Codes) -> bool:
    """Too many rows have no code."""
    return array.rows - codes.rows > EXACT_ROWS[array.view().dtype] * _UNCODED


def _load(array: VectorFile, writable: bool = False) -> Codes | None:
    """The cached codes of the first rows of a vector file, or None."""
    codes = open_codes(array.codes_path, array.width, writable)
    return codes if codes is not None and codes.rows <= array.rows else None
