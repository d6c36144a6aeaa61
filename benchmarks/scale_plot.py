"""Search time over the number of images, both on logarithmic axes."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from capsearch.benchmarks.report import check_plot
from capsearch.benchmarks.scale import PART
from capsearch.benchmarks.timing import Measurement
from capsearch.engine.errors import DataProblem

_NAME = re.compile(r"(?P<size>[\d,]+)(?P<vectors> vectors)?: (?P<what>.+)")
_SHOWN = ("CM", "CLM")  # of whole searches; of vectors, everything


def curves(measured: Sequence[Measurement]) -> Mapping[str, Sequence[tuple[int, float]]]:
    """(images, p50 in ms) of every kind of search."""
    found: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for one in measured:
        name = _NAME.fullmatch(one.name)
        if one.part != PART or one.unit != "ms" or name is None:
            continue
        if name["vectors"] or name["what"] in _SHOWN:
            label = f"{name['what']}, vectors alone" if name["vectors"] else name["what"]
            found[label].append((int(name["size"].replace(",", "")), one.p50))
    return found


def save_scale_plot(measured: Sequence[Measurement], path: Path) -> None:
    """Writes the plot; what `check_plot` raises, and DataProblem without any measurement."""
    check_plot(path)
    from matplotlib.figure import Figure

    lines = curves(measured)
    if not lines:
        raise DataProblem("a plot shows --part scale, which was not measured; add it")
    canvas = Figure(figsize=(6.4, 4.4), layout="constrained")
    axes = canvas.subplots()
    for label, points in lines.items():
        sizes, times = zip(*sorted(points), strict=True)
        ours = "vectors" not in label or label.startswith("capsearch")
        axes.loglog(sizes, times, marker="o", label=label, linestyle="-" if ours else "--")
    axes.set_xlabel("images")
    axes.set_ylabel("p50, ms")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize="small")
    canvas.savefig(path, dpi=110)
