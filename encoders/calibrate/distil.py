"""Concept classifiers learned from a tagger: its probabilities on training images are the targets.

A linear classifier of image vectors learns what the tagger makes of features, so that a concept is
recognised in any indexed image without running or storing the tagger.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from capsearch.encoders.models.calibration import ConceptClassifiers
from capsearch.encoders.models.registry import Model
from capsearch.engine.protocols import Tagger
from capsearch.engine.records import ImageFeatures, Vectors
from capsearch.engine.vectors import strip_bias

_MIN_IMAGES = 20.0  # training images that show a concept, by the tagger's probabilities
_STEPS, _BATCH, _LR, _SEED = 2000, 256, 3e-3, 0
_TAGGED_AT_ONCE = 1024  # images


@dataclass(frozen=True, slots=True)
class Tagged:
    """Image vectors, and what a tagger says of the images."""

    ids: tuple[str, ...]
    probabilities: Vectors  # (N, K)
    images: Vectors  # (N, D)

    @classmethod
    def of(
        cls, model: Model, tagger: Tagger, features: Vectors, mean: Vectors | None = None
    ) -> Tagged:
        """`mean`: that of the images that will be searched, to which theirs is moved."""
        batches = [
            tagger.concept_probabilities(ImageFeatures(features[start : start + _TAGGED_AT_ONCE]))
            for start in range(0, len(features), _TAGGED_AT_ONCE)
        ]
        if mean is not None:
            features = features + (mean - features.mean(axis=0))
        probabilities = np.concatenate([of_batch for _, of_batch in batches])
        return cls(batches[0][0], probabilities, model.image.project(features))

    def __add__(self, other: Tagged) -> Tagged:
        return Tagged(
            self.ids,
            np.concatenate([self.probabilities, other.probabilities]),
            np.concatenate([self.images, other.images]),
        )


def distil(ids: Sequence[str], probabilities: Vectors, images: Vectors) -> ConceptClassifiers:
    """Logistic regression of a tagger's (N, K) probabilities on image vectors (N, D), by Adam.

    Concepts that too few of the images show are left out: nothing could be learned of them.
    """
    shown = np.flatnonzero(probabilities.sum(axis=0) >= _MIN_IMAGES)
    space = strip_bias(images)  # the hubness penalty tells nothing
    scale = np.float32(np.sqrt(space.shape[1]))  # coordinates of unit vectors are small
    model = _fit(space * scale, probabilities[:, shown])
    weights = np.pad(model.weight.detach().numpy() * scale, ((0, 0), (0, 1)))
    biases = model.bias.detach().numpy()
    return ConceptClassifiers(tuple(ids[column] for column in shown.tolist()), weights, biases)


def _fit(inputs: Vectors, targets: Vectors) -> nn.Linear:
    """The (N, D) -> (N, K) log-odds; starts from how often each concept is shown."""
    share = np.clip(targets.mean(axis=0), 1e-5, 1 - 1e-5)
    model = nn.Linear(inputs.shape[1], targets.shape[1])
    with torch.no_grad():
        model.weight.zero_()
        model.bias.copy_(torch.from_numpy(np.log(share / (1 - share))))
    optimiser = torch.optim.Adam(model.parameters(), _LR)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, _STEPS)
    random = np.random.default_rng(_SEED)
    for _ in range(_STEPS):
        rows = random.integers(0, len(inputs), _BATCH)
        loss = nn.functional.binary_cross_entropy_with_logits(
            model(torch.from_numpy(inputs[rows])), torch.from_numpy(targets[rows])
        )
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    return model
