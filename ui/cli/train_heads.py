"""`capsearch train tags` and `train caption`: what describes images from a backbone's features."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capsearch.ui.cli.options import bfloat16_option
from capsearch.ui.cli.train_options import (
    carry_out,
    epochs_option,
    labelled_option,
    lr_option,
    need_packages,
    no_flip_option,
    run_options,
    training_options,
    training_run,
)

if TYPE_CHECKING:
    from capsearch.encoders.train.run import Listener, TrainingRun


TAGS_EXAMPLES = """\b
Examples:
  capsearch train tags --data DIR --name mine-tags
  capsearch train tags --data DIR --labelled SETS --name mine-tags
  capsearch train tags --data DIR --variant mlp --name mine-mlp      a paper's variant
  capsearch bench tags --data DIR --split test --model mine-tags

Tags are what captions, human tags and labelled objects name: concepts of the built-in table, which
have names in three languages, and other nouns, verbs and adjectives. What a caption does not name
counts as absent; in a language without captions it is unknown and not trained on. Probabilities
are calibrated on the validation split. `capsearch enrich` uses the tagger of an index's backbone.
"""

CAPTION_EXAMPLES = """\b
Examples:
  capsearch train caption --data DIR --name mine-captions
  capsearch train caption --data DIR --tags mine-tags --name mine-captions
  capsearch train caption --data DIR --decoder show-and-tell --scheme transfer \\
      --lang en --lang ja --name mine-ja                             a paper's model
  capsearch train caption --data DIR --from mine-captions --scheme self-training \\
      --epochs 4 --name mine-captions2                               learns from what it writes
  capsearch train caption --data DIR --from mine-captions2 --scheme self-critical --epochs 1 \\
      --lr 1e-4 --name better-captions                               rewarded for CIDEr-D
  capsearch train caption --data DIR --name mine-captions --resume   after an interruption
  capsearch bench caption --data DIR --split val --model mine-captions

Feature maps are cached on disk (125 kB an image for 49 cells of 1,280 channels). The best epoch is
the one with the highest CIDEr-D on the validation split.
"""

_backbone_option = click.option(
    "--backbone",
    metavar="NAME",
    help="The backbone whose features to train on.  [default: that of the built-in model]",
)


@click.command(epilog=TAGS_EXAMPLES)
@run_options
@_backbone_option
@labelled_option
@click.option(
    "--variant",
    default="cascade",
    show_default=True,
    help="The network: cascade (English tags first, whose scores are inputs of the other "
    "languages), multi-task (one hidden layer for all) or mlp (one network a language).",
)
@click.option(
    "--hidden",
    type=click.IntRange(1),
    default=1024,
    show_default=True,
    help="The units of each hidden layer. Fewer make a smaller model.",
)
@click.option(
    "--only-said",
    is_flag=True,
    help="Count as a tag only what captions and human tags say, as the COCO-CN paper does: no "
    "labelled objects, and an animal is absent where a cat is named. To compare with the paper.",
)
@epochs_option
@lr_option(5e-4, "The peak learning rate. Lower it when the loss diverges.")
@no_flip_option
def tags(
    backbone: str | None,
    variant: Any,
    hidden: int,
    only_said: bool,
    epochs: int,
    lr: float,
    no_flip: bool,
    as_json: bool,
    **shared: Any,
) -> int:
    """Train a tagger on a backbone's features."""
    need_packages()
    from capsearch.encoders.data.tag_labels import MIN_COUNT
    from capsearch.encoders.train.tags import TagConfig, TagsRun, train_tags

    config = TagConfig(variant=variant, hidden=hidden)
    run = replace(
        _head_run(shared, backbone, epochs, lr, MIN_COUNT),
        flip=not no_flip,
    )

    def train(run: TrainingRun, listener: Listener) -> Path:
        return train_tags(TagsRun(run, config, only_said), listener)

    return carry_out(train, run, as_json, use="bench tags --data DIR --model {}")


@click.command(epilog=CAPTION_EXAMPLES)
@run_options
@_backbone_option
@click.option(
    "--decoder",
    default="transformer",
    show_default=True,
    help="The decoder: transformer (attends to the feature map) or a paper's: show-and-tell, "
    "m-rnn or multimodal-rnn, which see the pooled feature.",
)
@click.option(
    "--scheme",
    default="sequential",
    show_default=True,
    help="The training scheme: sequential (all captions, then those written for these "
    "photographs), mixed, artificial-token, transfer, alternate or monolingual; or, after one of "
    "them, self-training (the captioner writes captions for the training images, and learns from "
    "those that agree with people's in any language, too) or self-critical (captions are sampled "
    "and rewarded for CIDEr-D).",
)
@click.option(
    "--from",
    "initial",
    default="",
    metavar="NAME",
    help="A captioner to train on, with its backbone, words, decoder and tags, instead of a "
    "new one. The weights between old and new that write the best captions are kept.",
)
@click.option(
    "--tags",
    "tagger",
    default="",
    metavar="NAME",
    help="A tagger whose tags are an input beside the image. It is needed to write captions, too.",
)
@click.option(
    "--width",
    type=click.IntRange(1),
    default=256,
    show_default=True,
    help="The units of the decoder. Fewer make a smaller and faster model.",
)
@click.option(
    "--layers",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="The layers of a transformer decoder. Fewer make a smaller and faster model.",
)
@click.option(
    "--beam",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="Hypotheses that the finished model's beam search keeps. With 1 it is greedy.",
)
@epochs_option
@lr_option(5e-4, "The peak learning rate. Lower it when the loss diverges.")
@bfloat16_option
def caption(
    backbone: str | None,
    decoder: str,
    scheme: str,
    initial: str,
    tagger: str,
    width: int,
    layers: int,
    beam: int,
    epochs: int,
    lr: float,
    bfloat16: bool,
    as_json: bool,
    **shared: Any,
) -> int:
    """Train a captioner on a backbone's feature maps."""
    need_packages()
    from capsearch.encoders.train.caption_run import CaptionRun, stages_of, train_caption
    from capsearch.encoders.train.decoders import CaptionConfig

    config = CaptionConfig(architecture=decoder, width=width, layers=layers)
    run = _head_run(shared, backbone, epochs, lr, 5, bfloat16=bfloat16)
    stages_of(scheme, run.languages)  # fail before features are computed, not after

    def train(run: TrainingRun, listener: Listener) -> Path:
        return train_caption(CaptionRun(run, config, scheme, tagger, beam, initial), listener)

    return carry_out(train, run, as_json, use="bench caption --data DIR --model {}")


def _head_run(
    shared: dict[str, Any],
    backbone: str | None,
    epochs: int,
    lr: float,
    min_count: int,
    **more: Any,
) -> TrainingRun:
    """The run with `more` options; `min_count` applies unless --min-count was given."""
    from capsearch.encoders.train.run import DEFAULT_BACKBONE

    source = click.get_current_context().get_parameter_source("min_count")
    if source is not click.core.ParameterSource.COMMANDLINE:
        shared = {**shared, "min_count": min_count}
    options = training_options(shared, epochs, lr, captions_per_image=1, **more)
    return replace(training_run(shared), backbone=backbone or DEFAULT_BACKBONE, options=options)
