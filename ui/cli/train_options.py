"""Options of the `capsearch train` commands.

How the `capsearch train` commands run: what they need, what their options mean, and reports.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from capsearch.engine.errors import MissingExtra, TrainingProblem
from capsearch.ui.cli.options import json_option
from capsearch.ui.cli.progress import training_progress
from capsearch.ui.cli.terminal import print_json, remark

if TYPE_CHECKING:
    from capsearch.encoders.train.dual_encoder import TrainingOptions
    from capsearch.encoders.train.run import TrainingRun
    from capsearch.encoders.train.w2vv import Pooling, TextConfig


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


def need_packages(*packages: str, purpose: str = "training", extra: str = "train") -> None:
    """MissingExtra unless these are installed; by default all that training needs."""
    needed = packages or ("gensim", "onnxscript", "pycocoevalcap", "torch")
    if not all(find_spec(package) for package in needed):
        raise MissingExtra(purpose, extra)


def training_options(
    shared: Mapping[str, Any], epochs: int, lr: float, **more: Any
) -> TrainingOptions:
    """The hyperparameters of a run: those all runs have, and `more`."""
    from capsearch.encoders.train.dual_encoder import TrainingOptions

    return TrainingOptions(
        epochs=epochs, lr=lr, batch_size=shared["batch_size"], seed=shared["seed"], **more
    )


def text_config(inputs: str, pooling: Pooling, hidden: int | None) -> TextConfig:
    """The text encoders that --inputs, --pooling and --hidden describe."""
    from capsearch.encoders.train.w2vv import INPUTS, TextConfig

    chosen = tuple(part.strip() for part in inputs.split(",") if part.strip())
    unknown = [one for one in chosen if one not in INPUTS]
    if unknown or not chosen:
        raise TrainingProblem(f"--inputs are some of {','.join(INPUTS)}, not {inputs!r}")
    config = TextConfig(inputs=chosen, pooling=pooling)  # type: ignore[arg-type]
    return replace(config, hidden=hidden) if hidden else config


def training_run(options: dict[str, Any]) -> TrainingRun:
    """The run that the options of `run_options` describe."""
    from capsearch.encoders.data.features import default_cache
    from capsearch.encoders.data.layouts import Source
    from capsearch.encoders.models.registry import user_models_dir
    from capsearch.encoders.train.run import TrainingRun
    from capsearch.engine.records import LANGUAGES

    return TrainingRun(
        sources=tuple(Source(path, images=options["images"]) for path in options["sources"]),
        name=options["name"],
        output=options["output"] or user_models_dir() / options["name"],
        labelled=options.get("labelled", ()),  # of commands that have the options
        all_concepts=options.get("all_concepts", False),
        like=options.get("like", ()),
        languages=options["languages"] or LANGUAGES,
        caption_sources=options["caption_sources"],
        train_split=options["train_split"],
        validation_split=options["val_split"],
        cache=options["cache"] or default_cache(),
        min_count=options["min_count"],
        resume=options["resume"],
        limit=options["limit"],
        data_licence=options["licence"],
    )


def carry_out(
    train: Callable[..., Path],
    run: TrainingRun,
    as_json: bool,
    use: str = "index PATH --model {} --rebuild",
) -> int:
    """Check the names, train with a progress bar, and report the new model.

    `use`: the command that uses a model, with {} for its name.
    """
    from capsearch.encoders.models.model_folder import read_card
    from capsearch.encoders.models.registry import check_new_name, user_models_dir

    for name in filter(None, (run.name, run.text_name)):
        check_new_name(name)
    if len(set(run.folders)) < len(run.folders):
        raise TrainingProblem("the backbone and its text model need two names")
    for folder in run.folders:
        if (folder / "model.json").is_file():
            raise TrainingProblem(f"{folder} holds a model already; choose another --name")
    with training_progress() as listener:
        folder = train(run, listener)
    card = read_card(folder)
    if as_json:
        print_json(card)
    else:
        sys.stdout.write(f"{folder}\n")
        model = card["name"] if folder.parent == user_models_dir() else folder.absolute()
        remark(f"use it with: capsearch {use.format(model)}")
    return 0
