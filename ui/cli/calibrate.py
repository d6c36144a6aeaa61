"""`capsearch calibrate`: what evidence is worth to a model, fitted on captioned images."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click

from capsearch.ui.cli.options import (
    cache_option,
    data_option,
    json_option,
    like_option,
    model_option,
)
from capsearch.ui.cli.terminal import aligned, print_json, remark
from capsearch.ui.cli.train_options import need_packages

EXAMPLES = """\b
Examples:
  capsearch calibrate --data DIR
  capsearch calibrate --data DIR --model mine --split val
  capsearch calibrate --data DIR --labelled SETS --model mine

A calibrated model shows every hit with its probability of relevance, fuses images with and
without captions fairly, and leaves out what does not match. The built-in models are calibrated;
run this for your own, or to calibrate a built-in one on images like yours.

DIR holds captioned images in one of the layouts that `capsearch train` reads, with a split
for calibration that the model was not trained on. With --labelled, names of what these images show
are calibrated too: queries such as "violin" then promise no more than they find.
"""


@click.command(epilog=EXAMPLES)
@data_option
@click.option(
    "--labelled",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    metavar="DIR",
    help="A folder of images with labels instead of captions, whose names are queries to fit on "
    "as well. Repeat the option for several.",
)
@click.option(
    "--all-concepts",
    is_flag=True,
    help="The model was trained with --all-concepts: of --labelled, photographs were held out, and "
    "no concept was.",
)
@like_option
@model_option
@click.option(
    "--split",
    default="val",
    show_default=True,
    help="The images to fit on: not those the model was trained on.",
)
@click.option(
    "--bank-split",
    default="train",
    show_default=True,
    help="Images and captions in general: what a query scores on them is its background.",
)
@cache_option
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where to write the result.  [default: your models folder, used from now on]",
)
@json_option
def command(
    sources: tuple[Path, ...],
    labelled: tuple[Path, ...],
    all_concepts: bool,
    like: tuple[Path, ...],
    name: str | None,
    split: str,
    bank_split: str,
    cache: Path | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Fit what evidence is worth to a model: images, captions, words."""
    need_packages("torch", purpose="calibration")  # fits the classifiers of concepts
    from capsearch.encoders.calibrate.run import CalibrationRun, calibrate
    from capsearch.engine.records import Progress
    from capsearch.ui.cli.progress import progress_bar

    run = CalibrationRun(
        sources, labelled, like, name, split, bank_split, cache, output, all_concepts
    )
    with progress_bar() as show:
        fitted = calibrate(run, lambda done, of: show(Progress("features", done, of, None)))
    if as_json:
        print_json({language: asdict(one) for language, one in fitted.items()})
        return
    rows = [("language", "cut-off, names", "cut-off, sentences")]
    rows += [
        (language, f"{one.short.cutoff:.1%}", f"{one.long.cutoff:.1%}")
        for language, one in fitted.items()
    ]
    click.echo("\n".join(aligned(rows)))
    remark(f"written to {output}" if output else "searches with this model use it from now on")
