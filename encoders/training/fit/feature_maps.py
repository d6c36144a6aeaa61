"""Feature maps of a backbone for its heads (taggers and captioners), computed once and cached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.datasets.features import Report
from capsearch.encoders.image import ImageNetwork
from capsearch.encoders.training.fit.activations import is_complete, load_activations
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import ImageFeatures, Pixels, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image

CHUNK = 256  # images that are converted to float32 at once


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """Readable images of a split and their features, row by row; the maps are memory-mapped."""

    data: CaptionDataset
    pooled: Vectors  # (N, F)
    grid: NDArray[np.float16]  # (N, G, C)

    def __len__(self) -> int:
        return len(self.pooled)

    def at(self, rows: NDArray[np.int64]) -> ImageFeatures:
        """Some rows, as float32."""
        grid = np.stack([self.grid[row] for row in rows]) if len(rows) else self.grid[:0]
        return ImageFeatures(self.pooled[rows].astype(np.float32), grid.astype(np.float32))

    def only(self, rows: NDArray[np.int64]) -> EncodedImages:
        """Some of the images."""
        images = [self.data.images[row] for row in rows]
        return replace(
            self, data=self.data.only(images), pooled=self.pooled[rows], grid=self.grid[rows]
        )


@dataclass(frozen=True, slots=True)
class _MapEncoder:
    """A backbone as the frozen layers of an activation cache."""

    backbone: ImageNetwork

    @property
    def name(self) -> str:
        return f"{self.backbone.name}-{self.backbone.digest}"

    def preprocess(self, image: Image) -> Pixels:
        return self.backbone.preprocess(image)

    def activations(self, pixels: list[Pixels]) -> tuple[NDArray[np.float16], Vectors]:
        found = self.backbone.feature_maps(pixels)
        if found.grid is None:
            raise TrainingProblem(
                f"the backbone {self.backbone.name} has no feature map, which a captioner attends "
                "to; choose another --backbone, or train one"
            )
        return found.grid.astype(np.float16), found.pooled


def load_feature_maps(
    backbone: ImageNetwork,
    data: CaptionDataset,
    folder: Path,
    report: Report | None = None,
    whole: CaptionDataset | None = None,
) -> EncodedImages:
    """The images that can be read with their features and feature maps.

    The cache takes G x C x 2 bytes an image. If it has all images of `whole`, of which `data` are
    some, they are taken from there. TrainingProblem for a backbone without maps.
    """
    layers = _MapEncoder(backbone)
    if whole is None or len(whole) == len(data) or not is_complete(layers, [whole], folder):
        found = load_activations(layers, [data], folder, report)
        return EncodedImages(found.data, found.features, found.values)
    found = load_activations(layers, [whole], folder, report)
    row_of = {image.id: row for row, image in enumerate(found.data.images)}
    rows = np.array([row_of[image.id] for image in data.images], np.int64)
    return EncodedImages(data, found.features[rows], found.values[rows])
