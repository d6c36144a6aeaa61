"""What is measured on one synthetic collection; each step runs in a process of its own."""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time

import numpy as np

from capsearch.benchmarks import peers, scale_truth, synthetic
from capsearch.benchmarks.scale_collection import SHARES, caption_languages, image_id, share_tag
from capsearch.benchmarks.scale_vectors import query_vectors
from capsearch.encoders import models
from capsearch.encoders.models import Model
from capsearch.engine.protocols import NewDocument
from capsearch.engine.query import EncodedQuery, Query
from capsearch.engine.records import Caption, Document, Filters, ImageRecord, Mode
from capsearch.engine.search import SearchEngine
from capsearch.indexer.embedded import caption_images, codes, transfer
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.collection import Collection

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
        codes.refresh(collection.catalog.array(name))
    caption_images.refresh(collection.catalog)


def search(folder: Path, name: str | None, count: int) -> Searched:
    """Opens a collection and asks it `count` queries in each mode, after as many others."""
    model = models.load(name)
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
    model = models.load(name)
    queries = understood(model, folder, "clm", 2 * count)
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        ask(engine, queries[:count], Filters())
        return ask(engine, queries[count:], Filters())[0]


def understood(model: Model, folder: Path, mode: Mode, count: int) -> list[EncodedQuery]:
    """Synthetic sentences as the backend gets them; without a cut-off, so that ten are found."""
    texts = [
        text for language in caption_languages(model) for text in synthetic.sentences(language)
    ]
    chosen = [texts[at * _STRIDE % len(texts)] for at in range(count)]
    with Collection.open(folder, model) as collection:
        engine = collection.engine()
        return [engine.encoded(Query(text, mode=mode, min_score=0.0)) for text in chosen]


def ask(
    engine: SearchEngine, queries: Sequence[EncodedQuery], filters: Filters
) -> tuple[Times, list[tuple[str, ...]]]:
    """The time of each query after one to warm up, and the ids of what it found."""
    engine.backend.search(queries[0], filters, scale_truth.TOP)
    wall, cpu, found = [], [], []
    for query in queries:
        started, spent = perf_counter(), process_time()
        hits = engine.backend.search(query, filters, scale_truth.TOP)
        wall.append(perf_counter() - started)
        cpu.append(process_time() - spent)
        found.append(tuple(one.document.record.id for one in hits))
    return Times(tuple(wall), tuple(cpu)), found


def vectors(folder: Path, name: str | None, peer: str, count: int) -> peers.Peer:
    """The image vectors of a collection searched by one of the peers, or by our codes."""
    chosen = query_vectors(models.load(name))[0]
    queries = chosen[np.arange(count) * _STRIDE % len(chosen)]
    with Collection.open(folder) as collection:
        array = collection.catalog.array("vectors")
    if peer != OURS:
        return peers.measure(peer, np.asarray(array.view()), queries)
    return peers.measured(
        OURS, lambda: peers.codes_search(codes.open_search(array), array.view()), queries
    )


def add(folder: Path, name: str | None) -> float:
    """Seconds until NEW images with captions are stored and found; they are taken out again."""
    model = models.load(name)
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
            for slots in scale_truth.best(images, captions, asked, caption_languages(model))
        ]
        for mode, asked in queries.items()
    }
    return {mode: scale_truth.recall(found[mode], exact[mode]) for mode in queries}


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
