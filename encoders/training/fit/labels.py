"""Object classes and human tags as 0/1 columns: extra targets for fine-tuning a backbone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.training.nn.dual_encoder import Labels

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
