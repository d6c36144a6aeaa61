"""`capsearch train`: models from your own captions.

`capsearch train student`: a small backbone in the space of a larger model.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from capsearch.engine.errors import TrainingProblem
from capsearch.ui.cli.options import bfloat16_option, like_option
from capsearch.ui.cli.train_heads import caption, tags
from capsearch.ui.cli.train_options import (
    backbone_lr_option,
    carry_out,
    epochs_option,
    labelled_option,
    lr_option,
    need_packages,
    no_flip_option,
    run_options,
    teacher_options,
    text_config,
    text_encoder_options,
    training_options,
    training_run,
)

if TYPE_CHECKING:
    from capsearch.encoders.train.run import Listener, TrainingRun
    from capsearch.encoders.train.w2vv import Pooling


EXAMPLES = """\b
Examples:
  capsearch models install tinyvit
  capsearch train student --data DIR --teacher trio-accurate --name small --text-name mine
  capsearch train student --data DIR --labelled SETS --teacher trio-accurate --from lite0 \\
      --name smaller --text-name mine-fast
  capsearch train student --data DIR --teacher trio-accurate --from mine \\
      --name small2 --text-name mine2                          train it on
  capsearch index ~/Pictures --model mine --rebuild            use it

The student shares the teacher's text encoders, which stay unchanged, so an index of either model
answers the same queries. It learns the teacher's image vectors, and captions and names as the
teacher did. The teacher's features and the activations of the student's lower blocks (63 kB an
image for tinyvit) are computed once and cached. --lang and --min-count do not apply.
"""


@click.command(epilog=EXAMPLES)
@run_options
@labelled_option
@like_option
@click.option(
    "--teacher",
    required=True,
    metavar="NAME",
    help="The search model whose text encoders and image vectors the student learns from.",
)
@click.option(
    "--from",
    "initial",
    default="tinyvit",
    show_default=True,
    metavar="NAME",
    help="The pretrained network of the student: tinyvit, lite0, lite1 or lite2. Or an earlier "
    "student's search model, to train it on.",
)
@click.option(
    "--text-name",
    metavar="NAME",
    help="The name of the search model that uses the new backbone.  [default: NAME-text]",
)
@click.option(
    "--epochs",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="How often to go through the training images.",
)
@lr_option(5e-4, "The peak learning rate of the projection.")
@backbone_lr_option
@click.option(
    "--distillation-weight",
    type=click.FloatRange(0),
    default=5.0,
    show_default=True,
    help="The weight of the distance to the teacher's image vectors. With 0, only captions teach.",
)
@bfloat16_option
def student(
    teacher: str,
    initial: str,
    text_name: str | None,
    epochs: int,
    lr: float,
    backbone_lr: float,
    distillation_weight: float,
    bfloat16: bool,
    as_json: bool,
    **shared: Any,
) -> int:
    """Distil a search model into a smaller backbone, with the same text encoders."""
    need_packages()
    from capsearch.encoders.train.student_run import train_student

    options = training_options(
        shared,
        epochs,
        lr,
        backbone_lr=backbone_lr,
        distillation_weight=distillation_weight,
        bfloat16=bfloat16,
        patience=epochs,
    )
    run = replace(
        training_run(shared),
        backbone=initial,
        text_name=text_name or f"{shared['name']}-text",
        teacher=teacher,
        options=options,
    )
    return carry_out(train_student, run, as_json)


TEXT_EXAMPLES = """\b
Examples:
  capsearch train text --data DIR --name mine
  capsearch train text --data captions_train2017.json --images train2017 --lang en --name coco
  capsearch train text --data DIR --from trio --lr 1e-4 --name mine    fewer captions will do
  capsearch train text --data DIR --name mine --resume        after an interruption
  capsearch train text --data DIR --teacher xlmr --name mine  in the space of an exported model
  capsearch index ~/Pictures --model mine --rebuild           use it

With --from, languages and vocabularies stay those of the model (--lang, --min-count, --inputs,
--hidden, --pooling and --variant do not apply), and the result is interpolated with the initial
weights where that validates better. Names of some 9,000 things stay near what the model made of
them, so that it does not forget them for your captions.

With --teacher, small text encoders learn the space of a CLIP-like model: open_clip:MODEL, or a
model of `capsearch models export`, which needs no torch afterwards.

DIR holds SPLIT.jsonl.gz and SPLIT-NN.tar; COCO, STAIR and YJ json, COCO-CN and Flickr8k(-CN)
txt are read too, and several --data are merged by image. Features are computed once for each
backbone and cached. After Ctrl-C, --resume continues from the last finished epoch.
"""

PROJECTION_EXAMPLES = """\b
Examples:
  capsearch train projection --data DIR --backbone lite0 --text trio --name mine-fast

The text encoders of --text stay unchanged. Only the projection of the backbone's features into
their space is trained, which takes minutes. --lang and --min-count do not apply.
"""

BACKBONE_EXAMPLES = """\b
Examples:
  capsearch train backbone --data DIR --from lite2 --name mine-cap --text-name mine
  capsearch train backbone --data DIR --from mine --name mine2-cap --text-name mine2
  capsearch index ~/Pictures --model mine --rebuild           use both

Fine-tunes the upper blocks of a pretrained network against the captions, together with text
encoders, which become a model of their own. The lower blocks' activations are cached on disk,
69 kB an image for lite2, 63 kB for tinyvit. Two cores train some 50 images a second with lite2.
--from the text model of such a run continues fine-tuning it instead: that is quicker, and
vocabularies and languages stay those of the model (--lang, --inputs, --pooling and --frozen-epochs
do not apply). `capsearch train student` distils a model into a smaller backbone.
"""


@click.group()
def command() -> None:
    """Train models on your own captions."""


@command.command(epilog=TEXT_EXAMPLES)
@run_options
@labelled_option
@like_option
@click.option(
    "--backbone",
    metavar="NAME",
    help="The backbone whose features to train on.  [default: tinyvit-trio]",
)
@click.option(
    "--from",
    "initial",
    metavar="MODEL",
    help="Fine-tune the text encoders of this search model instead of training new ones, on the "
    "features of its own backbone. A tenth of the default --lr suits it.",
)
@epochs_option
@lr_option(1e-3, "The peak learning rate. Lower it when the loss diverges.")
@click.option(
    "--loss",
    default="infonce",
    show_default=True,
    help="The loss between captions and images: infonce, triplet, contrastive or mse. The "
    "--variant of a paper sets its own.",
)
@text_encoder_options
@click.option(
    "--variant",
    default="shared",
    show_default=True,
    help="The model to train: shared is ours; w2vv, w2vv-attention, enhanced-w2vv and w2vv++ are "
    "those of the papers, for comparison.",
)
@no_flip_option
@teacher_options
def text(
    backbone: str | None,
    initial: str | None,
    epochs: int,
    lr: float,
    loss: str,
    inputs: str,
    hidden: int | None,
    pooling: Pooling,
    caption_loss_weight: float,
    variant: str,
    no_flip: bool,
    teacher: str | None,
    sentences: tuple[Path, ...],
    distillation_weight: float,
    as_json: bool,
    **shared: Any,
) -> int:
    """Train text encoders and an image projection on a backbone's features."""
    need_packages()
    from capsearch.encoders.train.run import DEFAULT_BACKBONE
    from capsearch.encoders.train.text_run import train_text

    config = text_config(inputs, pooling, hidden)
    if teacher and backbone:
        raise TrainingProblem("the backbone is the image tower of the --teacher; leave it out")
    if initial and (backbone or teacher):
        other = "--backbone" if backbone else "--teacher"
        raise TrainingProblem(f"{initial} is fine-tuned in its own space; leave {other} out")
    options = training_options(
        shared,
        epochs,
        lr,
        config=config,
        caption_loss_weight=caption_loss_weight,
        loss=loss,
        distillation_weight=distillation_weight,
    )
    run = replace(
        training_run(shared),
        backbone=backbone or DEFAULT_BACKBONE,
        initial=initial,
        teacher=teacher,
        sentences=sentences,
        variant=variant,
        flip=not no_flip,
        options=options,
    )
    return carry_out(train_text, run, as_json)


@command.command(epilog=PROJECTION_EXAMPLES)
@run_options
@labelled_option
@like_option
@click.option(
    "--backbone", required=True, metavar="NAME", help="The backbone whose features to project."
)
@click.option(
    "--text",
    default=None,
    metavar="NAME",
    help="The text model whose space to project into.  [default: the built-in model]",
)
@epochs_option
@lr_option(1e-3, "The peak learning rate. Lower it when the loss diverges.")
@no_flip_option
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
    need_packages()
    from capsearch.encoders.models.registry import DEFAULT_MODEL
    from capsearch.encoders.train import text_run

    options = training_options(shared, epochs, lr)
    run = replace(training_run(shared), backbone=backbone, flip=not no_flip, options=options)

    def train(run: TrainingRun, listener: Listener) -> Path:
        return text_run.train_projection(run, text or DEFAULT_MODEL, listener)

    return carry_out(train, run, as_json)


@command.command(epilog=BACKBONE_EXAMPLES)
@run_options
@text_encoder_options
@click.option(
    "--from",
    "initial",
    default="lite2",
    show_default=True,
    metavar="NAME",
    help="The initial weights: lite0, lite1, lite2 or tinyvit for a network pretrained on ImageNet "
    "(larger ones are more accurate and slower; tinyvit needs `capsearch models install tinyvit`), "
    "or a text model, which is fine-tuned with its backbone.",
)
@click.option(
    "--text-name",
    metavar="NAME",
    help="The name of the text model that is trained with the backbone.  [default: NAME-text]",
)
@click.option(
    "--epochs",
    type=click.IntRange(0),
    default=7,
    show_default=True,
    help="How often to go through the training images while fine-tuning the backbone. With 0 it "
    "stays pretrained.",
)
@click.option(
    "--frozen-epochs",
    type=click.IntRange(0),
    default=3,
    show_default=True,
    help="Epochs before that with a frozen backbone, in which new text encoders are trained. They "
    "take little time and protect the backbone from gradients of untrained text encoders.",
)
@lr_option(5e-4, "The peak learning rate of everything but the backbone.")
@backbone_lr_option
@click.option(
    "--generation-loss-weight",
    type=click.FloatRange(0),
    default=0.0,
    show_default=True,
    help="The weight of the loss of an LSTM that writes captions from the features, which trains "
    "the backbone jointly for captions (Zhu 2016). With 0 there is none.",
)
def backbone(
    initial: str,
    text_name: str | None,
    epochs: int,
    frozen_epochs: int,
    lr: float,
    backbone_lr: float,
    inputs: str,
    hidden: int | None,
    pooling: Pooling,
    caption_loss_weight: float,
    generation_loss_weight: float,
    as_json: bool,
    **shared: Any,
) -> int:
    """Fine-tune a backbone's upper blocks against captions, with text encoders."""
    need_packages()
    from capsearch.encoders.train.backbone_run import train_backbone

    options = training_options(
        shared,
        epochs,
        lr,
        config=text_config(inputs, pooling, hidden),
        caption_loss_weight=caption_loss_weight,
        backbone_lr=backbone_lr,
        generation_loss_weight=generation_loss_weight,
        patience=epochs,
    )
    run = replace(
        training_run(shared),
        backbone=initial,
        text_name=text_name or f"{shared['name']}-text",
        hidden=hidden,
        frozen_epochs=frozen_epochs,
        options=options,
    )
    return carry_out(train_backbone, run, as_json)


command.add_command(student)
command.add_command(tags)
command.add_command(caption)
