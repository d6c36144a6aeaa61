"""How a network encodes fastest on this machine: batch size and threads, measured once.

One batch on all cores, or a batch on each core at the same time; small batches fit the caches of
the CPU, large ones suit a GPU. What was measured is kept in `tuning.json` in the user's cache
directory, and measured again when it is not there.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter

from platformdirs import user_cache_path

from capsearch.encoders.atomic import write_text

FILE = "tuning.json"
_MIN_S = 0.2  # of a measurement


@dataclass(frozen=True, slots=True)
class Tuning:
    """Images in a batch, and batches at the same time; a lone batch uses all cores."""

    batch: int
    workers: int


SAFE = Tuning(batch=8, workers=1)
TUNED_AFTER = 256  # images in one process; measuring takes as long as encoding as many


def candidates(cores: int) -> tuple[Tuning, ...]:
    """What is tried."""
    batches = (1, 4, 8, 32)
    workers = (1,) if cores == 1 else (1, cores)
    return tuple(Tuning(batch, many) for many in workers for batch in batches)


def tuned(key: str, run: Callable[[Tuning, int], None]) -> Tuning:
    """The fastest way for the network called `key`: as measured before, or measured now.

    `run` encodes so many images in the given way.
    """
    path, cores = user_cache_path("capsearch") / FILE, os.cpu_count() or 1
    name = f"{key} on {cores} cores"
    known = _read(path)
    if name in known:
        return known[name]
    found = max(candidates(cores), key=lambda one: _rate(one, run))
    stored = {key: asdict(one) for key, one in {**_read(path), name: found}.items()}
    with suppress(OSError):  # then it is measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(stored, indent=1, sort_keys=True))
    return found


def chunks(count: int, size: int) -> Iterator[slice]:
    """Slices of `size` that cover so many images."""
    return (slice(start, start + size) for start in range(0, count, size))


def _rate(one: Tuning, run: Callable[[Tuning, int], None]) -> float:
    """Images a second."""
    count = one.batch * one.workers
    run(one, count)  # the first run allocates
    started, done = perf_counter(), 0
    while (taken := perf_counter() - started) < _MIN_S:
        run(one, count)
        done += count
    return done / taken


def _read(path: Path) -> Mapping[str, Tuning]:
    """What was measured before; a damaged file counts as none."""
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        return {
            name: Tuning(int(one["batch"]), int(one["workers"])) for name, one in stored.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
