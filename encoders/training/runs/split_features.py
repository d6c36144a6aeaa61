"""The cached features that a run on a fixed backbone trains on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from capsearch.encoders.datasets.dataset import CaptionDataset, read_labelled
from capsearch.encoders.datasets.features import FeatureCache, load_features
from capsearch.encoders.image import ImageNetwork
from capsearch.encoders.training.runs.run import Listener, TrainingRun, read_split
from capsearch.engine.records import Vectors


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
