"""`capsearch bench names`: names of things against labelled photographs."""

from __future__ import annotations

from pathlib import Path

import click

from capsearch.ui.commands.options import cache_option, data_option, json_option, model_option
from capsearch.ui.output.terminal import console, print_json, remark

EXAMPLES = """\b
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

P@5 and P@10: the share of the first five and ten hits that show the concept (P@10 of concepts
with ten photographs); same: the share of the first ten that the commonest name finds too.
Photographs show more than their label says, so precision is a lower bound. Tied scores count
as ranked before the correct result. Intervals: 95 %, bootstrap over the queries.
"""


@click.command(epilog=EXAMPLES)
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
    cache: Path | None,
    as_json: bool,
) -> None:
    """Measure how well names of things find photographs of them, trained on or not."""
    from capsearch.benchmarks.names import at_most, encode_pool, evaluate
    from capsearch.benchmarks.report import names_table
    from capsearch.encoders import models
    from capsearch.encoders.datasets.dataset import read_labelled
    from capsearch.encoders.datasets.features import FeatureCache, default_cache
    from capsearch.ui.output.progress import stage_progress

    model = models.load(name)
    data = read_labelled(sources, all_concepts).split(split)
    if per_label is not None:
        data = at_most(data, per_label)
    remark(f"{split}: {len(data):,} photographs, model {model.name}")
    with stage_progress("photographs") as report:
        pool = encode_pool(model, data, FeatureCache(cache or default_cache()), report)
    if len(pool.images) < len(data):
        remark(f"warning: {len(data) - len(pool.images):,} images could not be read")
    rows = evaluate(model, pool, kind, min_photos, all_concepts)
    if as_json:
        print_json([record for row in rows for record in row.records()])
    else:
        console().print(names_table(rows))
