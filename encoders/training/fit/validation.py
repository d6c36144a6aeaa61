"""How a run stands on validation, and which of its weights to keep."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.training.nn.dual_encoder import DualEncoder, TrainingSet, encode, project
from capsearch.engine.metrics import mean_reciprocal_rank, ranks
from capsearch.engine.records import Vectors

MIXTURES = (0.75, 0.5)  # of what was learned, the rest from where it started


@dataclass(frozen=True, slots=True)
class Epoch:
    """Progress: one line of the log."""

    number: int
    loss: float
    validation: Mapping[str, float]  # CM MRR by language
    best: bool

    @property
    def mrr(self) -> float:
        """Mean over the languages: what picks the checkpoint."""
        return sum(self.validation.values()) / max(len(self.validation), 1)


def evaluate(pair: DualEncoder, validation: TrainingSet) -> Mapping[str, float]:
    """CM MRR by language."""
    images = project(pair, validation)
    return {
        language: cm_mrr(encode(pair, captions, language) @ images.T, captions.image_rows)
        for language, captions in validation.captions.items()
        if len(captions.image_rows)
    }


def mix(
    pair: DualEncoder, before: Mapping[str, Tensor], best: Epoch, validation: TrainingSet
) -> Epoch:
    """Part of the way back to where `pair` came from, if that validates better (WiSE-FT).

    What learned on from other weights lies in one valley with them, and between the two it
    knows the training photos less by heart. `best` is what `pair` scores as it is.
    """
    after = {name: value.clone() for name, value in pair.state_dict().items()}
    kept = after
    for share in MIXTURES:
        mixed = {name: torch.lerp(before[name], value, share) for name, value in after.items()}
        pair.load_state_dict(mixed)
        tried = replace(best, validation=evaluate(pair, validation))
        if tried.mrr > best.mrr:
            best, kept = tried, mixed
    pair.load_state_dict(kept)
    return best


def cm_mrr(scores: Vectors, photos: NDArray[np.int64]) -> float:
    """MRR of captions that ask for `photos`, by their scores (C, N) with all photos."""
    return float(mean_reciprocal_rank(ranks(scores, photos, np.arange(scores.shape[1]))))
