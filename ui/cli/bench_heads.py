"""`capsearch bench caption` and `bench tags`: what describes images, beside the papers' figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capsearch.ui.cli.options import cache_option, data_option, json_option
from capsearch.ui.cli.terminal import aligned, print_json, remark

if TYPE_CHECKING:
    from capsearch.benchmarks.captions import CaptionRow, TagRow
    from capsearch.encoders.data.dataset import CaptionDataset
    from capsearch.encoders.models.captioner import BuiltInCaptioner
    from capsearch.encoders.models.image import ImageNetwork


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

_models_option = click.option(
    "--model",
    "names",
    multiple=True,
    required=True,
    metavar="NAME",
    help="Name or path (./DIR) of a trained model. Repeatable.",
)
_split_option = click.option(
    "--split", default="val", show_default=True, help="Split of the data to evaluate on."
)
_limit_option = click.option(
    "--limit", type=click.IntRange(1), metavar="N", help="Use only the first N images."
)
_plot_option = click.option(
    "--plot",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also plot the models' training (.png, .svg or .pdf); needs capsearch[bench].",
)


@click.command(epilog=CAPTION_EXAMPLES)
@data_option
@_split_option
@_models_option
@click.option(
    "--train-split",
    default="train",
    show_default=True,
    help="Split whose captions the nearest-neighbour baseline repeats.",
)
@click.option("--no-baseline", is_flag=True, help="Leave the nearest-neighbour baseline out.")
@click.option(
    "--beam",
    type=click.IntRange(1),
    metavar="N",
    help="Hypotheses of the beam search; 1 is greedy.  [default: the model's]",
)
@click.option(
    "--examples",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Captions to print for each model and language.",
)
@_limit_option
@cache_option
@_plot_option
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
    from capsearch.benchmarks import captions
    from capsearch.encoders.data.features import default_cache
    from capsearch.encoders.models import registry
    from capsearch.encoders.train.caption_metrics import has_java
    from capsearch.ui.cli.progress import stage_progress

    check_plot(plot)
    folder, data = cache or default_cache(), _data(sources, split, limit)
    rows: list[CaptionRow] = []
    baselines: set[str] = set()
    for name in dict.fromkeys(names):
        captioner = _searching(registry.load_captioner(name), beam)
        backbone = registry.load_backbone(str(captioner.card["backbone"]))
        with stage_progress(split) as report:
            images = captions.encode(backbone, data, folder, report)
        if not no_baseline and backbone.digest not in baselines:
            baselines.add(backbone.digest)
            rows += _baseline(captioner, backbone, images, sources, train_split, folder)
        rows += captions.evaluate(captioner, backbone, images, examples)
    if not has_java():
        remark("METEOR is left out: it needs Java, which is not installed")
    print_json(list(map(asdict, rows))) if as_json else _print_captions(rows)
    save_plot(names, "captioner", plot)


@click.command(epilog=TAGS_EXAMPLES)
@data_option
@_split_option
@_models_option
@_limit_option
@click.option(
    "--most",
    type=click.IntRange(1),
    metavar="N",
    help="Only the N most frequent tags of each language; COCO-CN has 655.",
)
@cache_option
@_plot_option
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
    from capsearch.benchmarks.captions import evaluate_tags
    from capsearch.encoders.data.features import FeatureCache, default_cache, load_features
    from capsearch.encoders.models import model_folder, registry
    from capsearch.encoders.models.image import check_backbone
    from capsearch.ui.cli.progress import stage_progress

    check_plot(plot)
    data = _data(sources, split, limit)
    rows: list[TagRow] = []
    for name in dict.fromkeys(names):
        card = model_folder.read_card(registry.find(name, "tagger"))
        backbone = registry.load_backbone(str(card["backbone"]))
        check_backbone(card, backbone)
        with stage_progress(split) as report:
            features = FeatureCache(cache or default_cache())
            readable, pooled = load_features(backbone, data, features, report)
        rows += evaluate_tags(registry.load_tagger(name), readable, pooled, most)
    print_json(list(map(asdict, rows))) if as_json else _print_tags(rows)
    save_plot(names, "tagger", plot)


def _searching(captioner: BuiltInCaptioner, beam: int | None) -> BuiltInCaptioner:
    from dataclasses import replace

    return captioner.searching(replace(captioner.beam, size=beam)) if beam else captioner


def _baseline(
    captioner: BuiltInCaptioner,
    backbone: ImageNetwork,
    images: Any,
    sources: tuple[Path, ...],
    train_split: str,
    cache: Path,
) -> Iterator[CaptionRow]:
    from capsearch.benchmarks import captions
    from capsearch.ui.cli.progress import stage_progress

    train = _data(sources, train_split, _trained_images(captioner.card))
    with stage_progress(train_split) as report:
        known = captions.encode(backbone, train, cache, report)
    return captions.nearest_neighbour(known, images, captioner.languages)


def _trained_images(card: Mapping[str, Any]) -> int | None:
    """The baseline knows as many images as the captioner was trained on."""
    training = card.get("training", {})
    return int(training["images"]) if "images" in training else None


def _data(sources: tuple[Path, ...], split: str, limit: int | None) -> CaptionDataset:
    from capsearch.encoders.data.dataset import read

    data = read(sources, splits=[split])
    return data.first(limit) if limit else data


def check_plot(plot: Path | None) -> None:
    """Fail before the measurement, not after it."""
    if plot is not None:
        from capsearch.benchmarks import report

        report.check_plot(plot)


def save_plot(names: Sequence[str], kind: str, plot: Path | None) -> None:
    """Draw the models' training, if a plot is asked for."""
    if plot is None:
        return
    from capsearch.benchmarks.report import save_curves, trained_model
    from capsearch.encoders.models import registry

    save_curves([trained_model(registry.find(name, kind)) for name in names], plot)
    remark(f"plot: {plot}")


def _print_captions(rows: Sequence[CaptionRow]) -> None:
    from capsearch.benchmarks.captions import CAPTION_TABLES
    from capsearch.encoders.train.caption_metrics import METRICS

    for language in dict.fromkeys(row.language for row in rows):
        table: list[tuple[str, ...]] = [(language, "images", *METRICS, "ms/image")]
        for row in (one for one in rows if one.language == language):
            took = "" if row.ms_per_image is None else f"{row.ms_per_image:.1f}"
            figures = (row.scores.get(name) for name in METRICS)
            table.append((row.model, str(row.images), *map(_cell, figures), took))
        notes = []
        for number, published in enumerate(
            (one for one in CAPTION_TABLES if one.language == language), start=1
        ):
            notes.append(f"[{number}] {published.title}: {published.setting}")
            for name, scores in published.rows.items():
                cells = (_cell(scores.get(metric)) for metric in METRICS)
                table.append((f"[{number}] {name}", "", *cells, ""))
        click.echo("\n".join([*aligned(table), *notes]) + "\n")
    for row in rows:
        for image, text in row.examples:
            click.echo(f"{row.model}  {row.language}  {image}  {text}")


def _print_tags(rows: Sequence[TagRow]) -> None:
    from capsearch.benchmarks.captions import TAG_TABLE

    table: list[tuple[str, ...]] = [
        ("model", "language", "images", "tags", "P@5", "R@5", "F@5", "F shown", "calibration error")
    ]
    for row in rows:
        figures = (row.precision, row.recall, row.f, row.f_shown, row.calibration_error)
        counts = (str(row.images), str(row.vocabulary))
        table.append((row.model, row.language, *counts, *map(_cell, figures)))
    for name, published in TAG_TABLE.items():
        cells = ("COCO-CN table IV: " + name, "zh", "1000", "655")
        table.append((*cells, *map(_cell, published), "", ""))
    click.echo("\n".join(aligned(table)))


def _cell(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
