"""Curves of training runs: scores by epoch, and scores by the number of training images."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from capsearch.benchmarks.report import check_plot
from capsearch.encoders import model_folder
from capsearch.engine.errors import DataProblem

LINES = ("-", "--", ":", "-.")
COLOURS = {"en": "#4c78a8", "zh": "#f58518", "ja": "#54a24b"}


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """What a model's folder says of its training."""

    name: str
    images: int
    metric: str
    scores: Mapping[str, float]  # on validation, by language
    epochs: tuple[Mapping[str, float], ...]  # the same after every epoch, from the log


def trained_model(folder: Path) -> TrainedModel:
    """A trained head's curve; DataProblem for a model without its training log."""
    card = model_folder.read_card(folder)
    log = folder / model_folder.LOG
    if not log.is_file() or "validation" not in card:
        raise DataProblem(f"{folder} has no training log: it was not written by `capsearch train`")
    epochs = [json.loads(line)["validation"] for line in log.read_text("utf-8").splitlines()]
    scores = dict(card["validation"])
    metric = str(scores.pop("metric"))
    return TrainedModel(
        str(card["name"]), int(card["training"]["images"]), metric, scores, tuple(epochs)
    )


def save_curves(models: Sequence[TrainedModel], path: Path) -> None:
    """Two panels: scores by epoch, and by training images. Raises what `check_plot` raises."""
    check_plot(path)
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(10.5, 4.2), layout="constrained")
    by_epoch, by_size = canvas.subplots(1, 2)
    _draw_epochs(by_epoch, models)
    _draw_sizes(by_size, models)
    canvas.savefig(path, dpi=150)


def _draw_epochs(axes: Any, models: Sequence[TrainedModel]) -> None:
    for number, model in enumerate(models):
        for language in model.scores:
            values = [epoch.get(language, float("nan")) for epoch in model.epochs]
            axes.plot(
                range(1, len(values) + 1),
                values,
                LINES[number % len(LINES)],
                color=COLOURS.get(language),
                label=f"{model.name}, {language}",
            )
    axes.set_xlabel("epoch")
    axes.set_ylabel(f"validation {models[0].metric}")
    axes.set_title("learning curve")
    axes.legend(fontsize="small")


def _draw_sizes(axes: Any, models: Sequence[TrainedModel]) -> None:
    ordered = sorted(models, key=lambda one: one.images)
    for language in dict.fromkeys(one for model in ordered for one in model.scores):
        having = [model for model in ordered if language in model.scores]
        axes.plot(
            [model.images for model in having],
            [model.scores[language] for model in having],
            "o-",
            color=COLOURS.get(language),
            label=language,
        )
    axes.set_xlabel("training images")
    axes.set_title("data size")
    axes.legend(fontsize="small")
