"""Tables and plots of the measurements, with the COCO-CN paper's figures for comparison.

Curves of training runs: scores by epoch, and scores by the number of training images.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.benchmarks.names import NamesRow
from capsearch.benchmarks.retrieval import ResultRow
from capsearch.benchmarks.timing import Measurement
from capsearch.encoders.models import model_folder
from capsearch.engine.errors import DataProblem, MissingExtra
from capsearch.engine.metrics import METRICS, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import Console
    from rich.table import Table


# COCO-CN (Li et al. 2018), table X: MRR of CL, CM, CLM, Chinese queries, English captions,
# 1,000 images. The last row is the result of the authors' released code.
PAPER: Mapping[str, tuple[float, float, float]] = {
    "W2VV": (0.450, 0.378, 0.481),
    "W2VV + attention": (0.466, 0.412, 0.499),
    "W2VV + attention + contrastive": (0.468, 0.421, 0.511),
    "the authors' released code": (0.481, 0.432, 0.514),
}
COMPARABLE = 900  # images; in a much smaller collection the task would be easier
PAPER_SPLIT, PAPER_QUERY, PAPER_CAPTION = "test-cococn", "zh", "en"
MODE_COLOURS = {"cm": "#4c78a8", "cl": "#f58518", "clm": "#54a24b"}
PLOT_SUFFIXES = (".png", ".svg", ".pdf")


def print_tables(rows: Sequence[ResultRow], console: Console) -> None:
    """Print one table a split, then the paper's table if the rows are comparable."""
    for split in dict.fromkeys(row.split for row in rows):
        console.print(split_table(split, [row for row in rows if row.split == split]))
    ours = paper_row(rows)
    if ours is not None:
        console.print(paper_table(ours))


def split_table(split: str, rows: Sequence[ResultRow]) -> Table:
    """All figures of a split; MRR with its 95 % interval."""
    from rich.table import Table

    table = Table(title=split, title_justify="left", title_style="bold")
    for heading in ("query", "mode", "captions", "direction"):
        table.add_column(heading)
    for heading in ("queries", "of", "MRR", "95 %", "R@1", "R@5", "R@10", "median"):
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(*_cells(row))
    return table


def paper_row(rows: Sequence[ResultRow]) -> tuple[ResultRow, ResultRow, ResultRow] | None:
    """CL, CM and CLM in the setting of the paper; None if not measured on enough images."""
    by_mode = {
        row.mode: row
        for row in rows
        if (row.split, row.query_lang, row.direction) == (PAPER_SPLIT, PAPER_QUERY, "t2i")
        and row.caption_lang in (None, PAPER_CAPTION)
    }
    if len(by_mode) < 3 or by_mode["cm"].collection < COMPARABLE:
        return None
    return by_mode["cl"], by_mode["cm"], by_mode["clm"]


def paper_table(ours: tuple[ResultRow, ResultRow, ResultRow]) -> Table:
    """The paper's table X with our row, and a note on how the settings differ."""
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
    for name, published in PAPER.items():
        table.add_row(name, *map(_short, published))
    mrr = [row.figures["mrr"].value for row in ours]
    table.add_row("this model", *map(_short, mrr), style="bold")
    return table


def names_table(rows: Sequence[NamesRow]) -> Table:
    """Precision and MRR of names by group and language; P@5 with its 95 % interval."""
    from rich.table import Table

    title = f"{rows[0].queries} over {rows[0].collection:,} photographs"
    table = Table(title=title, title_justify="left", title_style="bold")
    for heading in ("group", "query"):
        table.add_column(heading)
    for heading in ("concepts", "P@5", "95 %", "P@10", "MRR", "same"):
        table.add_column(heading, justify="right")
    for group in dict.fromkeys(row.group for row in rows):
        for row in rows:
            if row.group == group:
                table.add_row(group, row.query_lang, *_names_cells(row))
    return table


def _names_cells(row: NamesRow) -> tuple[str, ...]:
    first, *others = (row.figures[name] for name in ("p5", "p10", "mrr", "same10"))
    return (
        f"{row.concepts:,}",
        _short(first.value),
        f"{_short(first.low)}-{_short(first.high)}",
        *("-" if isnan(one.value) else _short(one.value) for one in others),
    )


def speed_table(measurements: Sequence[Measurement], machine: Mapping[str, object]) -> Table:
    """Each measurement with its ratio to the baseline, and the machine as caption."""
    from rich.table import Table

    where = ", ".join(f"{name} {value}" for name, value in machine.items())
    table = Table(title="speed", title_justify="left", title_style="bold", caption=where)
    for heading in ("part", "measurement"):
        table.add_column(heading)
    for heading in ("p50", "p95", "unit", "samples", "ratio"):
        table.add_column(heading, justify="right")
    table.add_column("baseline")
    for one in measurements:
        ratio = "" if one.ratio is None else f"{one.ratio:.2f}"
        figures = (f"{one.p50:,.1f}", f"{one.p95:,.1f}", one.unit, str(one.samples), ratio)
        table.add_row(one.part, one.name, *figures, one.beside or "")
    return table


def check_plot(path: Path) -> None:
    """Raises MissingExtra without matplotlib, DataProblem for an unsupported file type."""
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise DataProblem(f"a plot is written as {', '.join(PLOT_SUFFIXES)}, not {path.name}")
    if find_spec("matplotlib") is None:
        raise MissingExtra("a plot", "bench")


def save_plot(rows: Sequence[ResultRow], path: Path) -> None:
    """Plot text-to-image MRR as bars with 95 % intervals, one panel a split.

    Raises what `check_plot` raises.
    """
    check_plot(path)
    from matplotlib.figure import Figure as Canvas

    splits = tuple(dict.fromkeys(row.split for row in rows))
    canvas = Canvas(figsize=(1.5 + 4.5 * len(splits), 4.2), layout="constrained")
    panels = canvas.subplots(1, len(splits), sharey=True, squeeze=False)[0]
    for split, axes in zip(splits, panels, strict=True):
        _draw(axes, split, [row for row in rows if (row.split, row.direction) == (split, "t2i")])
    canvas.savefig(path, dpi=150)


def _draw(axes: Axes, split: str, rows: Sequence[ResultRow]) -> None:
    figures = [row.figures["mrr"] for row in rows]
    values = [figure.value for figure in figures]
    axes.bar(
        range(len(rows)),
        values,
        yerr=_error_bars(figures),
        color=[MODE_COLOURS[row.mode] for row in rows],
        capsize=2,
    )
    axes.set_xticks(range(len(rows)), [_label(row) for row in rows], rotation=60, ha="right")
    axes.set_ylim(0, 1)
    axes.set_title(split)
    axes.set_ylabel("MRR, text to image")


def _error_bars(figures: Sequence[Figure]) -> list[list[float]]:
    # A bootstrap interval need not enclose its value, an error bar must.
    return [
        [max(0.0, figure.value - figure.low) for figure in figures],
        [max(0.0, figure.high - figure.value) for figure in figures],
    ]


def _label(row: ResultRow) -> str:
    return f"{row.query_lang} {row.mode}" + (f" {row.caption_lang}" if row.caption_lang else "")


def _cells(row: ResultRow) -> tuple[str, ...]:
    mrr = row.figures["mrr"]
    recalls = [_short(row.figures[name].value) for name in METRICS if name in ("r1", "r5", "r10")]
    return (
        row.query_lang,
        row.mode.upper(),
        row.caption_lang or "-",
        row.direction,
        f"{row.queries:,}",
        f"{row.collection:,}",
        _short(mrr.value),
        f"{_short(mrr.low)}-{_short(mrr.high)}",
        *recalls,
        f"{row.figures['medr'].value:g}",
    )


def _short(value: float) -> str:
    """Three decimals without a leading zero, as in papers: .512, 1.000."""
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0") else text


def _paper_note(ours: tuple[ResultRow, ResultRow, ResultRow]) -> str:
    cl, cm, _ = ours
    return (
        f"The paper searches 1,000 images in every mode. Here CM searches {cm.collection:,}, "
        f"CL and CLM the {cl.collection:,} that have English captions: an easier task, so "
        "compare CM first."
    )


LINES = ("-", "--", ":", "-.")
LANGUAGE_COLOURS = {"en": "#4c78a8", "zh": "#f58518", "ja": "#54a24b"}


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What a model's folder says of its training."""

    name: str
    images: int
    metric: str
    scores: Mapping[str, float]  # on validation, by language
    epochs: tuple[Mapping[str, float], ...]  # the same after every epoch, from the log


def trained_model(folder: Path) -> TrainedModel:
    """A trained head's curve; DataProblem for a model without its training log."""
    card = model_folder.read_card(folder)
    log = folder / model_folder.LOG
    if not log.is_file() or "validation" not in card:
        raise DataProblem(f"{folder} has no training log: it was not written by `capsearch train`")
    epochs = [json.loads(line)["validation"] for line in log.read_text("utf-8").splitlines()]
    scores = dict(card["validation"])
    metric = str(scores.pop("metric"))
    return TrainedModel(
        str(card["name"]), int(card["training"]["images"]), metric, scores, tuple(epochs)
    )


def save_curves(models: Sequence[TrainedModel], path: Path) -> None:
    """Two panels: scores by epoch, and by training images. Raises what `check_plot` raises."""
    check_plot(path)
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10.5, 4.2), layout="constrained")
    by_epoch, by_size = canvas.subplots(1, 2)
    _draw_epochs(by_epoch, models)
    _draw_sizes(by_size, models)
    canvas.savefig(path, dpi=150)


def _draw_epochs(axes: Any, models: Sequence[TrainedModel]) -> None:
    for number, model in enumerate(models):
        for language in model.scores:
            values = [epoch.get(language, float("nan")) for epoch in model.epochs]
            axes.plot(
                range(1, len(values) + 1),
                values,
                LINES[number % len(LINES)],
                color=LANGUAGE_COLOURS.get(language),
                label=f"{model.name}, {language}",
            )
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"validation {models[0].metric}")
    axes.set_title("learning curve")
    axes.legend(fontsize="small")


def _draw_sizes(axes: Any, models: Sequence[TrainedModel]) -> None:
    ordered = sorted(models, key=lambda one: one.images)
    for language in dict.fromkeys(one for model in ordered for one in model.scores):
        having = [model for model in ordered if language in model.scores]
        axes.plot(
            [model.images for model in having],
            [model.scores[language] for model in having],
            "o-",
            color=LANGUAGE_COLOURS.get(language),
            label=language,
        )
    axes.set_xlabel("training images")
    axes.set_title("data size")
    axes.legend(fontsize="small")
