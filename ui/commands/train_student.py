"""`capsearch train student`: a small backbone in the space of a larger model."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import click

from capsearch.ui.commands.options import bfloat16_option, like_option
from capsearch.ui.commands.train_options import (
    backbone_lr_option,
    labelled_option,
    lr_option,
    run_options,
)
from capsearch.ui.commands.train_running import (
    carry_out,
    need_torch,
    training_options,
    training_run,
)

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
    need_torch()
    from capsearch.encoders.training.runs.student_run import train_student

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
