"""Search at ten thousand to a million images with three captions each, beside other ways.

Wall-clock times need an idle machine; CPU times, given beside them, hardly depend on what else
runs. Every step has a process of its own, so that its memory is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from capsearch.benchmarks import peers, scale_collection, scale_steps, scale_truth
from capsearch.benchmarks.command_line import query_command, run_timed
from capsearch.benchmarks.timing import Measurement, Unit, figure, latency
from capsearch.encoders import models

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
    model = models.load(name)
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
    built: scale_steps.Build = alone(scale_steps.build, folder)
    yield _one(size, "codes made", "s", built.seconds)
    yield _one(size, "codes made, CPU time", "s", built.cpu_s)
    yield _one(size, "codes made, peak memory", "MB", built.peak_mb)
    yield _one(size, "codes on disk", "MB", built.codes_mb)
    yield _one(size, "index on disk", "MB", _disk_mb(folder))
    searched: scale_steps.Searched = alone(scale_steps.search, folder, name, QUERIES)
    yield _one(size, "opened and first search", "s", searched.open_s)
    for mode, times in searched.times.items():
        yield latency(PART, f"{size:,}: {mode.upper()}", times.wall)
        yield latency(PART, f"{size:,}: {mode.upper()}, CPU time", times.cpu)
    for mode, share in searched.recall.items():
        yield _one(size, f"{mode.upper()}, recall@10", "share", share)
    yield _one(size, "search, peak memory", "MB", searched.peak_mb)
    yield _one(size, f"{scale_steps.NEW} images added", "s", alone(scale_steps.add, folder, name))


def _described(folder: Path, name: str | None, size: int) -> Iterator[Measurement]:
    """Where models wrote the captions, and tags of what the queries name."""
    alone(scale_steps.build, folder)
    times: scale_steps.Times = alone(scale_steps.clm, folder, name, QUERIES)
    yield latency(PART, f"{size:,}, described: CLM", times.wall)
    yield latency(PART, f"{size:,}, described: CLM, CPU time", times.cpu)


def _peers(folder: Path, name: str | None, size: int) -> Iterator[Measurement]:
    """The vectors alone: ours and others, compared with brute force in numpy."""
    exact: list[tuple[int, ...]] = []
    baseline = None
    for peer in (*peers.names(size), scale_steps.OURS):
        count = QUERIES if size <= peers.GRAPH_ROWS else SLOW_QUERIES
        found: peers.Peer = alone(scale_steps.vectors, folder, name, peer, count)
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
