"""Options of the `capsearch train` commands."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from capsearch.ui.commands.options import json_option

F = TypeVar("F", bound=Callable[..., Any])
Option = Callable[[F], F]


def _all_of(*options: Option[Any]) -> Option[Any]:
    """A decorator that adds all of these."""

    def added(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return added


def _folder(must_exist: bool = False) -> click.Path:
    return click.Path(exists=must_exist, file_okay=False, path_type=Path)


_DATA: tuple[Option[Any], ...] = (
    click.option(
        "--data",
        "sources",
        type=click.Path(exists=True, path_type=Path),
        multiple=True,
        required=True,
        metavar="PATH",
        help="A file or folder of captioned images. Repeat the option to merge several.",
    ),
    click.option(
        "--images",
        type=_folder(must_exist=True),
        metavar="DIR",
        help="The folder of the image files. Set it when they are not beside the captions.",
    ),
    click.option(
        "--lang",
        "languages",
        multiple=True,
        metavar="CODE",
        help="A language to train: en, zh or ja. Repeat the option for several; the default is "
        "all three. Name only languages that the training captions have.",
    ),
    click.option(
        "--caption-source",
        "caption_sources",
        multiple=True,
        metavar="NAME",
        help="Use only captions of this source, as the data names it (coco, coco-cn, ...), and the "
        "images that have one. Repeat the option for several; the default is all.",
    ),
    click.option(
        "--train-split",
        default="train",
        show_default=True,
        metavar="NAME",
        help="The split to train on.",
    ),
    click.option(
        "--val-split",
        default="val",
        show_default=True,
        metavar="NAME",
        help="The split that chooses the best epoch and calibrates scores. Never use a test split.",
    ),
    click.option(
        "--limit",
        type=click.IntRange(2),
        metavar="N",
        help="Train on the first N images only, for a quick trial or a learning curve.",
    ),
    click.option(
        "--min-count",
        type=click.IntRange(1),
        default=5,
        show_default=True,
        help="A word enters the vocabulary when it occurs this often in the training captions. "
        "Lower it for small data sets.",
    ),
    click.option(
        "--licence",
        default="not stated",
        help="The licence of the captions. It is recorded in the model's card.",
    ),
)

_OUTPUT: tuple[Option[Any], ...] = (
    click.option("--name", required=True, help="The name of the new model."),
    click.option(
        "--output",
        type=_folder(),
        metavar="DIR",
        help="The folder to write the model to.  [default: NAME in your models folder]",
    ),
    click.option(
        "--cache",
        type=_folder(),
        metavar="DIR",
        help="The folder for cached features. It may become large and is safe to delete.  "
        "[default: your cache directory]",
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Continue an interrupted run from its last finished epoch. Give the same options "
        "as before; the result is the same as without the interruption.",
    ),
)

_OPTIMISATION: tuple[Option[Any], ...] = (
    click.option(
        "--batch-size",
        type=click.IntRange(2),
        default=256,
        show_default=True,
        help="Images per training step. More images give each caption more negatives and need "
        "more memory; raise --lr with it.",
    ),
    click.option(
        "--seed",
        type=int,
        default=7,
        show_default=True,
        help="The random seed. Change it to measure how much results vary between runs.",
    ),
)


run_options = _all_of(*_DATA, *_OUTPUT, *_OPTIMISATION, json_option)  # of every command


# Of commands that train text encoders.
text_encoder_options = _all_of(
    click.option(
        "--inputs",
        default="bow,word2vec,gru,sentence",
        show_default=True,
        metavar="LIST",
        help="The inputs of the text encoders, separated by commas. Leave some out to measure "
        "what they contribute.",
    ),
    click.option(
        "--hidden",
        type=click.IntRange(1),
        metavar="N",
        help="The number of hidden units of the text encoders. Fewer units encode a query "
        "faster. `train backbone --from MODEL` prunes the model's text encoders to N units.",
    ),
    click.option(
        "--pooling",
        type=click.Choice(["attention", "mean", "last"]),
        default="attention",
        show_default=True,
        help="How the GRU's states become one vector. It hardly changes results.",
    ),
    click.option(
        "--caption-loss-weight",
        type=click.FloatRange(0),
        default=0.5,
        show_default=True,
        help="The weight of the loss between captions of one image, which improves search by "
        "caption. With 0, captions are only compared with images.",
    ),
)


# Of distillation.
teacher_options = _all_of(
    click.option(
        "--teacher",
        metavar="NAME",
        help="A CLIP-like model, open_clip:MODEL or its export, whose space to learn. Its image "
        "tower becomes the backbone, and its text vectors teach the languages that it reads.",
    ),
    click.option(
        "--sentences",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        multiple=True,
        metavar="FILE",
        help="Sentences without images, one a line, that the teacher reads. Repeatable.",
    ),
    click.option(
        "--distillation-weight",
        type=click.FloatRange(0),
        default=5.0,
        show_default=True,
        help="The weight of the distance to the teacher's text vectors. With 0, only images teach.",
    ),
)


def lr_option(default: float, help: str) -> Option[Any]:
    """--lr, whose default and scope differ between commands."""
    return click.option(
        "--lr", type=float, default=default, show_default=True,
        help=help,
    )  # fmt: skip


backbone_lr_option: Option[Any] = click.option(
    "--backbone-lr",
    type=float,
    default=3e-4,
    show_default=True,
    help="The peak learning rate of the backbone's last layer; the blocks before it have two "
    "thirds of it. Lower it when validation falls from the first epoch on.",
)

epochs_option: Option[Any] = click.option(
    "--epochs",
    type=click.IntRange(1),
    default=10,
    show_default=True,
    help="How often to go through the training images at most. Training stops earlier when "
    "validation has not improved for four epochs.",
)
labelled_option = _all_of(
    click.option(
        "--labelled",
        type=_folder(must_exist=True),
        multiple=True,
        metavar="DIR",
        help="A folder of images with labels instead of captions, in the same layout. Names of "
        "what a label stands for are what the model learns of them. Repeat the option for several.",
    ),
    click.option(
        "--all-concepts",
        is_flag=True,
        help="Train on the concepts of --labelled that are held out otherwise, too: for a model "
        "to use, once another has shown what the recipe makes of names it has never seen.",
    ),
)

no_flip_option: Option[Any] = click.option(
    "--no-flip",
    is_flag=True,
    help="Do not train on horizontally flipped images as well. This halves the time to compute "
    "features; choose it when left and right matter in your captions.",
)
