"""Names of concepts as captions: how images with labels, and none of their own, are trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders import concepts
from capsearch.encoders.concepts.templates import photo_captions
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.datasets.labelled import folded_names, held_out

PER_IMAGE = 6  # captions of each image and language; each step draws some of them


@dataclass(frozen=True, slots=True)
class ShownConcepts:
    """The concepts that each image shows, broader ones included, as numbers."""

    by_image: Sequence[NDArray[np.int64]]  # N
    numbers: Mapping[str, int]  # by concept id

    def of(self, image_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(B, K) of some images."""
        shown = np.zeros((len(image_rows), len(self.numbers)), np.bool_)
        for at, row in enumerate(image_rows):
            shown[at, self.by_image[row]] = True
        return shown


@dataclass(frozen=True, slots=True)
class NameCaptions:
    """Captions made of names: their texts, the rows of their images, and what they name."""

    texts: Sequence[str]
    image_rows: NDArray[np.int64]
    concepts: NDArray[np.int64]  # numbers of ShownConcepts


def shown_concepts(data: CaptionDataset) -> ShownConcepts | None:
    """What the images' labels stand for; None if no image has one."""
    ids = [
        sorted({above for one in image.concepts for above in concepts.broader(one)})
        for image in data.images
    ]
    numbers = {one: at for at, one in enumerate(sorted({one for shown in ids for one in shown}))}
    if not numbers:
        return None
    by_image = [np.array([numbers[one] for one in shown], np.int64) for shown in ids]
    return ShownConcepts(by_image, numbers)


def name_captions(data: CaptionDataset, language: str, shown: ShownConcepts) -> NameCaptions:
    """PER_IMAGE captions of each image with a label, the same in every run.

    The names of held-out concepts are in none of them, unless images show these.
    """
    unused = folded_names(held_out() - shown.numbers.keys())
    found = [
        (caption.text, row, shown.numbers[caption.concept])
        for row, image in enumerate(data.images)
        if image.concepts
        for caption in photo_captions(
            [concepts.by_id(one) for one in image.concepts],
            language,
            Random(f"{language} {image.id}"),
            PER_IMAGE,
            unused,
        )
    ]
    return NameCaptions(
        [text for text, _, _ in found],
        np.array([row for _, row, _ in found], np.int64),
        np.array([number for _, _, number in found], np.int64),
    )
