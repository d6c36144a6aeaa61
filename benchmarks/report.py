"""Figures for people: tables, the paper's beside ours, and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from capsearch.benchmarks.retrieval import ResultRow
from capsearch.benchmarks.timing import Measurement
from capsearch.engine.errors import DataProblem, MissingExtra
from capsearch.engine.metrics import METRICS, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.table import Table

# COCO-CN (Li et al. 2018), table X: MRR of CL, CM, CLM, Chinese queries, English captions,
# 1,000 photos. The last row is what the authors' released code reaches.
PAPER: Mapping[str, tuple[float, float, float]] = {
    "W2VV": (0.450, 0.378, 0.481),
    "W2VV + attention": (0.466, 0.412, 0.499),
    "W2VV + attention + contrastive": (0.468, 0.421, 0.511),
    "the authors' released code": (0.481, 0.432, 0.514),
}
COMPARABLE = 900  # photos; figures from a much smaller collection would flatter us
PAPER_SPLIT, PAPER_QUERY, PAPER_CAPTION = "test-cococn", "zh", "en"
COLOURS = {"cm": "#4c78a8", "cl": "#f58518", "clm": "#54a24b"}
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def print_tables(runs: Sequence[ResultRow], console: Console) -> None:
    """One table a split, then the paper's where it can be compared."""
    for split in dict.fromkeys(run.split for run in runs):
        console.print(split_table(split, [run for run in runs if run.split == split]))
    ours = paper_row(runs)
    if ours is not None:
        console.print(paper_table(ours))


def split_table(split: str, runs: Sequence[ResultRow]) -> Table:
    """All figures of a split; MRR with its 95 % interval."""
    from rich.table import Table

    table = Table(title=split, title_justify="left", title_style="bold")
    for heading in ("query", "mode", "captions", "direction"):
        table.add_column(heading)
    for heading in ("queries", "of", "MRR", "95 %", "R@1", "R@5", "R@10", "median"):
        table.add_column(heading, justify="right")
    for run in runs:
        table.add_row(*_cells(run))
    return table


def paper_row(runs: Sequence[ResultRow]) -> tuple[ResultRow, ResultRow, ResultRow] | None:
    """Our CL, CM and CLM where the paper has its own; None when not measured on as many photos."""
    found = {
        run.mode: run
        for run in runs
        if (run.split, run.query_lang, run.direction) == (PAPER_SPLIT, PAPER_QUERY, "t2i")
        and run.caption_lang in (None, PAPER_CAPTION)
    }
    if len(found) < 3 or found["cm"].collection < COMPARABLE:
        return None
    return found["cl"], found["cm"], found["clm"]


def paper_table(ours: tuple[ResultRow, ResultRow, ResultRow]) -> Table:
    """The paper's table X with our row, and what is not the same."""
    from rich.table import Table

    table = Table(
        title="COCO-CN table X: MRR, Chinese queries, English captions",
        title_justify="left",
        title_style="bold",
        caption=_paper_note(ours),
        caption_justify="left",
    )
    table.add_column("model")
    for heading in ("CL", "CM", "CLM"):
        table.add_column(heading, justify="right")
    for name, row in PAPER.items():
        table.add_row(name, *map(_short, row))
    mrr = [run.figures["mrr"].value for run in ours]
    table.add_row("this model", *map(_short, mrr), style="bold")
    return table


def speed_table(lines: Sequence[Measurement], machine: Mapping[str, object]) -> Table:
    """Each figure beside its yardstick, and the machine they were measured on."""
    from rich.table import Table

    where = ", ".join(f"{name} {value}" for name, value in machine.items())
    table = Table(title="speed", title_justify="left", title_style="bold", caption=where)
    for heading in ("part", "what"):
        table.add_column(heading)
    for heading in ("p50", "p95", "unit", "times", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("to")
    for line in lines:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        figures = (f"{line.p50:,.1f}", f"{line.p95:,.1f}", line.unit, str(line.samples), ratio)
        table.add_row(line.part, line.name, *figures, line.beside or "")
    return table


def check_plot(path: Path) -> None:
    """MissingExtra without matplotlib; DataProblem for a file type no plot is written in."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise DataProblem(f"a plot is written as {', '.join(PLOT_SUFFIXES)}, not {path.name}")
    if find_spec("matplotlib") is None:
        raise MissingExtra("a plot", "bench")


def save_plot(runs: Sequence[ResultRow], path: Path) -> None:
    """Text-to-image MRR as bars with 95 % intervals, one panel a split; see `check_plot`."""
    check_plot(path)
    from matplotlib.figure import Figure as Canvas

    splits = tuple(dict.fromkeys(run.split for run in runs))
    canvas = Canvas(figsize=(1.5 + 4.5 * len(splits), 4.2), layout="constrained")
    panels = canvas.subplots(1, len(splits), sharey=True, squeeze=False)[0]
    for split, axes in zip(splits, panels, strict=True):
        _draw(axes, split, [run for run in runs if (run.split, run.direction) == (split, "t2i")])
    canvas.savefig(path, dpi=150)


def _draw(axes: Axes, split: str, runs: Sequence[ResultRow]) -> None:
    figures = [run.figures["mrr"] for run in runs]
    values = [figure.value for figure in figures]
    axes.bar(
        range(len(runs)),
        values,
        yerr=_error_bars(figures),
        color=[COLOURS[run.mode] for run in runs],
        capsize=2,
    )
    axes.set_xticks(range(len(runs)), [_label(run) for run in runs], rotation=60, ha="right")
    axes.set_ylim(0, 1)
    axes.set_title(split)
    axes.set_ylabel("MRR, text to image")


def _error_bars(figures: Sequence[Figure]) -> list[list[float]]:
    # A bootstrap interval need not enclose its value, an error bar must.
    return [
        [max(0.0, figure.value - figure.low) for figure in figures],
        [max(0.0, figure.high - figure.value) for figure in figures],
    ]


def _label(run: ResultRow) -> str:
    return f"{run.query_lang} {run.mode}" + (f" {run.caption_lang}" if run.caption_lang else "")


def _cells(run: ResultRow) -> tuple[str, ...]:
    mrr = run.figures["mrr"]
    recalls = [_short(run.figures[name].value) for name in METRICS if name in ("r1", "r5", "r10")]
    return (
        run.query_lang,
        run.mode.upper(),
        run.caption_lang or "-",
        run.direction,
        f"{run.queries:,}",
        f"{run.collection:,}",
        _short(mrr.value),
        f"{_short(mrr.low)}-{_short(mrr.high)}",
        *recalls,
        f"{run.figures['medr'].value:g}",
    )


def _short(value: float) -> str:
    """.512 as papers write it, 1.000 at the end of the scale."""
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0") else text


def _paper_note(ours: tuple[ResultRow, ResultRow, ResultRow]) -> str:
    cl, cm, _ = ours
    return (
        f"The paper searches 1,000 photos in every mode. Here CM searches {cm.collection:,}, "
        f"CL and CLM the {cl.collection:,} that have English captions: an easier task, so "
        "compare CM first."
    )
