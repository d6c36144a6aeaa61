"""`capsearch bench`: how well and how fast it searches, measured here."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands.options import json_option
from capsearch.ui.output.terminal import print_json, remark

if TYPE_CHECKING:
    from rich.console import Console

    from capsearch.benchmarks.retrieval import ResultRow, RetrievalOptions
    from capsearch.benchmarks.timing import Measurement
    from capsearch.encoders.datasets.features import FeatureCache
    from capsearch.encoders.models import Model

RETRIEVAL_EXAMPLES = """\b
Examples:
  capsearch bench retrieval --data DIR --split test-xtd10
  capsearch bench retrieval --data DIR --split test-xtd10 --split test-cococn --plot mrr.png
  capsearch bench retrieval --data DIR --split mine --model NAME --json

DIR holds SPLIT.jsonl.gz and SPLIT-NN.tar or .tar.gz, or captions in one of the other layouts
that `capsearch train` reads.

CM looks for the image, CL for its caption in another language, CLM for both. t2i: a
sentence looks for its image; i2t: an image (CM), its caption (CL) or both (CLM) look for
the sentence. Ties count against us. Intervals: 95 %, bootstrap over the queries.
"""

SPEED_EXAMPLES = """\b
Examples:
  capsearch bench speed
  capsearch bench speed --part search --part text --json

Every figure stands beside a yardstick measured in the same run, because machines differ.
"""


@click.group()
def command() -> None:
    """Measure quality and speed."""


@command.command(epilog=RETRIEVAL_EXAMPLES)
@click.option(
    "--data",
    "sources",
    type=click.Path(path_type=Path),
    metavar="DIR",
    multiple=True,
    required=True,
    help="A data set; several are merged by photo.",
)
@click.option(
    "--split", "splits", multiple=True, required=True, help="What to measure on; repeatable."
)
@click.option(
    "--model", "name", metavar="NAME", help="A model's name or folder.  [default: built in]"
)
@click.option(
    "--clm-weight", type=click.FloatRange(0, 1), help="Share of CL.  [default: the model's]"
)
@click.option(
    "--descriptions",
    type=click.Choice(["first", "all"]),
    default="first",
    show_default=True,
    help="Captions CL may match: a photo's first, as in the paper, or the best of all.",
)
@click.option(
    "--unknown-words",
    is_flag=True,
    help="Ask only with sentences that have a word the model's vocabulary lacks.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Only the first N photos of each split.")
@click.option(
    "--cache",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where features are kept.  [default: your cache directory]",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also draw a figure.",
)
@json_option
def retrieval(
    sources: tuple[Path, ...],
    splits: tuple[str, ...],
    name: str | None,
    clm_weight: float | None,
    descriptions: str,
    unknown_words: bool,
    limit: int | None,
    cache: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure how well sentences find their images, and images their sentences."""
    from capsearch.benchmarks import report
    from capsearch.benchmarks.retrieval import RetrievalOptions
    from capsearch.encoders import models
    from capsearch.encoders.datasets.features import FeatureCache, default_cache

    if plot is not None:
        report.check_plot(plot)  # before the work, not after it
    model = models.load(name)
    options = RetrievalOptions(weight=clm_weight, all_descriptions=descriptions == "all")
    kept = FeatureCache(cache or default_cache())
    runs = [
        run
        for split in dict.fromkeys(splits)
        for run in _measure(model, sources, split, limit, kept, options, unknown_words)
    ]
    _show(runs, as_json=as_json)
    if plot is not None:
        report.save_plot(runs, plot)
        remark(f"plot: {plot}")


def _measure(
    model: Model,
    sources: tuple[Path, ...],
    split: str,
    limit: int | None,
    cache: FeatureCache,
    options: RetrievalOptions,
    unknown_words: bool,
) -> tuple[ResultRow, ...]:
    from capsearch.benchmarks.retrieval import encode_split, evaluate
    from capsearch.encoders.datasets.dataset import read

    data = read(sources, splits=[split])
    chosen = data if limit is None else data.first(limit)
    remark(f"{split}: {len(chosen):,} photos, model {model.name}")
    with _progress(split) as report:
        encoded = encode_split(model, chosen, cache, report, unknown_words)
    if len(encoded.images) < len(chosen):
        remark(f"warning: {len(chosen) - len(encoded.images):,} photos without a readable image")
    for language in chosen.languages:
        if language not in encoded.languages:
            remark(f"warning: no queries in {language}")
    return evaluate(model, encoded, options)


@contextmanager
def _progress(stage: str) -> Iterator[Callable[[int, int], None]]:
    from capsearch.indexer.pipeline import Progress
    from capsearch.ui.output.progress import progress_bar

    with progress_bar() as show:
        yield lambda done, total: show(Progress(stage, done, total, None))


def _show(runs: Sequence[ResultRow], *, as_json: bool) -> None:
    from capsearch.benchmarks import report

    if as_json:
        print_json([record for run in runs for record in run.records()])
    else:
        report.print_tables(runs, _console())


def _console() -> Console:
    """Plain and wide where stdout is no terminal, so that tables survive a pipe."""
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=120)


@command.command(epilog=SPEED_EXAMPLES)
@click.option(
    "--part",
    "parts",
    type=click.Choice(["command", "text", "images", "search"]),
    multiple=True,
    help="Only this part; repeatable.",
)
@click.option(
    "--model", "name", metavar="NAME", help="A model's name or folder.  [default: built in]"
)
@click.option("--repeats", type=click.IntRange(min=1), default=15, show_default=True)
@json_option
def speed(parts: tuple[str, ...], name: str | None, repeats: int, as_json: bool) -> None:
    """Measure how long commands, queries, indexing and search take on this machine."""
    from capsearch.benchmarks.speed import Settings, measure
    from capsearch.benchmarks.timing import machine

    found: list[Measurement] = []
    for line in measure(parts, Settings(name, repeats)):
        remark(f"{line.part}: {line.name}: {line.p50:.1f} {line.unit}")
        found.append(line)
    if as_json:
        print_json({"machine": machine(), "measurements": [asdict(line) for line in found]})
    else:
        _print_speed(found, machine())


def _print_speed(lines: Sequence[Measurement], where: Mapping[str, object]) -> None:
    from capsearch.benchmarks.report import speed_table

    _console().print(speed_table(lines, where))
