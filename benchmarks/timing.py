"""Timing: warm-up, percentiles, ratios to a baseline, and the machine they come from."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Literal

import numpy as np

Unit = Literal["ms", "1/s", "s", "MB", "share"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the speed table.

    In "ms", p95 is the 95th percentile; in "1/s" (higher is better) it is the rate that 95 % of
    the batches reach. `ratio` is p50 divided by the p50 of the baseline named in `beside`.
    """

    part: str
    name: str
    unit: Unit
    p50: float
    p95: float
    samples: int
    beside: str | None = None
    ratio: float | None = None

    def against(self, baseline: Measurement) -> Measurement:
        """The same figures with their ratio to a baseline."""
        return Measurement(
            self.part,
            self.name,
            self.unit,
            self.p50,
            self.p95,
            self.samples,
            baseline.name,
            self.p50 / baseline.p50,
        )


def timed(action: Callable[[], object], clock: Callable[[], float] = perf_counter) -> float:
    """The duration of one call in seconds; by `process_time`, those that a CPU worked on it."""
    started = clock()
    action()
    return clock() - started


def rounds(
    actions: Mapping[str, Callable[[], object]],
    repeats: int,
    warm_up: int = 1,
    clock: Callable[[], float] = perf_counter,
) -> Mapping[str, Sequence[float]]:
    """Durations of each action in seconds, measured in turns so that load affects all alike."""
    for _ in range(warm_up):
        for action in actions.values():
            action()
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            taken[name].append(timed(action, clock))
    return taken


def latency(part: str, name: str, seconds: Sequence[float]) -> Measurement:
    """Milliseconds per call."""
    p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
    return Measurement(part, name, "ms", float(p50), float(p95), len(seconds))


def rate(part: str, name: str, counts: Sequence[int], seconds: Sequence[float]) -> Measurement:
    """Items per second; one sample is one batch."""
    rates = np.divide(counts, seconds)
    p50, p95 = np.percentile(rates, [50, 5])
    return Measurement(part, name, "1/s", float(p50), float(p95), len(seconds))


def figure(part: str, name: str, unit: Unit, value: float) -> Measurement:
    """A single figure that is neither a latency nor a rate."""
    return Measurement(part, name, unit, value, value, 1)


def machine() -> Mapping[str, object]:
    """The machine, and the version and commit of capsearch."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "capsearch": version("capsearch"),
        "commit": commit(Path(__file__).parent),
    }


def commit(folder: Path) -> str | None:
    """The current commit of a folder, with a plus if files were changed; None outside git."""
    try:
        hash_ = _git(folder, "rev-parse", "--short=12", "HEAD")
        return hash_ + ("+" if _git(folder, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _cpu_name() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        found = None
    return found.group(1).strip() if found else platform.processor() or platform.machine()
