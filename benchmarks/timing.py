"""Timing things honestly: warm-up, percentiles, a yardstick, and where it was measured."""

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

Unit = Literal["ms", "1/s"]


@dataclass(frozen=True, slots=True)
class Measurement:
    """One line of the speed table.

    In "ms", p95 is the slow end; in "1/s" (a rate, more is better) it is the rate that 95 %
    of the batches reach. `ratio` is p50 over the yardstick's p50, named by `beside`.
    """

    part: str
    name: str
    unit: Unit
    p50: float
    p95: float
    samples: int
    beside: str | None = None
    ratio: float | None = None

    def against(self, yardstick: Measurement) -> Measurement:
        """The same figures, compared with another line's."""
        return Measurement(
            self.part,
            self.name,
            self.unit,
            self.p50,
            self.p95,
            self.samples,
            yardstick.name,
            self.p50 / yardstick.p50,
        )


def timed(action: Callable[[], object]) -> float:
    """Seconds that one call takes."""
    started = perf_counter()
    action()
    return perf_counter() - started


def rounds(
    actions: Mapping[str, Callable[[], object]], repeats: int, warm_up: int = 1
) -> Mapping[str, Sequence[float]]:
    """Seconds of each action, taken in turns so that a busy moment hits all of them alike."""
    for _ in range(warm_up):
        for action in actions.values():
            action()
    taken: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(repeats):
        for name, action in actions.items():
            taken[name].append(timed(action))
    return taken


def latency(part: str, name: str, seconds: Sequence[float]) -> Measurement:
    """Milliseconds a call."""
    p50, p95 = np.percentile(seconds, [50, 95]) * 1e3
    return Measurement(part, name, "ms", float(p50), float(p95), len(seconds))


def rate(part: str, name: str, counts: Sequence[int], seconds: Sequence[float]) -> Measurement:
    """Things per second, batch by batch."""
    rates = np.divide(counts, seconds)
    p50, p95 = np.percentile(rates, [50, 5])
    return Measurement(part, name, "1/s", float(p50), float(p95), len(seconds))


def machine() -> Mapping[str, object]:
    """What the figures were measured on, and which capsearch."""
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "capsearch": version("capsearch"),
        "commit": commit(Path(__file__).parent),
    }


def commit(folder: Path) -> str | None:
    """The commit a folder is at, with a plus if it has been changed; None outside git."""
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
