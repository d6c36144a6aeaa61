"""Validation scores, and weight interpolation that is chosen by them (WiSE-FT)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from capsearch.encoders.calibration.vectors import cm_mrr
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, TrainingSet, encode, project

# The weight of the fine-tuned parameters; the rest is that of the initial ones.
INTERPOLATIONS = (0.75, 0.5, 0.25)


@dataclass(frozen=True, slots=True)
class Epoch:
    """The scores of one epoch: one line of the log."""

    number: int
    loss: float
    validation: Mapping[str, float]  # `metric` by language
    best: bool
    metric: str = "MRR"

    @property
    def score(self) -> float:
        """Mean over the languages; the epoch with the highest one is exported."""
        return sum(self.validation.values()) / max(len(self.validation), 1)


def evaluate(model: DualEncoder, validation: TrainingSet) -> Mapping[str, float]:
    """CM MRR by language."""
    images = project(model, validation)
    return {
        language: cm_mrr(encode(model, captions, language) @ images.T, captions.image_rows)
        for language, captions in validation.captions.items()
        if len(captions.image_rows)
    }


def interpolate_weights(
    model: nn.Module,
    initial: Mapping[str, Tensor],
    best: Epoch,
    scores: Callable[[], Mapping[str, float]],
) -> Epoch:
    """Interpolate `model` with its `initial` weights where that validates better.

    WiSE-FT (Wortsman et al. 2022): fine-tuned and initial weights lie in one basin of the loss,
    and models between them overfit the training images less. `scores` are those of the weights that
    `model` has, `best` has them for those given; what is returned has them for those that it gets.
    """
    tuned = {name: value.clone() for name, value in model.state_dict().items()}
    chosen = tuned
    for weight in INTERPOLATIONS:
        mixed = {name: torch.lerp(initial[name], value, weight) for name, value in tuned.items()}
        model.load_state_dict(mixed)
        candidate = replace(best, validation=scores())
        if candidate.score > best.score:
            best, chosen = candidate, mixed
    model.load_state_dict(chosen)
    return best
