"""`capsearch bench`: measures retrieval quality and speed.

`capsearch bench evidence`: images with and without captions, and the cut-off.

`capsearch bench names`: names of things against labelled photographs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.cli.bench_heads import caption, tags
from capsearch.ui.cli.options import cache_option, data_option, json_option, model_option
from capsearch.ui.cli.terminal import aligned, console, print_json, remark

if TYPE_CHECKING:
    from capsearch.benchmarks.evidence import CutoffRow, NamesRow, ShareRow
    from capsearch.benchmarks.retrieval import ResultRow, RetrievalOptions
    from capsearch.benchmarks.speed import Loss
    from capsearch.benchmarks.timing import Measurement
    from capsearch.encoders.data.features import FeatureCache
    from capsearch.encoders.models.registry import Model


EVIDENCE_EXAMPLES = """\b
Examples:
  capsearch bench evidence --data DIR --split test-xtd10
  capsearch bench evidence --data DIR --split test-xtd10 --captioned-share 0.1,0.5 --captions 5
  capsearch bench evidence --data DIR --split test-xtd10 --captioned-share 0 --enriched

The first table: MRR where a share of the images has captions in another language, by images
alone (CM, the cosine), by the paper's convex combination (CLM) and by calibrated evidence, with its
expected calibration error over the first ten hits. The second, where images have labelled
objects: names of objects, each with and without the images that show it, and the precision of the
first ten hits by images alone (CM) and by all evidence. The third: sentences about what no image
shows, and captions whose image is among the first ten hits.
"""


enriched_option = click.option(
    "--enriched",
    is_flag=True,
    help="Let the model's captioner and tagger describe the images first, as `capsearch index` "
    "does: what they write is evidence, too.",
)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0.1,0.5,1") from None
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise click.BadParameter(f"shares lie between 0 and 1, not {text}")
    return shares


@click.command(epilog=EVIDENCE_EXAMPLES)
@data_option
@click.option("--split", required=True, help="Split of the data to evaluate on.")
@model_option
@click.option(
    "--captioned-share",
    "shares",
    type=_shares,
    default="0,0.02,0.1,0.5,0.9,1",
    show_default=True,
    metavar="SHARE,...",
    help="Shares of the images that have captions.",
)
@click.option(
    "--captions",
    type=click.IntRange(1, 5),
    default=1,
    show_default=True,
    help="Captions of each captioned image, at most.",
)
@enriched_option
@json_option
def evidence(
    sources: tuple[Path, ...],
    split: str,
    name: str | None,
    shares: tuple[float, ...],
    captions: int,
    enriched: bool,
    as_json: bool,
) -> None:
    """Measure how images with and without captions are ranked, and what the cut-off leaves."""
    from capsearch.benchmarks import evidence as measure
    from capsearch.encoders.calibrate.collection import NO_HEADS, encode_images
    from capsearch.encoders.data.dataset import read
    from capsearch.encoders.data.features import FeatureCache, default_cache
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.text import stored_evidence

    model = registry.load(name)
    stored = stored_evidence(model)
    bank = stored.bank
    remark(f"{split}, model {model.name}")
    data = encode_images(
        model,
        read(sources, splits=[split]),
        FeatureCache(default_cache()),
        enricher=model.enricher() if enriched else NO_HEADS,
    )
    data = replace(data, classifiers=stored.classifiers)
    rows = list(measure.shares(model, bank, data, shares, captions))
    labelled = any(data.objects)
    named = list(measure.names(model, bank, data)) if labelled else []
    absent = list(measure.absent(model, bank, data))
    if as_json:
        print_json(
            {
                "shares": [asdict(row) for row in rows],
                "names": [asdict(row) for row in named],
                "sentences": [asdict(row) for row in absent],
            }
        )
        return
    _print_shares(rows)
    _print_names(named)
    _print_cutoffs("sentences", absent)


def _print_shares(shares: Sequence[ShareRow]) -> None:
    table: list[tuple[str, ...]] = [
        ("query", "captions", "share", "CM", "CLM", "evidence", "calibration error")
    ]
    table += [
        (
            one.query_lang,
            one.caption_lang,
            f"{one.share:g}",
            *(f"{value:.3f}" for value in (one.cm, one.clm, one.evidence, one.calibration_error)),
        )
        for one in shares
    ]
    click.echo("\n".join(aligned(table)))


def _print_names(found: Sequence[NamesRow]) -> None:
    precisions = [(f"{one.precision_cm:.3f}", f"{one.precision:.3f}") for one in found]
    _print_cutoffs("names", found, [("CM P@10", "evidence P@10"), *precisions])


def _print_cutoffs(
    what: str, found: Sequence[CutoffRow], more: Sequence[tuple[str, ...]] = ()
) -> None:
    """A table, with `more` columns beside it."""
    if not found:
        return
    table: list[tuple[str, ...]] = [
        (what, "queries", "present, lost", "absent, empty", "calibration error")
    ]
    table += [
        (
            one.language,
            str(one.queries),
            f"{one.lost:.1%}",
            f"{one.empty:.1%}",
            f"{one.calibration_error:.3f}",
        )
        for one in found
    ]
    if more:
        table = [(*row, *columns) for row, columns in zip(table, more, strict=True)]
    click.echo("\n" + "\n".join(aligned(table)))


NAMES_EXAMPLES = """\b
Examples:
  capsearch bench names --data DIR
  capsearch bench names --data DIR --model NAME --queries templates --json

DIR holds SET.jsonl.gz and SET-NN.tar; each record has `id`, `file`, `label` and `set`. A label is
the name of a concept in English, Chinese or Japanese, or one of a published set that capsearch
knows. Which photographs are the test, and which concepts no model here was trained on, is decided
by hashes: the same for everyone. Choose models by --split val, so that test stays unseen.

\b
--queries names      the commonest name of each concept
--queries synonyms   its other names
--queries templates  questions and requests: "where is the ...?"
--queries spellings  case, number, full and half width, Traditional Chinese, kana variants

Photographs are ranked as a search ranks images without captions; --enriched lets models describe
them first, as `capsearch index` does. P@5 and P@10: the share of the first five and ten hits that
show the concept (P@10 of concepts with ten photographs); same: the share of the first ten that the
commonest name finds too. Photographs show more than their label says, so precision is a lower bound. Tied scores count
as ranked before the correct result. Intervals: 95 %, bootstrap over the queries.
"""


@click.command(epilog=NAMES_EXAMPLES)
@data_option
@model_option
@click.option(
    "--queries",
    "kind",
    type=click.Choice(["names", "synonyms", "templates", "spellings"]),
    default="names",
    show_default=True,
    help="What is asked for each concept.",
)
@click.option(
    "--split",
    type=click.Choice(["test", "val"]),
    default="test",
    show_default=True,
    help="Photographs and concepts held out: val to choose models, test to report them.",
)
@click.option(
    "--per-label",
    type=click.IntRange(min=1),
    metavar="N",
    help="Use only the first N photographs of each label.",
)
@click.option(
    "--min-photos",
    type=click.IntRange(min=1),
    default=5,
    show_default=True,
    metavar="N",
    help="Ask only for concepts with N photographs.",
)
@click.option(
    "--all-concepts",
    is_flag=True,
    help="The model was trained with --all-concepts: photographs are held out, no concept is.",
)
@click.option(
    "--cosine", is_flag=True, help="Rank by the cosine alone, not by what a search ranks by."
)
@enriched_option
@cache_option
@json_option
def names(
    sources: tuple[Path, ...],
    name: str | None,
    kind: str,
    split: str,
    per_label: int | None,
    min_photos: int,
    all_concepts: bool,
    cosine: bool,
    enriched: bool,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Measure how well names of things find photographs of them, trained on or not."""
    from capsearch.benchmarks.names import NamesOptions, at_most, evaluate
    from capsearch.benchmarks.report import names_table
    from capsearch.encoders.calibrate.collection import NO_HEADS, encode_labelled
    from capsearch.encoders.data.dataset import read_labelled
    from capsearch.encoders.data.features import FeatureCache, default_cache
    from capsearch.encoders.models import registry
    from capsearch.ui.cli.progress import stage_progress

    model = registry.load(name)
    data = read_labelled(sources, all_concepts).split(split)
    if per_label is not None:
        data = at_most(data, per_label)
    remark(f"{split}: {len(data):,} photographs, model {model.name}")
    with stage_progress("photographs") as report:
        features = FeatureCache(cache or default_cache())
        heads = model.enricher() if enriched else NO_HEADS
        photos = encode_labelled(model, data, features, report, heads)
    readable = len(photos.data.images)
    if readable < len(data):
        remark(f"warning: {len(data) - readable:,} images could not be read")
    rows = evaluate(model, photos, NamesOptions(kind, min_photos, all_concepts, cosine))
    if as_json:
        print_json([record for row in rows for record in row.records()])
    else:
        console().print(names_table(rows))


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
    from capsearch.encoders.data.features import FeatureCache, default_cache
    from capsearch.encoders.models import registry

    if plot is not None:
        report.check_plot(plot)  # fail before the measurement, not after it
    model = registry.load(name)
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
    from capsearch.encoders.data.dataset import read
    from capsearch.ui.cli.progress import stage_progress

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
    from capsearch.benchmarks import report
    from capsearch.benchmarks import speed as ratios
    from capsearch.benchmarks.scale import save_scale_plot
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
