"""An embedded index beside its copy in a cluster: the same answers, and how fast.

    python -m capsearch.benchmarks.cluster INDEX_FOLDER URL SENTENCES [MIN_SCORE]

SENTENCES has one query a line. Both are asked in this process; encoding is not counted. With a
MIN_SCORE of 0 every query has a full page, also where nothing matches.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from capsearch.engine.query import Query
from capsearch.engine.records import MODES, Mode, SearchResult
from capsearch.engine.search import SearchEngine
from capsearch.indexer.elastic.collection import ElasticCollection
from capsearch.indexer.sqlite.collection import Collection

TOP = 10
CLIENTS = (1, 8)


@dataclass(frozen=True, slots=True)
class Agreement:
    """Queries of one mode: with the same ids in the same order, and the largest score error."""

    mode: Mode
    queries: int
    same_top: float  # share
    largest_error: float
    search_ms: Mapping[str, tuple[float, float]]  # p50, p95


def compare(
    embedded: SearchEngine,
    cluster: SearchEngine,
    sentences: Sequence[str],
    mode: Mode,
    min_score: float | None = None,
) -> Agreement:
    """Asks both the same queries, one after the other."""
    queries = [Query(text, mode=mode, limit=TOP, min_score=min_score) for text in sentences]
    for query in queries[:5]:  # warm-up
        embedded.search(query), cluster.search(query)
    answers = [(embedded.search(query), cluster.search(query)) for query in queries]
    times = {
        name: percentiles([pair[at].timings_ms["search"] for pair in answers])
        for at, name in enumerate(("embedded", "cluster"))
    }
    same = float(np.mean([_ids(mine) == _ids(theirs) for mine, theirs in answers]))
    error = max((_error(mine, theirs) for mine, theirs in answers), default=0.0)
    return Agreement(mode, len(queries), same, error, times)


def latency(
    engine: SearchEngine, sentences: Sequence[str], clients: int, min_score: float | None = None
) -> tuple[tuple[float, float], float]:
    """(p50, p95) of the search in ms with so many clients at once, and queries a second."""
    queries = [Query(text, limit=TOP, min_score=min_score) for text in sentences]
    started = perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        times = [result.timings_ms["search"] for result in pool.map(engine.search, queries)]
    return percentiles(times), len(queries) / (perf_counter() - started)


def percentiles(times: Sequence[float]) -> tuple[float, float]:
    """p50 and p95."""
    p50, p95 = np.percentile(times, (50, 95))
    return round(float(p50), 1), round(float(p95), 1)


def main(index: str, url: str, file: str, cut_off: str = "") -> None:
    """Prints what was measured, a line each."""
    min_score = float(cut_off) if cut_off else None
    sentences = Path(file).read_text(encoding="utf-8").splitlines()
    with Collection.open(Path(index)) as mine, ElasticCollection.open(url) as theirs:
        embedded, cluster = mine.engine(), theirs.engine()
        print(f"{len(embedded.backend)} images, {mine.stats().captions} captions")
        for mode in MODES:
            print(asdict(compare(embedded, cluster, sentences, mode, min_score)))
        for clients in CLIENTS:
            for name, engine in (("embedded", embedded), ("cluster", cluster)):
                times, rate = latency(engine, sentences, clients, min_score)
                print(f"{name}, {clients} clients: p50, p95 {times} ms; {rate:.1f} queries/s")


def _ids(result: SearchResult) -> list[str]:
    return [hit.image_id for hit in result.hits]


def _error(mine: SearchResult, theirs: SearchResult) -> float:
    """The largest difference of scores where ids agree."""
    scores = {hit.image_id: hit.score for hit in theirs.hits}
    both = [abs(hit.score - scores[hit.image_id]) for hit in mine.hits if hit.image_id in scores]
    return max(both, default=0.0)


if __name__ == "__main__":
    main(*sys.argv[1:])
