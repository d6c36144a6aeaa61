"""`capsearch train`: models from your own captions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from capsearch.engine.errors import MissingExtra, TrainingProblem
from capsearch.ui.commands.options import json_option
from capsearch.ui.output.terminal import print_json, remark
from capsearch.ui.output.training import told

if TYPE_CHECKING:
    from capsearch.encoders.training.nn.w2vv import Pooling
    from capsearch.encoders.training.runs.text_run import Listener, TrainingRun

F = TypeVar("F", bound=Callable[..., Any])

TEXT_EXAMPLES = """\b
Examples:
  capsearch train text --data DIR --name mine
  capsearch train text --data captions_train2017.json --images train2017 --lang en --name coco
  capsearch train text --data DIR --name mine --resume        after an interruption
  capsearch index ~/Pictures --model mine --rebuild           use it

DIR holds SPLIT.jsonl.gz and SPLIT-NN.tar; COCO, STAIR and YJ json, COCO-CN and Flickr8k(-CN)
txt are read too, several --data are merged by photo. Features are computed once for each
backbone and kept. Ctrl-C keeps the last finished epoch for --resume.
"""

PROJECTION_EXAMPLES = """\b
Examples:
  capsearch train projection --data DIR --backbone lite0-cap --text trio --name trio-fast

The text encoders stay those of --text; only what brings the backbone's features into their
space is trained, in minutes.
"""

BACKBONE_EXAMPLES = """\b
Examples:
  capsearch train backbone --data DIR --from lite2 --name mine-eyes --text-name mine
  capsearch train backbone --data DIR --from trio --name mine-eyes --text-name mine
  capsearch index ~/Pictures --model mine --rebuild           use both

Fine-tunes the upper blocks of an EfficientNet-Lite against the captions, together with text
encoders, which become a model of their own. The lower blocks' activations are kept on disk:
69 kB a photo for lite2. Two cores train some 50 photos a second. --from trio goes on from the
built-in model instead of ImageNet's network: quicker, with the words and languages that model
has (--lang, --inputs, --pooling and --frozen-epochs do not apply).
"""


def _shared(command: F) -> F:
    """The options both trainings have."""
    options = [
        click.option(
            "--data",
            "sources",
            type=click.Path(exists=True, path_type=Path),
            multiple=True,
            required=True,
            metavar="PATH",
            help="Captioned photos, a folder or a file; repeatable.",
        ),
        click.option(
            "--images",
            type=click.Path(exists=True, file_okay=False, path_type=Path),
            metavar="DIR",
            help="Where the photos lie, if not beside the captions.",
        ),
        click.option("--name", required=True, help="What to call the model."),
        click.option(
            "--output",
            type=click.Path(file_okay=False, path_type=Path),
            metavar="DIR",
            help="Where to write it.  [default: your models folder]",
        ),
        click.option("--lang", "languages", multiple=True, help="en, zh, ja; all by default."),
        click.option("--train-split", default="train", show_default=True),
        click.option("--val-split", default="val", show_default=True),
        click.option("--cache", type=click.Path(file_okay=False, path_type=Path), metavar="DIR"),
        click.option("--batch-size", type=click.IntRange(2), default=256, show_default=True),
        click.option("--seed", type=int, default=7, show_default=True),
        click.option("--min-count", type=click.IntRange(1), default=5, show_default=True),
        click.option("--limit", type=click.IntRange(2), help="Use only so many training photos."),
        click.option("--licence", default="not stated", help="Of the captions, for the card."),
        click.option("--resume", is_flag=True, help="Go on where an interrupted run stopped."),
        json_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _reading(command: F) -> F:
    """What the text encoders are made of, and what they learn from."""
    command = click.option(
        "--caption-loss-weight",
        type=click.FloatRange(0),
        default=0.5,
        show_default=True,
        help="Weight of the loss between captions of one photo; 0 for images alone.",
    )(command)
    command = click.option(
        "--pooling",
        type=click.Choice(["attention", "mean", "last"]),
        default="attention",
        show_default=True,
        help="How the GRU's states become one.",
    )(command)
    command = click.option(
        "--hidden",
        type=click.IntRange(1),
        help="Hidden units of the text encoders; a --from model's are pruned to so many.",
    )(command)
    return click.option(
        "--inputs",
        default="bow,word2vec,gru,sentence",
        show_default=True,
        help="What the text encoders read.",
    )(command)


_no_flip = click.option(
    "--no-flip", is_flag=True, help="Train on the photos as they are only: half the features."
)


@click.group()
def command() -> None:
    """Train models on your own captions."""


@command.command(epilog=TEXT_EXAMPLES)
@_shared
@click.option("--backbone", metavar="NAME", help="Whose features to train on.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Peak learning rate.")
@click.option("--loss", default="infonce", show_default=True, help="infonce or triplet.")
@_reading
@click.option(
    "--variant",
    default="shared",
    show_default=True,
    help="Ours, or one of the papers': w2vv, w2vv-attention, enhanced-w2vv, w2vv++.",
)
@_no_flip
def text(
    backbone: str | None,
    epochs: int,
    lr: float,
    loss: str,
    inputs: str,
    hidden: int | None,
    pooling: Pooling,
    caption_loss_weight: float,
    variant: str,
    no_flip: bool,
    as_json: bool,
    **shared: Any,
) -> int:
    """Train text encoders and the image projection together on a backbone's features."""
    _need_torch()
    from capsearch.encoders.training.nn.dual_encoder import TrainingOptions
    from capsearch.encoders.training.runs import text_run

    options = TrainingOptions(
        config=_config(inputs, pooling, hidden),
        caption_loss_weight=caption_loss_weight,
        loss=loss,
        epochs=epochs,
        lr=lr,
        batch_size=shared["batch_size"],
        seed=shared["seed"],
    )
    run = replace(
        _run(shared), backbone=backbone or text_run.DEFAULT_BACKBONE, variant=variant,
        flip=not no_flip,
        options=options,
    )  # fmt: skip
    return _carry_out(text_run.train_text, run, as_json)


@command.command(epilog=PROJECTION_EXAMPLES)
@_shared
@click.option("--backbone", required=True, metavar="NAME", help="Whose features to project.")
@click.option("--text", default=None, metavar="NAME", help="Whose space to project into.")
@click.option("--epochs", type=click.IntRange(1), default=10, show_default=True)
@click.option("--lr", type=float, default=1e-3, show_default=True, help="Peak learning rate.")
@_no_flip
def projection(
    backbone: str,
    text: str | None,
    epochs: int,
    lr: float,
    no_flip: bool,
    as_json: bool,
    **shared: Any,
) -> int:
    """Project another backbone into an existing model's space."""
    _need_torch()
    from capsearch.encoders.models import DEFAULT_MODEL
    from capsearch.encoders.training.nn.dual_encoder import TrainingOptions
    from capsearch.encoders.training.runs import text_run

    options = TrainingOptions(
        epochs=epochs, lr=lr, batch_size=shared["batch_size"], seed=shared["seed"]
    )
    run = replace(_run(shared), backbone=backbone, flip=not no_flip, options=options)

    def train(run: TrainingRun, listener: Listener) -> Path:
        return text_run.train_projection(run, text or DEFAULT_MODEL, listener)

    return _carry_out(train, run, as_json)


@command.command(epilog=BACKBONE_EXAMPLES)
@_shared
@_reading
@click.option(
    "--from", "start", default="lite2", show_default=True, help="lite0, lite1, lite2, or a model."
)
@click.option("--text-name", help="Of the text model trained with it.  [default: NAME-text]")
@click.option(
    "--epochs",
    type=click.IntRange(0),
    default=7,
    show_default=True,
    help="0 leaves the network as it is.",
)
@click.option(
    "--frozen-epochs",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Before them, quick ones that leave the network as it is.",
)
@click.option("--lr", type=float, default=5e-4, show_default=True, help="Of the rest.")
@click.option("--backbone-lr", type=float, default=3e-4, show_default=True, help="Of the network.")
def backbone(
    start: str,
    text_name: str | None,
    epochs: int,
    frozen_epochs: int,
    lr: float,
    backbone_lr: float,
    inputs: str,
    hidden: int | None,
    pooling: Pooling,
    caption_loss_weight: float,
    as_json: bool,
    **shared: Any,
) -> int:
    """Fine-tune a network's upper blocks against captions, and text encoders with it."""
    _need_torch()
    from capsearch.encoders.training.nn.dual_encoder import TrainingOptions
    from capsearch.encoders.training.runs.backbone_run import train_backbone

    options = TrainingOptions(
        config=_config(inputs, pooling, hidden),
        caption_loss_weight=caption_loss_weight,
        epochs=epochs,
        lr=lr,
        backbone_lr=backbone_lr,
        batch_size=shared["batch_size"],
        seed=shared["seed"],
        patience=epochs,
    )
    run = replace(
        _run(shared),
        backbone=start,
        text_name=text_name or f"{shared['name']}-text",
        hidden=hidden,
        frozen_epochs=frozen_epochs,
        options=options,
    )
    return _carry_out(train_backbone, run, as_json)


def _need_torch() -> None:
    try:
        import gensim  # noqa: F401
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("training", "train") from None


def _config(inputs: str, pooling: Pooling, hidden: int | None) -> Any:
    from capsearch.encoders.training.nn.w2vv import INPUTS, TextConfig

    chosen = tuple(part.strip() for part in inputs.split(",") if part.strip())
    unknown = [one for one in chosen if one not in INPUTS]
    if unknown or not chosen:
        raise TrainingProblem(f"--inputs are some of {','.join(INPUTS)}, not {inputs!r}")
    made = TextConfig(inputs=chosen, pooling=pooling)  # type: ignore[arg-type]
    return replace(made, hidden=hidden) if hidden else made


def _run(shared: dict[str, Any]) -> TrainingRun:
    from platformdirs import user_cache_path

    from capsearch.encoders.datasets.captioned import Source
    from capsearch.encoders.models import user_models_dir
    from capsearch.encoders.training.runs.text_run import TrainingRun
    from capsearch.engine.records import LANGUAGES

    return TrainingRun(
        sources=tuple(Source(path, images=shared["images"]) for path in shared["sources"]),
        name=shared["name"],
        output=shared["output"] or user_models_dir() / shared["name"],
        languages=shared["languages"] or LANGUAGES,
        train_split=shared["train_split"],
        validation_split=shared["val_split"],
        cache=shared["cache"] or user_cache_path("capsearch") / "features",
        min_count=shared["min_count"],
        resume=shared["resume"],
        limit=shared["limit"],
        data_licence=shared["licence"],
    )


def _carry_out(train: Callable[..., Path], run: TrainingRun, as_json: bool) -> int:
    from capsearch.encoders.model_folder import read_card

    if len(set(run.folders)) < len(run.folders):
        raise TrainingProblem("the network and its text model need two names")
    for folder in run.folders:
        if (folder / "model.json").is_file():
            raise TrainingProblem(f"{folder} holds a model already; choose another --name")
    with told() as listener:
        folder = train(run, listener)
    card = read_card(folder)
    if as_json:
        print_json(card)
    else:
        sys.stdout.write(f"{folder}\n")
        remark(f"use it with: capsearch index PATH --model {card['name']} --rebuild")
    return 0
