"""`capsearch bench evidence`: images with and without captions, and the cut-off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from capsearch.ui.commands.options import data_option, json_option, model_option
from capsearch.ui.output.terminal import aligned, print_json, remark

if TYPE_CHECKING:
    from capsearch.benchmarks.evidence import CutoffRow, NamesRow, ShareRow

EXAMPLES = """\b
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


def _shares(text: str) -> tuple[float, ...]:
    try:
        shares = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a list of numbers such as 0.1,0.5,1") from None
    if not all(0.0 <= share <= 1.0 for share in shares):
        raise click.BadParameter(f"shares lie between 0 and 1, not {text}")
    return shares


@click.command(epilog=EXAMPLES)
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
@click.option(
    "--enriched",
    is_flag=True,
    help="Let the model's captioner and tagger describe the images first, as `capsearch index` "
    "does: their text is evidence in all tables.",
)
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
    from capsearch.encoders import models
    from capsearch.encoders.calibration.collection import NO_HEADS, encode_images
    from capsearch.encoders.calibration.stored import stored_evidence
    from capsearch.encoders.datasets.dataset import read
    from capsearch.encoders.datasets.features import FeatureCache, default_cache

    model = models.load(name)
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
