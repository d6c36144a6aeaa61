"""Object classes and human tags as 0/1 columns: extra targets for fine-tuning a backbone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.training.nn.dual_encoder import Labels

LABEL_SCALE = 0.02  # brings a sum over some hundred labels to the scale of the caption loss
MIN_LABEL_COUNT = 30  # images that must have a label before it becomes a column


def labels_of(data: CaptionDataset) -> Labels | None:
    """Objects and human tags as columns; None where the data has neither.

    An image without any object (or any tag) was not annotated: its object (or tag) columns
    are unknown rather than 0.
    """
    groups = ([image.objects for image in data.images], [image.tags_zh for image in data.images])
    parts = [part for part in map(_columns, groups) if part is not None]
    if not parts:
        return None
    return Labels(
        np.concatenate([values for values, _ in parts], axis=1),
        np.concatenate([known for _, known in parts], axis=1),
    )


def _columns(group: Sequence[Sequence[str]]) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """(N, L) values and (N, L) known of the labels that are frequent enough."""
    counts = Counter(name for names in group for name in names)
    frequent = sorted(name for name, count in counts.items() if count >= MIN_LABEL_COUNT)
    if not frequent:
        return None
    column = {name: number for number, name in enumerate(frequent)}
    values = np.zeros((len(group), len(column)), np.uint8)
    for row, names in enumerate(group):
        for name in names:
            if name in column:
                values[row, column[name]] = 1
    known = np.array([bool(names) for names in group])[:, None] & np.ones(len(column), np.bool_)
    return values, known


def label_loss(logits: Tensor, labels: Labels, image_rows: NDArray[np.int64]) -> Tensor:
    """Binary cross entropy, summed over an image's known labels, averaged over the batch."""
    values = torch.from_numpy(labels.values[image_rows].astype(np.float32))
    known = torch.from_numpy(labels.known[image_rows].astype(np.float32))
    each = nn.functional.binary_cross_entropy_with_logits(logits, values, reduction="none")
    return (each * known).sum() / len(image_rows) * LABEL_SCALE
