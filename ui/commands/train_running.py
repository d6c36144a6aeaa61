"""How the `capsearch train` commands run: what they need, check and report."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from capsearch.engine.errors import MissingExtra, TrainingProblem
from capsearch.ui.output.terminal import print_json, remark
from capsearch.ui.output.training import training_progress

if TYPE_CHECKING:
    from capsearch.encoders.training.runs.run import TrainingRun


def need_torch() -> None:
    """MissingExtra unless the packages of the extra `train` are there."""
    try:
        import gensim  # noqa: F401
        import onnxscript  # noqa: F401
        import pycocoevalcap  # noqa: F401
        import torch  # noqa: F401
    except ImportError:
        raise MissingExtra("training", "train") from None


def carry_out(
    train: Callable[..., Path],
    run: TrainingRun,
    as_json: bool,
    use: str = "index PATH --model {} --rebuild",
) -> int:
    """Check the names, train with a progress bar, and report the new model.

    `use`: the command that uses a model, with {} for its name.
    """
    from capsearch.encoders.model_folder import read_card
    from capsearch.encoders.models import check_new_name, user_models_dir

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
