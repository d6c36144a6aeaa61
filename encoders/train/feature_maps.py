"""Feature maps of a backbone for its heads (taggers and captioners), computed once and cached.

The cached features that a run on a fixed backbone trains on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.data.dataset import CaptionDataset, read_labelled
from capsearch.encoders.data.features import FeatureCache, Report, load_features
from capsearch.encoders.models.image import ImageNetwork
from capsearch.encoders.train.activations import is_complete, load_activations
from capsearch.encoders.train.run import Listener, TrainingRun, read_split
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


@dataclass(frozen=True, slots=True)
class SplitFeatures:
    """A split's readable images, and their features in one or two views."""

    data: CaptionDataset
    views: Vectors  # (V, N, F)

    def __add__(self, other: SplitFeatures) -> SplitFeatures:
        images = (*self.data.images, *other.data.images)
        return SplitFeatures(
            self.data.only(images), np.concatenate([self.views, other.views], axis=1)
        )


def training_parts(run: TrainingRun) -> dict[str, CaptionDataset]:
    """The captioned training images, and the labelled ones if there are some, by what they are."""
    parts = {run.train_split: read_split(run, run.train_split)}
    if run.labelled:
        parts["labelled images"] = read_labelled(run.labelled, run.all_concepts).split("train")
    return parts


def split_features(
    run: TrainingRun,
    backbone: ImageNetwork,
    data: CaptionDataset,
    what: str,
    listener: Listener,
    flip: bool = False,
) -> SplitFeatures:
    """Features of the images, and with `flip` of the flipped images too."""
    cache = FeatureCache(run.cache)
    report = listener.report(f"features of {what}")
    data, features = load_features(backbone, data, cache, report)
    if not flip:
        return SplitFeatures(data, features[None])
    report = listener.report(f"features of {what}, flipped")
    flipped = load_features(backbone, data, cache, report, flip=True)[1]
    return SplitFeatures(data, np.stack([features, flipped]))


def train_and_validation(
    run: TrainingRun, backbone: ImageNetwork, listener: Listener
) -> tuple[SplitFeatures, SplitFeatures]:
    """Training images with their flipped view if `run.flip`, validation images without."""
    first, *more = (
        split_features(run, backbone, data, what, listener, run.flip)
        for what, data in training_parts(run).items()
    )
    split = run.validation_split
    validation = split_features(run, backbone, read_split(run, split), split, listener)
    return sum(more, start=first), validation
