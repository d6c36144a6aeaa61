"""`capsearch bench`: the quality of retrieval, captions and tags, and speed.

Each command reads data, asks a module of `capsearch.benchmarks` and prints its rows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.benchmarks.settings import (
    CaptionRun,
    DataOptions,
    EvidenceRun,
    LimitOptions,
    NamesRun,
    RetrievalRun,
    SpeedRun,
    TagsRun,
)
from capsearch.ui.cli.declared import declared_by
from capsearch.ui.cli.options import json_option
from capsearch.ui.cli.terminal import print_json, print_table, remark

if TYPE_CHECKING:
    from capsearch.benchmarks.captions import CaptionRow, TagRow
    from capsearch.benchmarks.report import Table
    from capsearch.benchmarks.retrieval import ResultRow
    from capsearch.encoders.data.dataset import CaptionDataset
    from capsearch.encoders.data.features import FeatureCache
    from capsearch.encoders.models.captioner import BuiltInCaptioner
    from capsearch.encoders.models.registry import Model

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
commonest name finds too. Photographs show more than their label says, so precision is a lower
bound. Tied scores count as ranked before the correct result. Intervals: 95 %, bootstrap over the
queries.
"""
CAPTION_EXAMPLES = """\b
Examples:
  capsearch bench caption --data DIR --split val --model mine-captions
  capsearch bench caption --data DIR --split val --model mine-captions --beam 1     greedy
  capsearch bench caption --data DIR --split val --model a --model b --plot curves.png

BLEU, METEOR, ROUGE-L and CIDEr-D by pycocoevalcap on words without punctuation: Chinese words of
jieba, Japanese ones of MeCab. The baseline writes the first caption of the most similar training
image. --plot draws the validation score of the models by epoch and by training images.
"""
TAGS_EXAMPLES = """\b
Examples:
  capsearch bench tags --data DIR --split test-cococn --model mine-tags
  capsearch bench tags --data DIR --split test-cococn --model cascade --model mlp --json

Precision, recall and F of the five best tags of a language's own output, means over the images;
right is what captions and human tags name. F shown: ranked by the calibrated probabilities that an
index stores.
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
@declared_by(RetrievalRun)
@json_option
def retrieval(run: RetrievalRun, as_json: bool) -> None:
    """Measure how well captions retrieve their images, and images their captions."""
    from capsearch.benchmarks import report
    from capsearch.encoders.models import registry

    report.check_plot(run.plot)
    model = registry.load(run.model)
    rows = [row for split in dict.fromkeys(run.split) for row in _retrieval(model, run, split)]
    records = (record for row in rows for record in row.records())
    _show(records, as_json, report.retrieval_tables(rows))
    if run.plot is not None:
        report.save_plot(rows, run.plot)
        remark(f"plot: {run.plot}")


def _retrieval(model: Model, run: RetrievalRun, split: str) -> tuple[ResultRow, ...]:
    from capsearch.benchmarks.retrieval import encode_split, evaluate
    from capsearch.ui.cli.progress import stage_progress

    data = _read(run, split)
    remark(f"{split}: {len(data):,} images, model {model.name}")
    with stage_progress(split) as report:
        encoded = encode_split(model, data, _features(run), report, run.unknown_words)
    _warn_unreadable(len(data) - len(encoded.images))
    for language in data.languages:
        if language not in encoded.languages:
            remark(f"warning: no queries in {language}")
    return evaluate(model, encoded, run)


@command.command(epilog=EVIDENCE_EXAMPLES)
@declared_by(EvidenceRun)
@json_option
def evidence(run: EvidenceRun, as_json: bool) -> None:
    """Measure how images with and without captions are ranked, and what the cut-off leaves."""
    from capsearch.benchmarks import evidence as measure
    from capsearch.benchmarks.report import evidence_tables
    from capsearch.encoders.calibrate.collection import NO_HEADS, encode_images
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.text import stored_evidence
    from capsearch.ui.cli.progress import stage_progress

    shares = _shares(run.captioned_share)
    model = registry.load(run.model)
    stored = stored_evidence(model)
    remark(f"{run.split}, model {model.name}")
    heads = model.enricher() if run.enriched else NO_HEADS
    with stage_progress(run.split) as report:
        data = encode_images(model, _read(run, run.split), _features(run), report, heads)
    data = replace(data, classifiers=stored.classifiers)
    rows = list(measure.shares(model, stored.bank, data, shares, run.captions))
    named = list(measure.names(model, stored.bank, data)) if any(data.objects) else []
    absent = list(measure.absent(model, stored.bank, data))
    records = {
        "shares": list(map(asdict, rows)),
        "names": list(map(asdict, named)),
        "sentences": list(map(asdict, absent)),
    }
    _show(records, as_json, evidence_tables(rows, named, absent))


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0.1,0.5,1") from None
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise click.BadParameter(f"shares lie between 0 and 1, not {text}")
    return shares


@command.command(epilog=NAMES_EXAMPLES)
@declared_by(NamesRun)
@json_option
def names(run: NamesRun, as_json: bool) -> None:
    """Measure how well names of things find photographs of them, trained on or not."""
    from capsearch.benchmarks.names import at_most, evaluate
    from capsearch.benchmarks.report import names_table
    from capsearch.encoders.calibrate.collection import NO_HEADS, encode_labelled
    from capsearch.encoders.data.dataset import read_labelled
    from capsearch.encoders.models import registry
    from capsearch.ui.cli.progress import stage_progress

    model = registry.load(run.model)
    data = read_labelled(run.data, run.all_concepts).split(run.split)
    if run.per_label is not None:
        data = at_most(data, run.per_label)
    remark(f"{run.split}: {len(data):,} photographs, model {model.name}")
    heads = model.enricher() if run.enriched else NO_HEADS
    with stage_progress("photographs") as report:
        photos = encode_labelled(model, data, _features(run), report, heads)
    _warn_unreadable(len(data) - len(photos.data.images))
    rows = evaluate(model, photos, run)
    _show((record for row in rows for record in row.records()), as_json, [names_table(rows)])


@command.command(epilog=CAPTION_EXAMPLES)
@declared_by(CaptionRun)
@json_option
def caption(run: CaptionRun, as_json: bool) -> None:
    """Measure generated captions: BLEU, METEOR, ROUGE-L and CIDEr-D."""
    from capsearch.benchmarks import captions, report
    from capsearch.encoders.models import registry
    from capsearch.encoders.train.activations import load_feature_maps
    from capsearch.encoders.train.caption_metrics import has_java
    from capsearch.ui.cli.progress import stage_progress

    report.check_plot(run.plot)
    folder, data = _features(run).folder, _read(run, run.split)
    rows: list[CaptionRow] = []
    baselines: set[str] = set()
    for name in dict.fromkeys(run.model):
        captioner = _searching(registry.load_captioner(name), run.beam)
        backbone = registry.load_backbone(str(captioner.card["backbone"]))
        with stage_progress(run.split) as progress:
            images = load_feature_maps(backbone, data, folder, progress)
        if not run.no_baseline and backbone.digest not in baselines:
            baselines.add(backbone.digest)
            # The baseline knows as many images as the captioner was trained on.
            trained = captioner.card.get("training", {}).get("images")
            train = _read(replace(run, limit=trained and int(trained)), run.train_split)
            with stage_progress(run.train_split) as progress:
                known = load_feature_maps(backbone, train, folder, progress)
            rows += captions.nearest_neighbour(known, images, captioner.languages)
        rows += captions.evaluate(captioner, backbone, images, run.examples)
    if not has_java():
        remark("METEOR is left out: it needs Java, which is not installed")
    _show(map(asdict, rows), as_json, report.caption_tables(rows))
    if not as_json:
        for row in rows:
            for image, text in row.examples:
                click.echo(f"{row.model}  {row.language}  {image}  {text}")
    _save_curves(run.model, "captioner", run.plot)


def _searching(captioner: BuiltInCaptioner, beam: int | None) -> BuiltInCaptioner:
    return captioner.searching(replace(captioner.beam, size=beam)) if beam else captioner


@command.command(epilog=TAGS_EXAMPLES)
@declared_by(TagsRun)
@json_option
def tags(run: TagsRun, as_json: bool) -> None:
    """Measure tags: precision, recall and F at five, and calibration."""
    from capsearch.benchmarks import report
    from capsearch.benchmarks.captions import evaluate_tags
    from capsearch.encoders.data.features import load_features
    from capsearch.encoders.models import model_folder, registry
    from capsearch.encoders.models.image import check_backbone
    from capsearch.ui.cli.progress import stage_progress

    report.check_plot(run.plot)
    data = _read(run, run.split)
    rows: list[TagRow] = []
    for name in dict.fromkeys(run.model):
        card = model_folder.read_card(registry.find(name, "tagger"))
        backbone = registry.load_backbone(str(card["backbone"]))
        check_backbone(card, backbone)
        with stage_progress(run.split) as progress:
            readable, pooled = load_features(backbone, data, _features(run), progress)
        rows += evaluate_tags(registry.load_tagger(name), readable, pooled, run.most)
    _show(map(asdict, rows), as_json, [report.tags_table(rows)])
    _save_curves(run.model, "tagger", run.plot)


@command.command(epilog=SPEED_EXAMPLES)
@declared_by(SpeedRun)
@json_option
def speed(run: SpeedRun, as_json: bool) -> None:
    """Measure how long commands, queries, indexing and search take on this machine."""
    from capsearch.benchmarks import report
    from capsearch.benchmarks import speed as measure
    from capsearch.benchmarks.timing import machine

    report.check_plot(run.plot)
    before = measure.committed() if run.check else {}
    lines = []
    for line in measure.measure(run):
        remark(f"{line.part}: {line.name}: {line.p50:.1f} {line.unit}")
        lines.append(line)
    records = {"machine": machine(), "measurements": list(map(asdict, lines))}
    _show(records, as_json, [report.speed_table(lines, machine())])
    if run.plot is not None:
        report.save_scale_plot(lines, run.plot)
        remark(f"plot: {run.plot}")
    losses = measure.losses(lines, before) if run.check else ()
    for loss in losses:
        remark(f"slower: {loss}")
    if losses:
        raise SystemExit(1)


def _read(run: LimitOptions, split: str) -> CaptionDataset:
    from capsearch.encoders.data.dataset import read

    data = read(run.data, splits=[split])
    return data.first(run.limit) if run.limit else data


def _features(run: DataOptions) -> FeatureCache:
    from capsearch.encoders.data.features import FeatureCache, default_cache

    return FeatureCache(run.cache or default_cache())


def _warn_unreadable(count: int) -> None:
    if count:
        remark(f"warning: {count:,} images could not be read")


def _show(
    records: Iterable[object] | Mapping[str, object], as_json: bool, tables: Iterable[Table]
) -> None:
    """Records as one JSON document, or tables with their notes."""
    if as_json:
        print_json(records if isinstance(records, Mapping) else list(records))
        return
    for number, table in enumerate(tables):
        if number:
            click.echo()
        click.echo(table.title)
        print_table([table.headings, *table.rows])
        for note in table.notes:
            click.echo(note)


def _save_curves(names: Sequence[str], kind: str, plot: Path | None) -> None:
    """Draw the models' training, if a plot is asked for."""
    if plot is None:
        return
    from capsearch.benchmarks.report import save_curves, trained_model
    from capsearch.encoders.models import registry

    save_curves([trained_model(registry.find(name, kind)) for name in names], plot)
    remark(f"plot: {plot}")
