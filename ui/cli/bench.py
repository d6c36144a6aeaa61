"""`capsearch bench`: the quality of retrieval, captions and tags, and speed.

Each command reads data, asks a module of `capsearch.benchmarks` and prints its rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from capsearch.ui.cli.options import cache_option, data_option, json_option, model_option
from capsearch.ui.cli.terminal import print_json, print_table, remark

if TYPE_CHECKING:
    from capsearch.benchmarks.captions import CaptionRow, TagRow
    from capsearch.benchmarks.report import Table
    from capsearch.benchmarks.retrieval import ResultRow, RetrievalOptions
    from capsearch.encoders.data.dataset import CaptionDataset
    from capsearch.encoders.data.features import FeatureCache
    from capsearch.encoders.models.captioner import BuiltInCaptioner
    from capsearch.encoders.models.registry import Model

F = TypeVar("F", bound=Callable[..., Any])

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


def count_option(name: str, help: str, **more: Any) -> Callable[[F], F]:
    """A number of things, at least one."""
    more = {"type": click.IntRange(min=1), "metavar": "N", **more}
    return click.option(name, help=help, show_default="default" in more, **more)


def plot_option(what: str) -> Callable[[F], F]:
    """A file for a plot beside the table."""
    return click.option(
        "--plot",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help=f"Also plot {what} (.png, .svg or .pdf); needs capsearch[bench].",
    )


def split_option(**more: Any) -> Callable[[F], F]:
    """The images to measure on."""
    repeated = " Repeatable." if "multiple" in more else ""
    help = f"Split of the data to evaluate on.{repeated}"
    return click.option("--split", help=help, show_default="default" in more, **more)


models_option: Callable[[F], F] = click.option(
    "--model",
    "names",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name or path (./DIR) of a trained model. Repeatable.",
)
limit_option: Callable[[F], F] = count_option("--limit", "Use only the first N images.")
enriched_option: Callable[[F], F] = click.option(
    "--enriched",
    is_flag=True,
    help="Let the model's captioner and tagger describe the images first, as `capsearch index` "
    "does: what they write is evidence, too.",
)


@click.group()
def command() -> None:
    """Measure the quality of retrieval, captions and tags, and speed."""


@command.command(epilog=RETRIEVAL_EXAMPLES)
@data_option
@split_option(multiple=True, required=True)
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
@count_option("--limit", "Use only the first N images of each split.")
@cache_option
@plot_option("text-to-image MRR")
@json_option
def retrieval(
    sources: tuple[Path, ...],
    split: tuple[str, ...],
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
    from capsearch.encoders.models import registry

    report.check_plot(plot)
    model = registry.load(name)
    options = RetrievalOptions(clm_weight, descriptions == "all", unknown_words)
    rows = [
        row
        for split_name in dict.fromkeys(split)
        for row in _retrieval(model, _read(sources, split_name, limit), _features(cache), options)
    ]
    _show(
        (record for row in rows for record in row.records()), as_json, report.retrieval_tables(rows)
    )
    if plot is not None:
        report.save_plot(rows, plot)
        remark(f"plot: {plot}")


def _retrieval(
    model: Model, data: CaptionDataset, cache: FeatureCache, options: RetrievalOptions
) -> tuple[ResultRow, ...]:
    from capsearch.benchmarks.retrieval import encode_split, evaluate
    from capsearch.ui.cli.progress import stage_progress

    (split,) = data.splits
    remark(f"{split}: {len(data):,} images, model {model.name}")
    with stage_progress(split) as report:
        encoded = encode_split(model, data, cache, report, options.unknown_words)
    _warn_unreadable(len(data) - len(encoded.images))
    for language in data.languages:
        if language not in encoded.languages:
            remark(f"warning: no queries in {language}")
    return evaluate(model, encoded, options)


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0.1,0.5,1") from None
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise click.BadParameter(f"shares lie between 0 and 1, not {text}")
    return shares


@command.command(epilog=EVIDENCE_EXAMPLES)
@data_option
@split_option(required=True)
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
@limit_option
@cache_option
@json_option
def evidence(
    sources: tuple[Path, ...],
    split: str,
    name: str | None,
    shares: tuple[float, ...],
    captions: int,
    enriched: bool,
    limit: int | None,
    cache: Path | None,
    as_json: bool,
) -> None:
    """Measure how images with and without captions are ranked, and what the cut-off leaves."""
    from capsearch.benchmarks import evidence as measure
    from capsearch.benchmarks.report import evidence_tables
    from capsearch.encoders.calibrate.collection import NO_HEADS, encode_images
    from capsearch.encoders.models import registry
    from capsearch.encoders.models.text import stored_evidence
    from capsearch.ui.cli.progress import stage_progress

    model = registry.load(name)
    stored = stored_evidence(model)
    remark(f"{split}, model {model.name}")
    heads = model.enricher() if enriched else NO_HEADS
    with stage_progress(split) as report:
        data = encode_images(
            model, _read(sources, split, limit), _features(cache), report, enricher=heads
        )
    data = replace(data, classifiers=stored.classifiers)
    rows = list(measure.shares(model, stored.bank, data, shares, captions))
    named = list(measure.names(model, stored.bank, data)) if any(data.objects) else []
    absent = list(measure.absent(model, stored.bank, data))
    records = {
        "shares": list(map(asdict, rows)),
        "names": list(map(asdict, named)),
        "sentences": list(map(asdict, absent)),
    }
    _show(records, as_json, evidence_tables(rows, named, absent))


@command.command(epilog=NAMES_EXAMPLES)
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
@count_option("--per-label", "Use only the first N photographs of each label.")
@count_option("--min-photos", "Ask only for concepts with N photographs.", default=5)
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
    from capsearch.encoders.models import registry
    from capsearch.ui.cli.progress import stage_progress

    model = registry.load(name)
    data = read_labelled(sources, all_concepts).split(split)
    if per_label is not None:
        data = at_most(data, per_label)
    remark(f"{split}: {len(data):,} photographs, model {model.name}")
    heads = model.enricher() if enriched else NO_HEADS
    with stage_progress("photographs") as report:
        photos = encode_labelled(model, data, _features(cache), report, heads)
    _warn_unreadable(len(data) - len(photos.data.images))
    rows = evaluate(model, photos, NamesOptions(kind, min_photos, all_concepts, cosine))
    _show((record for row in rows for record in row.records()), as_json, [names_table(rows)])


@command.command(epilog=CAPTION_EXAMPLES)
@data_option
@split_option(default="val")
@models_option
@click.option(
    "--train-split",
    default="train",
    show_default=True,
    help="Split whose captions the nearest-neighbour baseline repeats.",
)
@click.option("--no-baseline", is_flag=True, help="Leave the nearest-neighbour baseline out.")
@count_option("--beam", "Hypotheses of the beam search; 1 is greedy.  [default: the model's]")
@click.option(
    "--examples",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Captions to print for each model and language.",
)
@limit_option
@cache_option
@plot_option("the models' training")
@json_option
def caption(
    sources: tuple[Path, ...],
    split: str,
    names: tuple[str, ...],
    train_split: str,
    no_baseline: bool,
    beam: int | None,
    examples: int,
    limit: int | None,
    cache: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure generated captions: BLEU, METEOR, ROUGE-L and CIDEr-D."""
    from capsearch.benchmarks import captions, report
    from capsearch.encoders.data.features import default_cache
    from capsearch.encoders.models import registry
    from capsearch.encoders.train.activations import load_feature_maps
    from capsearch.encoders.train.caption_metrics import has_java
    from capsearch.ui.cli.progress import stage_progress

    report.check_plot(plot)
    folder, data = cache or default_cache(), _read(sources, split, limit)
    rows: list[CaptionRow] = []
    baselines: set[str] = set()
    for name in dict.fromkeys(names):
        captioner = _searching(registry.load_captioner(name), beam)
        backbone = registry.load_backbone(str(captioner.card["backbone"]))
        with stage_progress(split) as progress:
            images = load_feature_maps(backbone, data, folder, progress)
        if not no_baseline and backbone.digest not in baselines:
            baselines.add(backbone.digest)
            # The baseline knows as many images as the captioner was trained on.
            trained = captioner.card.get("training", {}).get("images")
            train = _read(sources, train_split, trained and int(trained))
            with stage_progress(train_split) as progress:
                known = load_feature_maps(backbone, train, folder, progress)
            rows += captions.nearest_neighbour(known, images, captioner.languages)
        rows += captions.evaluate(captioner, backbone, images, examples)
    if not has_java():
        remark("METEOR is left out: it needs Java, which is not installed")
    _show(map(asdict, rows), as_json, report.caption_tables(rows))
    if not as_json:
        for row in rows:
            for image, text in row.examples:
                click.echo(f"{row.model}  {row.language}  {image}  {text}")
    _save_curves(names, "captioner", plot)


def _searching(captioner: BuiltInCaptioner, beam: int | None) -> BuiltInCaptioner:
    return captioner.searching(replace(captioner.beam, size=beam)) if beam else captioner


@command.command(epilog=TAGS_EXAMPLES)
@data_option
@split_option(default="val")
@models_option
@limit_option
@count_option("--most", "Only the N most frequent tags of each language; COCO-CN has 655.")
@cache_option
@plot_option("the models' training")
@json_option
def tags(
    sources: tuple[Path, ...],
    split: str,
    names: tuple[str, ...],
    limit: int | None,
    most: int | None,
    cache: Path | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure tags: precision, recall and F at five, and calibration."""
    from capsearch.benchmarks import report
    from capsearch.benchmarks.captions import evaluate_tags
    from capsearch.encoders.data.features import load_features
    from capsearch.encoders.models import model_folder, registry
    from capsearch.encoders.models.image import check_backbone
    from capsearch.ui.cli.progress import stage_progress

    report.check_plot(plot)
    data = _read(sources, split, limit)
    rows: list[TagRow] = []
    for name in dict.fromkeys(names):
        card = model_folder.read_card(registry.find(name, "tagger"))
        backbone = registry.load_backbone(str(card["backbone"]))
        check_backbone(card, backbone)
        with stage_progress(split) as progress:
            readable, pooled = load_features(backbone, data, _features(cache), progress)
        rows += evaluate_tags(registry.load_tagger(name), readable, pooled, most)
    _show(map(asdict, rows), as_json, [report.tags_table(rows)])
    _save_curves(names, "tagger", plot)


@command.command(epilog=SPEED_EXAMPLES)
@click.option(
    "--part",
    "parts",
    type=click.Choice(["command", "text", "images", "describe", "search", "indexing", "scale"]),
    multiple=True,
    help="Measure only this part; repeatable.  [default: all parts but scale]",
)
@model_option
@count_option("--repeats", "Number of measurements of each command, batch and search.", default=15)
@count_option(
    "--size",
    "Images of a collection of --part scale; repeatable.  [default: 10000, 100000, 1000000]",
    type=click.IntRange(min=100),
    multiple=True,
    metavar="IMAGES",
)
@click.option(
    "--check",
    is_flag=True,
    help="Exit with status 1 if a ratio to a baseline is more than 25 % worse than the committed "
    "figures, and name it.",
)
@plot_option("the searches of --part scale")
@json_option
def speed(
    parts: tuple[str, ...],
    name: str | None,
    repeats: int,
    size: tuple[int, ...],
    check: bool,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Measure how long commands, queries, indexing and search take on this machine."""
    from capsearch.benchmarks import report
    from capsearch.benchmarks import speed as measure
    from capsearch.benchmarks.timing import machine

    report.check_plot(plot)
    before = measure.committed() if check else {}
    settings = measure.Settings(name, repeats, report=remark)
    settings = replace(settings, sizes=size or settings.sizes)
    lines = []
    for line in measure.measure(parts, settings):
        remark(f"{line.part}: {line.name}: {line.p50:.1f} {line.unit}")
        lines.append(line)
    records = {"machine": machine(), "measurements": list(map(asdict, lines))}
    _show(records, as_json, [report.speed_table(lines, machine())])
    if plot is not None:
        report.save_scale_plot(lines, plot)
        remark(f"plot: {plot}")
    losses = measure.losses(lines, before) if check else ()
    for loss in losses:
        remark(f"slower: {loss}")
    if losses:
        raise SystemExit(1)


def _read(sources: tuple[Path, ...], split: str, limit: int | None) -> CaptionDataset:
    from capsearch.encoders.data.dataset import read

    data = read(sources, splits=[split])
    return data.first(limit) if limit else data


def _features(cache: Path | None) -> FeatureCache:
    from capsearch.encoders.data.features import FeatureCache, default_cache

    return FeatureCache(cache or default_cache())


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
