"""`capsearch bench`: measures retrieval quality and speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands.bench_evidence import evidence
from capsearch.ui.commands.bench_heads import caption, tags
from capsearch.ui.commands.bench_names import names
from capsearch.ui.commands.options import cache_option, data_option, json_option, model_option
from capsearch.ui.output.terminal import console, print_json, remark

if TYPE_CHECKING:
    from capsearch.benchmarks.ratios import Loss
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

CM compares a query with images, CL with captions in another language, CLM with both. t2i: the
query is a caption and its image has to be found; i2t: the query is an image (CM), its caption
in another language (CL) or both (CLM), and one of its captions has to be found. Tied scores
count as ranked before the correct result. Intervals: 95 %, bootstrap over the queries.
"""

SPEED_EXAMPLES = """\b
Examples:
  capsearch bench speed
  capsearch bench speed --part search --part text --json
  capsearch bench speed --check
  capsearch bench speed --part scale --size 100000 --plot scale.svg

Figures are compared with a baseline measured in the same run, because machines differ.
"""


@click.group()
def command() -> None:
    """Measure the quality of retrieval, captions and tags, and speed."""


@command.command(epilog=RETRIEVAL_EXAMPLES)
@data_option
@click.option(
    "--split",
    "splits",
    multiple=True,
    required=True,
    help="Split of the data to evaluate on. Repeatable.",
)
@model_option
@click.option(
    "--clm-weight",
    type=click.FloatRange(0, 1),
    help="Weight of CL in CLM.  [default: the model's, tuned for each language]",
)
@click.option(
    "--descriptions",
    type=click.Choice(["first", "all"]),
    default="first",
    show_default=True,
    help="Captions that CL searches: the first of each image, as in the paper, or all of them.",
)
@click.option(
    "--unknown-words",
    is_flag=True,
    help="Use only queries that contain a word outside the model's vocabulary.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    metavar="N",
    help="Use only the first N images of each split.",
)
@cache_option
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also plot text-to-image MRR (.png, .svg or .pdf); needs capsearch[bench].",
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
    """Measure how well captions retrieve their images, and images their captions."""
    from capsearch.benchmarks import report
    from capsearch.benchmarks.retrieval import RetrievalOptions
    from capsearch.encoders import models
    from capsearch.encoders.datasets.features import FeatureCache, default_cache

    if plot is not None:
        report.check_plot(plot)  # fail before the measurement, not after it
    model = models.load(name)
    options = RetrievalOptions(weight=clm_weight, all_descriptions=descriptions == "all")
    features = FeatureCache(cache or default_cache())
    rows = [
        row
        for split in dict.fromkeys(splits)
        for row in _measure(model, sources, split, limit, features, options, unknown_words)
    ]
    _show(rows, as_json=as_json)
    if plot is not None:
        report.save_plot(rows, plot)
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
    from capsearch.ui.output.progress import stage_progress

    data = read(sources, splits=[split])
    if limit is not None:
        data = data.first(limit)
    remark(f"{split}: {len(data):,} images, model {model.name}")
    with stage_progress(split) as report:
        encoded = encode_split(model, data, cache, report, unknown_words)
    if len(encoded.images) < len(data):
        remark(f"warning: {len(data) - len(encoded.images):,} images could not be read")
    for language in data.languages:
        if language not in encoded.languages:
            remark(f"warning: no queries in {language}")
    return evaluate(model, encoded, options)


def _show(rows: Sequence[ResultRow], *, as_json: bool) -> None:
    from capsearch.benchmarks import report

    if as_json:
        print_json([record for row in rows for record in row.records()])
    else:
        report.print_tables(rows, console())


@command.command(epilog=SPEED_EXAMPLES)
@click.option(
    "--part",
    "parts",
    type=click.Choice(["command", "text", "images", "describe", "search", "indexing", "scale"]),
    multiple=True,
    help="Measure only this part; repeatable.  [default: all parts but scale]",
)
@model_option
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=15,
    show_default=True,
    help="Number of measurements of each command, batch and search.",
)
@click.option(
    "--size",
    "sizes",
    type=click.IntRange(min=100),
    multiple=True,
    metavar="IMAGES",
    help="Images of a collection of --part scale; repeatable.  [default: 10000, 100000, 1000000]",
)
@click.option(
    "--check",
    is_flag=True,
    help="Exit with status 1 if a ratio to a baseline is more than 25 % worse than the committed "
    "figures, and name it.",
)
@click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also plot the searches of --part scale (.png, .svg or .pdf); needs capsearch[bench].",
)
@json_option
def speed(
    parts: tuple[str, ...],
    name: str | None,
    repeats: int,
    sizes: tuple[int, ...],
    check: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure how long commands, queries, indexing and search take on this machine."""
    from capsearch.benchmarks import ratios, report
    from capsearch.benchmarks.scale_plot import save_scale_plot
    from capsearch.benchmarks.speed import Settings, measure
    from capsearch.benchmarks.timing import machine

    if plot is not None:
        report.check_plot(plot)
    before = ratios.committed() if check else {}
    settings = Settings(name, repeats)
    settings = replace(settings, sizes=sizes or settings.sizes, report=remark)
    measurements: list[Measurement] = []
    for one in measure(parts, settings):
        remark(f"{one.part}: {one.name}: {one.p50:.1f} {one.unit}")
        measurements.append(one)
    if as_json:
        print_json({"machine": machine(), "measurements": [asdict(one) for one in measurements]})
    else:
        _print_speed(measurements, machine())
    if plot is not None:
        save_scale_plot(measurements, plot)
        remark(f"plot: {plot}")
    if check:
        _check(ratios.losses(measurements, before))


def _check(losses: Sequence[Loss]) -> None:
    for loss in losses:
        remark(f"slower: {loss}")
    if losses:
        raise SystemExit(1)


def _print_speed(measurements: Sequence[Measurement], machine: Mapping[str, object]) -> None:
    from capsearch.benchmarks.report import speed_table

    console().print(speed_table(measurements, machine))


command.add_command(evidence)
command.add_command(names)
command.add_command(caption)
command.add_command(tags)
