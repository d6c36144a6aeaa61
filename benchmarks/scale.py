"""Search at ten thousand to a million images with three captions each, beside other ways.

Wall-clock times need an idle machine; CPU times, given beside them, hardly depend on what else
runs. Every step has a process of its own, so that its memory is its own.

Search time over the number of images, both on logarithmic axes.

What is measured on one synthetic collection; each step runs in a process of its own.

Other ways to find the ten rows with the highest inner product, measured like ours.

Each is built and asked in a process of its own. Those that need a package which is not installed
are left out, as are graphs of more rows than GRAPH_ROWS: they take too long to build.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.benchmarks import scale_collection, timing
from capsearch.benchmarks import scale_collection as scale_truth
from capsearch.benchmarks.scale_collection import (
    SHARES,
    caption_languages,
    image_id,
    query_vectors,
    share_tag,
)
from capsearch.benchmarks.timing import Measurement, Unit, figure, latency, query_command, run_timed
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.protocols import NewDocument
from capsearch.engine.query import EncodedQuery, Query
from capsearch.engine.records import Caption, Document, Filters, ImageRecord, Mode, Vectors
from capsearch.engine.search import SearchEngine
from capsearch.indexer.sqlite import matches, nearest, transfer
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.nearest import Nearest, exact_scores
from capsearch.indexer.sqlite.search import MIN_DEPTH, BestRows
from capsearch.indexer.sqlite.writer import CatalogWriter

TOP = 10
GRAPH_ROWS = 100_000
LINKS, EFFORT, SEARCH_EFFORT = 16, 100, 100  # of the graphs: M, ef_construction, ef
Answer: TypeAlias = NDArray[np.int64]
Search: TypeAlias = Callable[[Vectors], Answer]


@dataclass(frozen=True, slots=True)
class Peer:
    """What one of them took, and what it found."""

    name: str
    build_s: float
    seconds: tuple[float, ...]  # one for each query
    found: tuple[tuple[int, ...], ...]


def numpy_search(rows: Vectors) -> Search:
    """Brute force: one matrix product over all rows."""

    def search(query: Vectors) -> Answer:
        scores = rows @ query  # (N, D) x (D,) -> (N,)
        best = np.argpartition(-scores, TOP)[:TOP]
        return np.asarray(best[np.argsort(-scores[best])])

    return search


def faiss_flat(rows: Vectors) -> Search:
    """FAISS's exact index."""
    import faiss

    index: Any = faiss.IndexFlatIP(rows.shape[1])
    index.add(np.ascontiguousarray(rows))
    return lambda query: np.asarray(index.search(query[None], TOP)[1][0])


def hnswlib_graph(rows: Vectors) -> Search:
    """A graph of hnswlib."""
    import hnswlib

    index = hnswlib.Index(space="ip", dim=rows.shape[1])
    index.init_index(len(rows), M=LINKS, ef_construction=EFFORT)
    index.add_items(rows)
    index.set_ef(SEARCH_EFFORT)
    return lambda query: np.asarray(index.knn_query(query[None], TOP)[0][0], np.int64)


def usearch_graph(rows: Vectors) -> Search:
    """A graph of usearch."""
    from usearch.index import Index

    index = Index(
        ndim=rows.shape[1],
        metric="ip",
        dtype="f32",
        connectivity=LINKS,
        expansion_add=EFFORT,
        expansion_search=SEARCH_EFFORT,
    )
    index.add(np.arange(len(rows)), np.ascontiguousarray(rows))
    return lambda query: np.asarray(index.search(query, TOP).keys, np.int64)


def codes_search(search: Nearest, rows: Vectors) -> Search:
    """Ours: candidates and their exact scores, as the embedded backend searches."""

    def top(query: Vectors) -> Answer:
        score = partial(exact_scores, query, rows)
        slots, _ = BestRows(query, rows, search, None, score).find(MIN_DEPTH).first(TOP)
        return slots

    return top


EXACT: Mapping[str, tuple[str, Callable[[Vectors], Search]]] = {
    "numpy": ("numpy", numpy_search),
    "FAISS flat": ("faiss", faiss_flat),
}
GRAPHS: Mapping[str, tuple[str, Callable[[Vectors], Search]]] = {
    "hnswlib": ("hnswlib", hnswlib_graph),
    "usearch": ("usearch", usearch_graph),
}


def names(rows: int) -> Iterator[str]:
    """Those that can be measured with so many rows."""
    known = {**EXACT, **GRAPHS} if rows <= GRAPH_ROWS else EXACT
    return (name for name, (package, _) in known.items() if find_spec(package) is not None)


def measure_peer(name: str, rows: Vectors, queries: Vectors) -> Peer:
    """Builds one of them and asks it every query."""
    _, build = {**EXACT, **GRAPHS}[name]
    return measured(name, lambda: build(rows), queries)


def measured(name: str, build: Callable[[], Search], queries: Vectors) -> Peer:
    """Builds a search and asks it every query, the first one twice: it warms up."""
    started = perf_counter()
    search = build()
    built = perf_counter() - started
    search(queries[0])
    seconds, found = [], []
    for query in queries:
        started = perf_counter()
        slots = search(query)
        seconds.append(perf_counter() - started)
        found.append(tuple(slots.tolist()))
    return Peer(name, built, tuple(seconds), tuple(found))


MODES: tuple[Mode, ...] = ("cm", "clm")
OURS = "capsearch"
NEW = 100  # images that are added
_STRIDE = 11  # of the sentences, so that all words and languages occur


@dataclass(frozen=True, slots=True)
class Build:
    """Making the codes of all vectors and the other caches, and the most memory that took."""

    seconds: float
    cpu_s: float
    peak_mb: float
    codes_mb: float


@dataclass(frozen=True, slots=True)
class Times:
    """Of each query, in seconds: passed, and spent on a CPU by this process."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Searched:
    """Opening, and searches in both modes and with filters that some percent pass."""

    open_s: float
    times: dict[str, Times]
    recall: dict[str, float]
    peak_mb: float


def build(folder: Path) -> Build:
    """Makes codes and caches anew, as the end of `capsearch index` does where there are none."""
    with Collection.open(folder) as collection:
        arrays = [collection.catalog.array(name) for name in ("vectors", "captions")]
        caches = [path for one in arrays for path in (one.codes_path, one.images_path)]
        for path in caches:
            path.unlink(missing_ok=True)
        started, spent = perf_counter(), process_time()
        _refresh(collection)
        seconds, cpu_s = perf_counter() - started, process_time() - spent
    sizes = [path.stat().st_size for path in caches if path.exists()]
    return Build(seconds, cpu_s, peak_mb(), sum(sizes) / 1e6)


def _refresh(collection: Collection) -> None:
    for name in ("vectors", "captions"):
        nearest.refresh(collection.catalog.array(name))
    matches.refresh(collection.catalog)


def search(folder: Path, name: str | None, count: int) -> Searched:
    """Opens a collection and asks it `count` queries in each mode, after as many others."""
    model = registry.load(name)
    queries = {mode: understood(model, folder, mode, 2 * count) for mode in MODES}
    started = perf_counter()
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        engine.backend.search(queries["cm"][0], Filters(), 1)
        opened = perf_counter() - started
        times: dict[str, Times] = {}
        found: dict[Mode, list[tuple[str, ...]]] = {}
        for mode in MODES:
            warm_up, queries[mode] = queries[mode][:count], queries[mode][count:]
            ask(engine, warm_up, Filters())
            times[mode], found[mode] = ask(engine, queries[mode], Filters())
        for percent in SHARES:
            chosen = Filters(tags=(share_tag(percent),))
            times[f"clm, {percent} %"], _ = ask(engine, queries["clm"][: _few(count)], chosen)
        peak = peak_mb()
        recall = _recall(collection, model, queries, found)
    return Searched(opened, times, recall, peak)


def clm(folder: Path, name: str | None, count: int) -> Times:
    """Asks a collection `count` queries, after as many others."""
    model = registry.load(name)
    queries = understood(model, folder, "clm", 2 * count)
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        ask(engine, queries[:count], Filters())
        return ask(engine, queries[count:], Filters())[0]


def understood(model: Model, folder: Path, mode: Mode, count: int) -> list[EncodedQuery]:
    """Synthetic sentences as the backend gets them; without a cut-off, so that ten are found."""
    texts = [text for language in caption_languages(model) for text in timing.sentences(language)]
    chosen = [texts[at * _STRIDE % len(texts)] for at in range(count)]
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        return [engine.encoded(Query(text, mode=mode, min_score=0.0)) for text in chosen]


def ask(
    engine: SearchEngine, queries: Sequence[EncodedQuery], filters: Filters
) -> tuple[Times, list[tuple[str, ...]]]:
    """The time of each query after one to warm up, and the ids of what it found."""
    engine.backend.search(queries[0], filters, scale_collection.TOP)
    wall, cpu, found = [], [], []
    for query in queries:
        started, spent = perf_counter(), process_time()
        hits = engine.backend.search(query, filters, scale_collection.TOP)
        wall.append(perf_counter() - started)
        cpu.append(process_time() - spent)
        found.append(tuple(one.document.record.id for one in hits))
    return Times(tuple(wall), tuple(cpu)), found


def vectors(folder: Path, name: str | None, peer: str, count: int) -> Peer:
    """The image vectors of a collection searched by one of the peers, or by our codes."""
    chosen = query_vectors(registry.load(name))[0]
    queries = chosen[np.arange(count) * _STRIDE % len(chosen)]
    with Collection.open(folder) as collection:
        array = collection.catalog.array("vectors")
    if peer != OURS:
        return measure_peer(peer, np.asarray(array.view()), queries)
    return measured(OURS, lambda: codes_search(nearest.open_search(array), array.view()), queries)


def add(folder: Path, name: str | None) -> float:
    """Seconds until NEW images with captions are stored and found; they are taken out again."""
    model = registry.load(name)
    with Collection.create(folder, model) as collection:
        before, documents = collection.catalog.arrays(), _new_documents(collection)
        query = understood(model, folder, "clm", 1)[0]
        collection.engine().backend.search(query, Filters(), 1)
        started = perf_counter()
        transfer.write(collection, documents)
        _refresh(collection)
        collection.engine().backend.search(query, Filters(), 1)
        seconds = perf_counter() - started
        writer = CatalogWriter(collection.catalog)
        with writer.transaction():
            for one in documents:
                delete = "DELETE FROM images WHERE id = ?"
                collection.catalog.connection.execute(delete, (one.document.record.id,))
            for array in before:
                writer.set_array(array)
    return seconds


def _new_documents(collection: Collection) -> list[NewDocument]:
    """Copies of the first images' vectors under other ids."""
    rows = {name: collection.catalog.array(name).view() for name in ("vectors", "captions")}
    found = []
    for at in range(NEW):
        one = image_id(-1 - at)
        captions = [Caption(f"new {at} {number}", "en", "csv") for number in range(3)]
        record = ImageRecord(one, (f"/bench/new/{at}.jpg",), 640, 480, 100_000, "JPEG", None)
        vectors = {
            caption: np.array(rows["captions"][3 * at + number], np.float32)
            for number, caption in enumerate(captions)
        }
        feature = np.zeros(collection.catalog.array("features").width, np.float32)
        vector = np.array(rows["vectors"][at], np.float32)
        found.append(NewDocument(Document(record, tuple(captions)), feature, vector, vectors))
    return found


def _recall(
    collection: Collection,
    model: Model,
    queries: dict[Mode, list[EncodedQuery]],
    found: dict[Mode, list[tuple[str, ...]]],
) -> dict[str, float]:
    """Of the exact ten best of each mode."""
    images, captions = (collection.catalog.array(one).view() for one in ("vectors", "captions"))
    exact = {
        mode: [
            [image_id(slot) for slot in slots]
            for slots in scale_collection.best(images, captions, asked, caption_languages(model))
        ]
        for mode, asked in queries.items()
    }
    return {mode: scale_collection.recall(found[mode], exact[mode]) for mode in queries}


def _few(count: int) -> int:
    return max(1, count // 4)


def peak_mb() -> float:
    """The most memory this process had.

    On Linux without the mapped files, which the system takes back when it needs the space, and
    without what the parent process had, which `ru_maxrss` counts.
    """
    status = Path("/proc/self/status")
    if status.exists():
        sizes = dict(re.findall(r"(VmHWM|RssFile):\s+(\d+) kB", status.read_text("utf-8")))
        if len(sizes) == 2:
            return (int(sizes["VmHWM"]) - int(sizes["RssFile"])) * 1024 / 1e6
    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


PART = "scale"
SIZES = (10_000, 100_000, 1_000_000)
SMALL = 1_000  # images of the collection that a whole command is compared with
MAX_DESCRIBED = 100_000  # images of a collection that is also made with generated captions and tags
QUERIES, SLOW_QUERIES = 60, 12
_COMMANDS = 5


def measure(
    name: str | None, sizes: Sequence[int], report: Callable[[str], None]
) -> Iterator[Measurement]:
    """All figures of all sizes; the collections are made when they are first needed."""
    model = registry.load(name)
    small = scale_collection.ensure(model, SMALL, report)
    for size in sizes:
        folder = scale_collection.ensure(model, size, report)
        yield from _collection(folder, name, size)
        if size <= MAX_DESCRIBED:
            described = scale_collection.ensure(model, size, report, described=True)
            yield from _described(described, name, size)
        yield from _peers(folder, name, size)
        yield from _command(folder, small, size)


def _collection(folder: Path, name: str | None, size: int) -> Iterator[Measurement]:
    """Ours: making the codes, opening, searching, adding."""
    built: Build = alone(build, folder)
    yield _one(size, "codes made", "s", built.seconds)
    yield _one(size, "codes made, CPU time", "s", built.cpu_s)
    yield _one(size, "codes made, peak memory", "MB", built.peak_mb)
    yield _one(size, "codes on disk", "MB", built.codes_mb)
    yield _one(size, "index on disk", "MB", _disk_mb(folder))
    searched: Searched = alone(search, folder, name, QUERIES)
    yield _one(size, "opened and first search", "s", searched.open_s)
    for mode, times in searched.times.items():
        yield latency(PART, f"{size:,}: {mode.upper()}", times.wall)
        yield latency(PART, f"{size:,}: {mode.upper()}, CPU time", times.cpu)
    for mode, share in searched.recall.items():
        yield _one(size, f"{mode.upper()}, recall@10", "share", share)
    yield _one(size, "search, peak memory", "MB", searched.peak_mb)
    yield _one(size, f"{NEW} images added", "s", alone(add, folder, name))


def _described(folder: Path, name: str | None, size: int) -> Iterator[Measurement]:
    """Where models wrote the captions, and tags of what the queries name."""
    alone(build, folder)
    times: Times = alone(clm, folder, name, QUERIES)
    yield latency(PART, f"{size:,}, described: CLM", times.wall)
    yield latency(PART, f"{size:,}, described: CLM, CPU time", times.cpu)


def _peers(folder: Path, name: str | None, size: int) -> Iterator[Measurement]:
    """The vectors alone: ours and others, compared with brute force in numpy."""
    exact: list[tuple[int, ...]] = []
    baseline = None
    for peer in (*names(size), OURS):
        count = QUERIES if size <= GRAPH_ROWS else SLOW_QUERIES
        found: Peer = alone(vectors, folder, name, peer, count)
        line = latency(PART, f"{size:,} vectors: {peer}", found.seconds)
        if baseline is None:  # numpy comes first
            baseline, exact = line, [*found.found]
            yield line
        else:
            yield line.against(baseline)
        yield _one(size, f"vectors: {peer}, built", "s", found.build_s)
        recall = scale_truth.recall(found.found, exact)
        yield _one(size, f"vectors: {peer}, recall@10", "share", recall)


def _command(folder: Path, small: Path, size: int) -> Iterator[Measurement]:
    """A whole `capsearch query`, compared with the same on a small index."""
    names = {
        f"capsearch query, {SMALL:,} images": small,
        f"capsearch query, {size:,} images": folder,
    }
    taken: dict[str, list[float]] = {one: [] for one in names}
    for _ in range(_COMMANDS):
        for one, index in names.items():
            taken[one].append(run_timed(query_command(index)))
    baseline, ours = (latency(PART, one, seconds) for one, seconds in taken.items())
    yield baseline
    yield ours.against(baseline)


def alone(step: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a step in a new process."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(step, *arguments).result()


def _one(size: int, name: str, unit: Unit, value: float) -> Measurement:
    return figure(PART, f"{size:,}: {name}", unit, value)


def _disk_mb(folder: Path) -> float:
    """Without the features, which are holes in a file here."""
    files = [one for one in folder.iterdir() if not one.name.startswith("features")]
    return sum(one.stat().st_size for one in files) / 1e6
