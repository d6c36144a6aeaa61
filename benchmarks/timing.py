"""What all measurements of speed share.

Timing with a warm-up, percentiles and ratios to a baseline; memory; the machine; synthetic
sentences, images and vectors; `capsearch` in new processes.
"""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from io import BytesIO
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from capsearch.engine.errors import CapsearchError
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import unit

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
        return replace(self, beside=baseline.name, ratio=self.p50 / baseline.p50)


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
        model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        model = None
    return model.group(1).strip() if model else platform.processor() or platform.machine()


def peak_mb(mapped_files: bool = True) -> float:
    """The most memory this process had, in MB.

    Without `mapped_files`, on Linux, neither these count, which the system takes back when it
    needs the space, nor what the parent process had, as it does in `ru_maxrss`.
    """
    status = Path("/proc/self/status")
    if not mapped_files and status.exists():
        sizes = dict(re.findall(r"(VmHWM|RssFile):\s+(\d+) kB", status.read_text("utf-8")))
        if len(sizes) == 2:
            return (int(sizes["VmHWM"]) - int(sizes["RssFile"])) * 1024 / 1e6
    import resource  # not on Windows

    unit = 1 if sys.platform == "darwin" else 1024  # bytes there, kilobytes elsewhere
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


def alone(step: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a step in a new process, whose memory is its own."""
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        return pool.submit(step, *arguments).result()


IMAGE_SIZE = (640, 480)  # pixels; a common size on the web
# 6 x 6 x 6 sentences in each language, so that no measurement uses one twice.
WORDS: Mapping[str, tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...]]] = {
    "en": (
        "{} {} {}",
        ("A black cat", "Two children", "An old man", "A woman in red", "A dog", "Some birds"),
        ("sleeping", "looking around", "waiting", "playing", "eating", "walking slowly"),
        ("on the beach", "near a train", "in a kitchen", "under a tree", "at night", "in snow"),
    ),
    "zh": (
        "{0}在{2}{1}",
        ("一只黑猫", "两个孩子", "一位老人", "穿红衣服的女人", "一条狗", "几只鸟"),
        ("睡觉", "张望", "等待", "玩耍", "吃东西", "慢慢地走"),
        ("海滩上", "火车旁边", "厨房里", "树下", "夜晚的街道上", "雪地里"),
    ),
    "ja": (
        "{0}が{2}{1}",
        ("黒い猫", "二人の子供", "老人", "赤い服の女性", "犬", "数羽の鳥"),
        (
            "眠っている",
            "辺りを見ている",
            "待っている",
            "遊んでいる",
            "食べている",
            "ゆっくり歩いている",
        ),
        ("浜辺で", "電車のそばで", "台所で", "木の下で", "夜の通りで", "雪の中で"),
    ),
}


def sentences(language: str) -> tuple[str, ...]:
    """216 different sentences in a language of WORDS."""
    pattern, *parts = WORDS[language]
    return tuple(pattern.format(*words) for words in product(*parts))


def synthetic_images(
    count: int, seed: int = 0, size: tuple[int, int] = IMAGE_SIZE
) -> tuple[bytes, ...]:
    """JPEGs of smooth random shapes, with about the file size of real images."""
    from PIL import Image

    generator = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        coarse = generator.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        file = BytesIO()
        Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(file, "JPEG")
        files.append(file.getvalue())
    return tuple(files)


def vectors(count: int, dimension: int, seed: int = 0) -> Vectors:
    """(count, dimension) random vectors with unit norm."""
    rows = np.random.default_rng(seed).standard_normal((count, dimension), np.float32)
    return unit(rows)


PYTHON = (sys.executable, "-c")
CAPSEARCH = (*PYTHON, "from capsearch.ui.cli.main import run; run()")


def query_command(index: Path, language: str = "en") -> tuple[str, ...]:
    """A search of an index by a synthetic sentence."""
    return (*CAPSEARCH, "query", sentences(language)[0], "--index", str(index))


def run(command: Sequence[str]) -> None:
    """Runs a command; CapsearchError with what it said if it fails."""
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        shown = " ".join(command[2:]).replace(CAPSEARCH[-1], "capsearch")
        raise CapsearchError(f"`{shown}` failed: {done.stderr.strip()[-500:]}")


def run_timed(command: Sequence[str]) -> float:
    """The seconds a command takes."""
    return timed(partial(run, command))
