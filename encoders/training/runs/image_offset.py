"""Search models for images of another quality than those they were trained on.

Captioned data sets come as reduced copies. The features of reduced and of full-size photographs
differ in their mean and little else, so a model serves the latter with its projection moved by the
difference of the means.
"""

from __future__ import annotations

from pathlib import Path

from capsearch.encoders import model_folder, models
from capsearch.encoders.datasets.dataset import read
from capsearch.encoders.datasets.features import FeatureCache, load_features
from capsearch.encoders.training.runs.export import PROJECTION, TRAINED_BIAS, finish_card
from capsearch.encoders.training.runs.run import Listener, TrainingRun, read_split


def serve_like(run: TrainingRun, folder: Path, listener: Listener) -> None:
    """Move the projection of a finished search model from validation images to `run.like`.

    Nothing changes without `run.like`. Hubness penalties and weights stay right: they were fitted
    on validation images with the projection as trained.
    """
    if not run.like:
        return
    cache = FeatureCache(run.cache)
    image = models.load(str(folder.resolve())).image
    wanted, given = (
        load_features(image, data, cache, listener.report(f"features of {what}"))[1]
        for what, data in (
            ("images to serve", read(run.like)),
            (run.validation_split, read_split(run, run.validation_split)),
        )
    )
    stored = model_folder.Arrays(folder / PROJECTION)
    trained, offset = stored["image_b"], wanted.mean(axis=0) - given.mean(axis=0)
    arrays = {
        "image_W": stored["image_W"],
        "image_b": trained - stored["image_W"] @ offset,
        TRAINED_BIAS: trained,
    }
    model_folder.save_arrays(folder / PROJECTION, arrays)
    card = {**model_folder.read_card(folder)}
    for key in ("schema", "kind", "digest"):
        card.pop(key)
    card["image_offset"] = f"moved to the mean features of {len(wanted):,} images"
    finish_card(folder, card)
