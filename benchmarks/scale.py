"""Search at ten thousand to a million images with three captions each, beside other ways.

Each step runs in a process of its own, so that its memory is its own. Wall-clock times need an idle
machine; CPU times, given beside them, hardly depend on what else runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.benchmarks import scale_collection, timing
from capsearch.benchmarks.scale_collection import (
    SHARES,
    TOP,
    caption_languages,
    image_id,
    query_vectors,
    recall,
    share_tag,
)
from capsearch.benchmarks.timing import (
    Measurement,
    Unit,
    alone,
    figure,
    latency,
    peak_mb,
    query_command,
    rounds,
    run,
)
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.query import EncodedQuery, Query
from capsearch.engine.records import Caption, Document, Filters, ImageRecord, Mode, Vectors
from capsearch.engine.search import SearchEngine
from capsearch.engine.vectors import exact_scores
from capsearch.indexer.changes import instead
from capsearch.indexer.document import StoredDocument
from capsearch.indexer.sqlite import matches, nearest
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.nearest import Nearest
from capsearch.indexer.sqlite.search import MIN_DEPTH, FoundRows
from capsearch.indexer.sqlite.writer import CatalogWriter

PART = "scale"
SIZES = (10_000, 100_000, 1_000_000)
SMALL = 1_000  # images of the collection that a whole command is compared with
MAX_DESCRIBED = 100_000  # images of a collection that is also made with generated captions and tags
QUERIES, SLOW_QUERIES = 60, 12
_COMMANDS = 5
MODES: tuple[Mode, ...] = ("cm", "clm")
OURS = "capsearch"
NEW = 100  # images that are added
_STRIDE = 11  # of the sentences, so that all words and languages occur
NO_FILTERS = Filters()
GRAPHS = ("hnswlib", "usearch")
GRAPH_ROWS = 100_000  # more take too long to build
LINKS, EFFORT, SEARCH_EFFORT = 16, 100, 100  # of the graphs: M, ef_construction, ef
Answer: TypeAlias = NDArray[np.int64]
Search: TypeAlias = Callable[[Vectors], Answer]


def measure(
    name: str | None, sizes: Sequence[int], report: Callable[[str], None]
) -> Iterator[Measurement]:
    """All figures of all sizes; the collections are made when they are first needed."""
    model = registry.load(name)
    small = scale_collection.ensure(model, SMALL, report)
    for size in sizes:
        folder = scale_collection.ensure(model, size, report)
        yield from alone(build, folder, size)
        yield from alone(search, folder, name, size, QUERIES)
        yield _figure(size, f"{NEW} images added", "s", alone(add, folder, name))
        if size <= MAX_DESCRIBED:
            described = scale_collection.ensure(model, size, report, described=True)
            alone(build, described, size)
            yield from alone(search_described, described, name, size, QUERIES)
        yield from _peers(folder, name, size)
        yield from _command(folder, small, size)


def build(folder: Path, size: int) -> list[Measurement]:
    """Codes and caches made anew, as the end of `capsearch index` does where there are none."""
    with Collection.open(folder) as collection:
        arrays = [collection.catalog.array(name) for name in ("vectors", "captions")]
        caches = [path for array in arrays for path in (array.codes_path, array.images_path)]
        for path in caches:
            path.unlink(missing_ok=True)
        started, spent = perf_counter(), process_time()
        _refresh(collection)
        seconds, cpu_s = perf_counter() - started, process_time() - spent
    # The features are holes in a file here.
    index = [path for path in folder.iterdir() if not path.name.startswith("features")]
    return [
        _figure(size, "codes made", "s", seconds),
        _figure(size, "codes made, CPU time", "s", cpu_s),
        _figure(size, "codes made, peak memory", "MB", peak_mb(mapped_files=False)),
        _figure(size, "codes on disk", "MB", _disk_mb(caches)),
        _figure(size, "index on disk", "MB", _disk_mb(index)),
    ]


def _refresh(collection: Collection) -> None:
    for name in ("vectors", "captions"):
        nearest.refresh(collection.catalog.array(name))
    matches.refresh(collection.catalog)


def _disk_mb(paths: Sequence[Path]) -> float:
    return sum(path.stat().st_size for path in paths if path.exists()) / 1e6


def search(folder: Path, name: str | None, size: int, count: int) -> list[Measurement]:
    """Opening, `count` searches in each mode after as many others, and some with filters."""
    model = registry.load(name)
    queries = {mode: understood(model, folder, mode, 2 * count) for mode in MODES}
    hits: dict[Mode, list[tuple[str, ...]]] = {}
    started = perf_counter()
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        engine.backend.search(queries["cm"][0], Filters(), 1)
        lines = [_figure(size, "opened and first search", "s", perf_counter() - started)]
        for mode, asked in queries.items():
            ask(engine, asked[:count])
            measured, hits[mode] = ask(engine, asked[count:], f"{size:,}: {mode.upper()}")
            lines += measured
        for percent in SHARES:
            chosen, some = Filters(tags=(share_tag(percent),)), queries["clm"][count:]
            measured, _ = ask(
                engine, some[: max(1, count // 4)], f"{size:,}: CLM, {percent} %", chosen
            )
            lines += measured
        memory = peak_mb(mapped_files=False)
        for mode, asked in queries.items():
            share = recall(hits[mode], scale_collection.exact(collection, model, asked[count:]))
            lines.append(_figure(size, f"{mode.upper()}, recall@10", "share", share))
    return [*lines, _figure(size, "search, peak memory", "MB", memory)]


def search_described(folder: Path, name: str | None, size: int, count: int) -> list[Measurement]:
    """Where models wrote the captions, and tags of what the queries name."""
    model = registry.load(name)
    queries = understood(model, folder, "clm", 2 * count)
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        ask(engine, queries[:count])
        return ask(engine, queries[count:], f"{size:,}, described: CLM")[0]


def understood(model: Model, folder: Path, mode: Mode, count: int) -> list[EncodedQuery]:
    """Synthetic sentences as the backend gets them; without a cut-off, so that ten are found."""
    texts = [text for language in caption_languages(model) for text in timing.sentences(language)]
    chosen = [texts[at * _STRIDE % len(texts)] for at in range(count)]
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        return [engine.encoded(Query(text, mode=mode, min_score=0.0)) for text in chosen]


def ask(
    engine: SearchEngine,
    queries: Sequence[EncodedQuery],
    name: str = "warm-up",
    filters: Filters = NO_FILTERS,
) -> tuple[list[Measurement], list[tuple[str, ...]]]:
    """Wall-clock and CPU time of each query after one to warm up, and the ids it found."""
    engine.backend.search(queries[0], filters, TOP)
    wall, cpu, ids = [], [], []
    for query in queries:
        started, spent = perf_counter(), process_time()
        hits = engine.backend.search(query, filters, TOP)
        wall.append(perf_counter() - started)
        cpu.append(process_time() - spent)
        ids.append(tuple(hit.document.record.id for hit in hits))
    return [latency(PART, name, wall), latency(PART, f"{name}, CPU time", cpu)], ids


def add(folder: Path, name: str | None) -> float:
    """Seconds until NEW images with captions are stored and found; they are taken out again."""
    model = registry.load(name)
    with Collection.create(folder, model) as collection:
        before, documents = collection.catalog.arrays(), _new_documents(collection)
        query = understood(model, folder, "clm", 1)[0]
        collection.engine().backend.search(query, Filters(), 1)
        started = perf_counter()
        catalog = CatalogDocuments(CatalogWriter(collection.catalog))
        catalog.edit({document.record.id: instead(document) for document in documents})
        _refresh(collection)
        collection.engine().backend.search(query, Filters(), 1)
        seconds = perf_counter() - started
        writer = CatalogWriter(collection.catalog)
        with writer.transaction():
            delete = "DELETE FROM images WHERE id = ?"
            ids = ((document.record.id,) for document in documents)
            collection.catalog.connection.executemany(delete, ids)
            for array in before:
                writer.set_array(array)
    return seconds


def _new_documents(collection: Collection) -> list[StoredDocument]:
    """Copies of the first images' vectors under other ids."""
    rows = {name: collection.catalog.array(name).view() for name in ("vectors", "captions")}
    documents = []
    for at in range(NEW):
        captions = [Caption(f"new {at} {number}", "en", "csv") for number in range(3)]
        record = ImageRecord(
            image_id(-1 - at), (f"/bench/new/{at}.jpg",), 640, 480, 100_000, "JPEG", None
        )
        vectors = {
            caption: np.array(rows["captions"][3 * at + number], np.float32)
            for number, caption in enumerate(captions)
        }
        feature = np.zeros(collection.catalog.array("features").width, np.float32)
        vector = np.array(rows["vectors"][at], np.float32)
        document = Document(record, tuple(captions))
        documents.append(StoredDocument.of(document, feature, vector, vectors))
    return documents


def _command(folder: Path, small: Path, size: int) -> Iterator[Measurement]:
    """A whole `capsearch query`, compared with the same on a small index."""
    actions = {
        f"capsearch query, {images:,} images": partial(run, query_command(index))
        for images, index in ((SMALL, small), (size, folder))
    }
    taken = rounds(actions, _COMMANDS, warm_up=0)
    baseline, ours = (latency(PART, name, seconds) for name, seconds in taken.items())
    yield baseline
    yield ours.against(baseline)


def _figure(size: int, name: str, unit: Unit, value: float) -> Measurement:
    return figure(PART, f"{size:,}: {name}", unit, value)


@dataclass(frozen=True, slots=True)
class VectorSearch:
    """What one way to search vectors took, and the rows it found."""

    name: str
    build_s: float
    seconds: tuple[float, ...]  # one for each query
    rows: tuple[tuple[int, ...], ...]


def _peers(folder: Path, name: str | None, size: int) -> Iterator[Measurement]:
    """The vectors alone: ours and others, compared with brute force in numpy."""
    count = QUERIES if size <= GRAPH_ROWS else SLOW_QUERIES
    searched: list[VectorSearch] = [
        alone(search_vectors, folder, name, peer, count) for peer in (*peers(size), OURS)
    ]
    exact, *others = searched  # numpy comes first
    baseline = latency(PART, f"{size:,} vectors: {exact.name}", exact.seconds)
    for way in searched:
        line = latency(PART, f"{size:,} vectors: {way.name}", way.seconds)
        yield line.against(baseline) if way in others else line
        yield _figure(size, f"vectors: {way.name}, built", "s", way.build_s)
        share = recall(way.rows, exact.rows)
        yield _figure(size, f"vectors: {way.name}, recall@10", "share", share)


def peers(rows: int) -> Iterator[str]:
    """The ways that are installed and can be measured with so many rows."""
    for name, (package, _) in PEERS.items():
        if find_spec(package) is not None and (rows <= GRAPH_ROWS or name not in GRAPHS):
            yield name


def search_vectors(folder: Path, name: str | None, peer: str, count: int) -> VectorSearch:
    """The image vectors of a collection searched by one of the peers, or by our codes.

    The first query is asked twice: it warms up.
    """
    sentences = query_vectors(registry.load(name))[0]
    queries = sentences[np.arange(count) * _STRIDE % len(sentences)]
    with Collection.open(folder) as collection:
        array = collection.catalog.array("vectors")
    vectors = array.view() if peer == OURS else np.asarray(array.view())
    started = perf_counter()
    if peer == OURS:
        search = codes_search(nearest.open_search(array), vectors)
    else:
        search = PEERS[peer][1](vectors)
    built = perf_counter() - started
    search(queries[0])
    seconds, rows = [], []
    for query in queries:
        started = perf_counter()
        best = search(query)
        seconds.append(perf_counter() - started)
        rows.append(tuple(best.tolist()))
    return VectorSearch(peer, built, tuple(seconds), tuple(rows))


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
        slots = FoundRows(search, query, score, len(rows)).best(MIN_DEPTH).keys[:TOP]
        return slots

    return top


# By name: the package it needs, and how it is built.
PEERS: Mapping[str, tuple[str, Callable[[Vectors], Search]]] = {
    "numpy": ("numpy", numpy_search),
    "FAISS flat": ("faiss", faiss_flat),
    "hnswlib": ("hnswlib", hnswlib_graph),
    "usearch": ("usearch", usearch_graph),
}
