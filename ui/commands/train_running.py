"""How the `capsearch train` commands run: what they need, what their options mean, and reports."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import MissingExtra, TrainingProblem
from capsearch.ui.output.terminal import print_json, remark
from capsearch.ui.output.training import training_progress

if TYPE_CHECKING:
    from capsearch.encoders.training.nn.dual_encoder import TrainingOptions
    from capsearch.encoders.training.nn.w2vv import Pooling, TextConfig
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


def training_options(
    shared: Mapping[str, Any], epochs: int, lr: float, **more: Any
) -> TrainingOptions:
    """The hyperparameters of a run: those all runs have, and `more`."""
    from capsearch.encoders.training.nn.dual_encoder import TrainingOptions

    return TrainingOptions(
        epochs=epochs, lr=lr, batch_size=shared["batch_size"], seed=shared["seed"], **more
    )


def text_config(inputs: str, pooling: Pooling, hidden: int | None) -> TextConfig:
    """The text encoders that --inputs, --pooling and --hidden describe."""
    from capsearch.encoders.training.nn.w2vv import INPUTS, TextConfig

    chosen = tuple(part.strip() for part in inputs.split(",") if part.strip())
    unknown = [one for one in chosen if one not in INPUTS]
    if unknown or not chosen:
        raise TrainingProblem(f"--inputs are some of {','.join(INPUTS)}, not {inputs!r}")
    config = TextConfig(inputs=chosen, pooling=pooling)  # type: ignore[arg-type]
    return replace(config, hidden=hidden) if hidden else config


def training_run(options: dict[str, Any]) -> TrainingRun:
    """The run that the options of `run_options` describe."""
    from capsearch.encoders.datasets.captioned import Source
    from capsearch.encoders.datasets.features import default_cache
    from capsearch.encoders.models import user_models_dir
    from capsearch.encoders.training.runs.run import TrainingRun
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
