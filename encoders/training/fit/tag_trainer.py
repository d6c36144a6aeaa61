"""The trainer of taggers, and precision, recall and F at five as COCO-CN measures them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.tag_labels import TagLabels
from capsearch.encoders.training.fit.loop import TrainingLoop, one_group
from capsearch.encoders.training.nn.dual_encoder import TrainingOptions
from capsearch.encoders.training.nn.tag_networks import TagNetwork, tag_loss
from capsearch.engine.metrics import precision_recall_f
from capsearch.engine.records import Vectors

LOSS_SCALE = 0.02  # brings a sum over hundreds of tags to a scale at which clipping is rare
FIRST = 5  # tags that are measured


@dataclass(frozen=True, slots=True)
class TagSet:
    """Features of N images in one or more views, and their labels by language."""

    views: Vectors  # (V, N, F)
    labels: Mapping[str, TagLabels]

    def __len__(self) -> int:
        return int(self.views.shape[1])


class TagTrainer(TrainingLoop):
    """Trains a TagNetwork; the best epoch has the highest F@5 on validation."""

    metric = "F@5"
    model: TagNetwork

    def __init__(
        self,
        model: TagNetwork,
        train: TagSet,
        validation: TagSet,
        options: TrainingOptions,
        checkpoint: Path | None = None,
    ) -> None:
        groups = one_group(model.parameters(), options.lr)
        super().__init__(model, groups, len(train), options, checkpoint)
        self.train = train
        self.validation = validation

    def loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """The sum over the languages of the loss of their known tags."""
        views = rng.integers(len(self.train.views), size=len(image_rows))
        logits = self.model(torch.from_numpy(self.train.views[views, image_rows]).float())
        losses = []
        for language, labels in self.train.labels.items():
            values, known = map(torch.from_numpy, labels.dense(image_rows))
            losses.append(tag_loss(logits[language], values, known))
        return cast(Tensor, sum(losses)) * LOSS_SCALE

    def validate(self) -> Mapping[str, float]:
        """F@5 by language, of the averaged weights."""
        logits = tag_logits(cast(TagNetwork, self.averaged.module), self.validation.views[0])
        return {
            language: f_at_five(logits[language], labels)[2]
            for language, labels in self.validation.labels.items()
            if labels.captioned.any()
        }


def tag_logits(model: TagNetwork, pooled: Vectors) -> Mapping[str, Vectors]:
    """(N, K) log-odds by language, without dropout."""
    model.eval()
    with torch.no_grad():
        found = model(torch.from_numpy(np.asarray(pooled, np.float32)))
    return {language: logits.numpy() for language, logits in found.items()}


def f_at_five(scores: Vectors, labels: TagLabels) -> tuple[float, float, float]:
    """Precision, recall and F of the five best tags, means over the captioned images."""
    rows = np.flatnonzero(labels.captioned).tolist()
    positives: Sequence[NDArray[np.int64]] = [labels.positives[row] for row in rows]
    return precision_recall_f(scores[rows], positives, FIRST)
