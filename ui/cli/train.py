"""`capsearch train` and `capsearch calibrate`: models from your own captions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from capsearch.encoders.settings import (
    BackboneRun,
    CalibrationRun,
    CaptionRun,
    ProjectionRun,
    StudentRun,
    TagsRun,
    TextRun,
    TrainingRun,
)
from capsearch.engine.errors import MissingExtra, TrainingProblem
from capsearch.ui.cli.declared import declared_by
from capsearch.ui.cli.options import json_option
from capsearch.ui.cli.progress import training_progress
from capsearch.ui.cli.terminal import aligned, print_json, remark

if TYPE_CHECKING:
    from capsearch.encoders.train.run import Listener

Run = TypeVar("Run", bound=TrainingRun)

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

STUDENT_EXAMPLES = """\b
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

CALIBRATE_EXAMPLES = """\b
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


@click.group()
def command() -> None:
    """Train models on your own captions."""


@command.command(epilog=TEXT_EXAMPLES)
@declared_by(TextRun)
@json_option
def text(run: TextRun, as_json: bool) -> int:
    """Train text encoders and an image projection on a backbone's features."""
    need_packages()
    from capsearch.encoders.train.text_run import train_text

    return carry_out(train_text, run, as_json)


@command.command(epilog=PROJECTION_EXAMPLES)
@declared_by(ProjectionRun)
@json_option
def projection(run: ProjectionRun, as_json: bool) -> int:
    """Project another backbone into an existing model's space."""
    need_packages()
    from capsearch.encoders.train.text_run import train_projection

    return carry_out(train_projection, run, as_json)


@command.command(epilog=BACKBONE_EXAMPLES)
@declared_by(BackboneRun)
@json_option
def backbone(run: BackboneRun, as_json: bool) -> int:
    """Fine-tune a backbone's upper blocks against captions, with text encoders."""
    need_packages()
    from capsearch.encoders.train.backbone_run import train_backbone

    return carry_out(train_backbone, run, as_json)


@command.command(epilog=STUDENT_EXAMPLES)
@declared_by(StudentRun)
@json_option
def student(run: StudentRun, as_json: bool) -> int:
    """Distil a search model into a smaller backbone, with the same text encoders."""
    need_packages()
    from capsearch.encoders.train.backbone_run import train_student

    return carry_out(train_student, run, as_json)


@command.command(epilog=TAGS_EXAMPLES)
@declared_by(TagsRun)
@json_option
def tags(run: TagsRun, as_json: bool) -> int:
    """Train a tagger on a backbone's features."""
    need_packages()
    from capsearch.encoders.train.tags_run import train_tags

    return carry_out(train_tags, run, as_json, use="bench tags --data DIR --model {}")


@command.command(epilog=CAPTION_EXAMPLES)
@declared_by(CaptionRun)
@json_option
def caption(run: CaptionRun, as_json: bool) -> int:
    """Train a captioner on a backbone's feature maps."""
    need_packages()
    from capsearch.encoders.train.caption_run import train_caption

    return carry_out(train_caption, run, as_json, use="bench caption --data DIR --model {}")


@click.command(epilog=CALIBRATE_EXAMPLES)
@declared_by(CalibrationRun)
@json_option
def calibrate(run: CalibrationRun, as_json: bool) -> None:
    """Fit what evidence is worth to a model: images, captions, words."""
    need_packages("torch", purpose="calibration")  # fits the classifiers of concepts
    from capsearch.encoders.calibrate.run import calibrate as fit
    from capsearch.engine.records import Progress
    from capsearch.ui.cli.progress import progress_bar

    with progress_bar() as show:
        fitted = fit(run, lambda done, of: show(Progress("features", done, of, None)))
    if as_json:
        print_json({language: asdict(model) for language, model in fitted.items()})
        return
    rows = [("language", "cut-off, names", "cut-off, sentences")]
    rows += [
        (language, f"{model.short.cutoff:.1%}", f"{model.long.cutoff:.1%}")
        for language, model in fitted.items()
    ]
    click.echo("\n".join(aligned(rows)))
    place = f"written to {run.output}" if run.output else ""
    remark(place or "searches with this model use it from now on")


def need_packages(*packages: str, purpose: str = "training", extra: str = "train") -> None:
    """MissingExtra unless these are installed; by default all that training needs."""
    needed = packages or ("gensim", "onnxscript", "pycocoevalcap", "torch")
    if not all(find_spec(package) for package in needed):
        raise MissingExtra(purpose, extra)


def carry_out(
    train: Callable[[Run, Listener], Path],
    run: Run,
    as_json: bool,
    use: str = "index PATH --model {} --rebuild",
) -> int:
    """Check the names, train with a progress bar, and report the new model.

    `use`: the command that uses a model, with {} for its name.
    """
    from capsearch.encoders.models.model_folder import read_card
    from capsearch.encoders.models.registry import check_new_name, user_models_dir

    for name, folder in run.written.items():
        check_new_name(name)
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
