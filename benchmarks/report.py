"""Tables and plots of the measurements, with the papers' figures beside ours."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.encoders.models import model_folder
from capsearch.engine.errors import DataProblem, MissingExtra
from capsearch.engine.metrics import METRICS, Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from capsearch.benchmarks.captions import CaptionRow, TagRow
    from capsearch.benchmarks.evidence import CutoffRow, ShareRow
    from capsearch.benchmarks.evidence import NamesRow as EvidenceNamesRow
    from capsearch.benchmarks.names import NamesRow
    from capsearch.benchmarks.retrieval import ResultRow
    from capsearch.benchmarks.timing import Measurement

PLOT_SUFFIXES = (".png", ".svg", ".pdf")
MODE_COLOURS = {"cm": "#4c78a8", "cl": "#f58518", "clm": "#54a24b"}
LANGUAGE_COLOURS = {"en": "#4c78a8", "zh": "#f58518", "ja": "#54a24b"}
LINES = ("-", "--", ":", "-.")
Cells = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Figures as text, a row of cells each; all rows are as long as the headings."""

    title: str
    headings: Cells
    rows: Sequence[Cells]
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class PublishedTable:
    """A paper's figures by model, and the setting they were measured in."""

    title: str
    language: str
    setting: str  # how it differs from ours
    rows: Mapping[str, Mapping[str, float]]


def _cococn(bleu: float, meteor: float, rouge: float, cider: float) -> dict[str, float]:
    values = {"BLEU-4": bleu, "METEOR": meteor, "ROUGE-L": rouge, "CIDEr-D": cider}
    return {name: round(value / 100, 3) for name, value in values.items()}


def _figures(*values: float | None) -> dict[str, float]:
    """BLEU-1 to 4, METEOR, ROUGE-L, CIDEr; None where the paper has none."""
    names = ("BLEU-1", "BLEU-2", "BLEU-3", "BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D")
    pairs = zip(names, values, strict=True)
    return {name: value for name, value in pairs if value is not None}


CAPTION_TABLES = (
    PublishedTable(
        "COCO-CN tables VIII and XIII",
        "zh",
        "1,000 test images with six references; CIDEr; words of BosonNLP",
        {
            "COCO-CN": _cococn(31.7, 27.2, 52.0, 84.6),
            "COCO-Mixed": _cococn(29.8, 28.6, 50.3, 86.8),
            "transfer": _cococn(33.7, 28.2, 52.9, 89.2),
            "artificial token": _cococn(31.8, 26.9, 51.5, 85.4),
            "sequential": _cococn(36.7, 29.5, 55.0, 98.4),
            "image + tags": _cococn(31.3, 30.1, 53.2, 90.0),
        },
    ),
    PublishedTable(
        "Miyazaki 2016 table 2",
        "ja",
        "2,000 test images with about five references",
        {
            "monolingual": _figures(0.715, 0.573, 0.468, 0.379, None, 0.616, 0.580),
            "alternate": _figures(0.709, 0.565, 0.460, 0.370, None, 0.611, 0.568),
            "transfer": _figures(0.717, 0.574, 0.469, 0.380, None, 0.619, 0.625),
        },
    ),
    PublishedTable(
        "Mao 2015 table 4, Karpathy 2016 table 3",
        "en",
        "COCO test images with five references",
        {
            "m-RNN": _figures(0.668, 0.488, 0.342, 0.239, 0.221, 0.489, 0.729),
            "m-RNN, beam": _figures(0.680, 0.506, 0.369, 0.272, 0.225, 0.499, 0.791),
            "multimodal RNN": _figures(0.625, 0.450, 0.321, 0.230, 0.195, None, 0.660),
            "nearest neighbour": _figures(0.480, 0.281, 0.166, 0.100, 0.157, None, 0.38),
        },
    ),
)

# COCO-CN table IV: precision, recall and F of the five best Chinese tags, 1,000 test images.
TAG_TABLE: Mapping[str, tuple[float, float, float]] = {
    "MLP trained on COCO-CN": (0.477, 0.576, 0.503),
    "multi-task MLP": (0.482, 0.583, 0.508),
    "cascading MLP": (0.491, 0.594, 0.517),
}

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


def retrieval_tables(rows: Sequence[ResultRow]) -> Iterator[Table]:
    """All figures of each split, then the paper's table if the rows are comparable."""
    headings = ("query", "mode", "captions", "direction", "queries", "of")
    for split in dict.fromkeys(row.split for row in rows):
        cells = [_retrieval_cells(row) for row in rows if row.split == split]
        yield Table(split, (*headings, "MRR", "95 %", "R@1", "R@5", "R@10", "median"), cells)
    ours = paper_row(rows)
    if ours is not None:
        yield paper_table(ours)


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
    rows = [(name, *map(_short, published)) for name, published in PAPER.items()]
    rows.append(("this model", *(_short(row.figures["mrr"].value) for row in ours)))
    title = "COCO-CN table X: MRR, Chinese queries, English captions"
    return Table(title, ("model", "CL", "CM", "CLM"), rows, [_paper_note(ours)])


def _paper_note(ours: tuple[ResultRow, ResultRow, ResultRow]) -> str:
    cl, cm, _ = ours
    return (
        f"The paper searches 1,000 images in every mode. Here CM searches {cm.collection:,}, "
        f"CL and CLM the {cl.collection:,} that have English captions: an easier task, so "
        "compare CM first."
    )


def _retrieval_cells(row: ResultRow) -> Cells:
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
        _interval(mrr),
        *recalls,
        f"{row.figures['medr'].value:g}",
    )


def names_table(rows: Sequence[NamesRow]) -> Table:
    """Precision and MRR of names by group and language; P@5 with its 95 % interval."""
    cells = []
    for group in dict.fromkeys(row.group for row in rows):
        for row in (row for row in rows if row.group == group):
            first, *others = (row.figures[name] for name in ("p5", "p10", "mrr", "same10"))
            figures = ("-" if isnan(figure.value) else _short(figure.value) for figure in others)
            measured = (_short(first.value), _interval(first), *figures)
            cells.append((group, row.query_lang, f"{row.concepts:,}", *measured))
    title = f"{rows[0].queries} over {rows[0].collection:,} photographs"
    return Table(title, ("group", "query", "concepts", "P@5", "95 %", "P@10", "MRR", "same"), cells)


def evidence_tables(
    shares: Sequence[ShareRow], names: Sequence[EvidenceNamesRow], sentences: Sequence[CutoffRow]
) -> Iterator[Table]:
    """Collections with some captions, then the cut-off on names and on sentences."""
    yield Table(
        "MRR by the share of captioned images",
        ("query", "captions", "share", "CM", "CLM", "evidence", "calibration error"),
        [
            (
                row.query_lang,
                row.caption_lang,
                f"{row.share:g}",
                *map(_cell, (row.cm, row.clm, row.evidence, row.calibration_error)),
            )
            for row in shares
        ],
    )
    headings = ("language", "queries", "present, lost", "absent, empty", "calibration error")
    if names:
        precisions = [(_cell(row.precision_cm), _cell(row.precision)) for row in names]
        cells = [(*_cutoff(row), *pair) for row, pair in zip(names, precisions, strict=True)]
        yield Table("names", (*headings, "CM P@10", "evidence P@10"), cells)
    yield Table("sentences", headings, [_cutoff(row) for row in sentences])


def _cutoff(row: CutoffRow) -> Cells:
    figures = (f"{row.lost:.1%}", f"{row.empty:.1%}", _cell(row.calibration_error))
    return (row.language, str(row.queries), *figures)


def caption_tables(rows: Sequence[CaptionRow]) -> Iterator[Table]:
    """A table for each language, with the papers' figures in it."""
    from capsearch.encoders.train.caption_metrics import METRICS as metrics

    for language in dict.fromkeys(row.language for row in rows):
        cells, notes = [], []
        for row in (row for row in rows if row.language == language):
            took = "" if row.ms_per_image is None else f"{row.ms_per_image:.1f}"
            figures = (_cell(row.scores.get(name)) for name in metrics)
            cells.append((row.model, str(row.images), *figures, took))
        published = [table for table in CAPTION_TABLES if table.language == language]
        for number, table in enumerate(published, start=1):
            notes.append(f"[{number}] {table.title}: {table.setting}")
            for name, scores in table.rows.items():
                figures = (_cell(scores.get(metric)) for metric in metrics)
                cells.append((f"[{number}] {name}", "", *figures, ""))
        yield Table(language, ("model", "images", *metrics, "ms/image"), cells, notes)


def tags_table(rows: Sequence[TagRow]) -> Table:
    """Precision, recall and F of each tagger, and those of the paper."""
    headings = ("model", "language", "images", "tags", "P@5", "R@5", "F@5", "F shown")
    cells = []
    for row in rows:
        figures = (row.precision, row.recall, row.f, row.f_shown, row.calibration_error)
        counts = (str(row.images), str(row.vocabulary))
        cells.append((row.model, row.language, *counts, *map(_cell, figures)))
    for name, published in TAG_TABLE.items():
        known = ("COCO-CN table IV: " + name, "zh", "1000", "655")
        cells.append((*known, *map(_cell, published), "", ""))
    return Table("tags", (*headings, "calibration error"), cells)


def speed_table(measurements: Sequence[Measurement], machine: Mapping[str, object]) -> Table:
    """Each measurement with its ratio to the baseline; the machine is a note."""
    headings = ("part", "measurement", "p50", "p95", "unit", "samples", "ratio", "baseline")
    cells = []
    for line in measurements:
        ratio = "" if line.ratio is None else f"{line.ratio:.2f}"
        figures = (f"{line.p50:,.1f}", f"{line.p95:,.1f}", line.unit, str(line.samples), ratio)
        cells.append((line.part, line.name, *figures, line.beside or ""))
    where = ", ".join(f"{name} {value}" for name, value in machine.items())
    return Table("speed", headings, cells, [where])


def _short(value: float) -> str:
    """Three decimals without a leading zero, as in papers: .512, 1.000."""
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0") else text


def _interval(figure: Figure) -> str:
    return f"{_short(figure.low)}-{_short(figure.high)}"


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def check_plot(path: Path | None) -> None:
    """Raises MissingExtra without matplotlib, DataProblem for an unsupported file type.

    Commands call it before they measure; without a path there is nothing to check.
    """
    if path is None:
        return
    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise DataProblem(f"a plot is written as {', '.join(PLOT_SUFFIXES)}, not {path.name}")
    if find_spec("matplotlib") is None:
        raise MissingExtra("a plot", "bench")


def _canvas(path: Path, width: float, height: float) -> Canvas:
    check_plot(path)
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained")


def save_plot(rows: Sequence[ResultRow], path: Path) -> None:
    """Plot text-to-image MRR as bars with 95 % intervals, one panel a split.

    Raises what `check_plot` raises.
    """
    splits = tuple(dict.fromkeys(row.split for row in rows))
    canvas = _canvas(path, 1.5 + 4.5 * len(splits), 4.2)
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
    canvas = _canvas(path, 10.5, 4.2)
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
    ordered = sorted(models, key=lambda model: model.images)
    for language in dict.fromkeys(lang for model in ordered for lang in model.scores):
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


_SCALE_NAME = re.compile(r"(?P<size>[\d,]+)(?P<vectors> vectors)?: (?P<what>.+)")
_SHOWN = ("CM", "CLM")  # of whole searches; of vectors, everything


def scale_curves(measured: Sequence[Measurement]) -> Mapping[str, Sequence[tuple[int, float]]]:
    """(images, p50 in ms) of every kind of search."""
    points: dict[str, list[tuple[int, float]]] = defaultdict(list)
    for line in measured:
        name = _SCALE_NAME.fullmatch(line.name)
        if line.part != "scale" or line.unit != "ms" or name is None:
            continue
        if name["vectors"] or name["what"] in _SHOWN:
            label = f"{name['what']}, vectors alone" if name["vectors"] else name["what"]
            points[label].append((int(name["size"].replace(",", "")), line.p50))
    return points


def save_scale_plot(measured: Sequence[Measurement], path: Path) -> None:
    """Writes the plot; what `check_plot` raises, and DataProblem without any measurement."""
    canvas = _canvas(path, 6.4, 4.4)
    lines = scale_curves(measured)
    if not lines:
        raise DataProblem("a plot shows --part scale, which was not measured; add it")
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
