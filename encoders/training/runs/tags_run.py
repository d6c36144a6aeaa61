"""The run that trains a tagger on a fixed backbone's features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from capsearch.encoders import model_folder, models
from capsearch.encoders.calibration.logistic import expected_calibration_error
from capsearch.encoders.datasets.dataset import read_labelled
from capsearch.encoders.image import ImageNetwork
from capsearch.encoders.tag_labels import TagLabels, annotate, build_vocabulary, labels_of
from capsearch.encoders.taggers import WEIGHTS_FILE, TagVocabulary
from capsearch.encoders.training.fit.platt import Platt, best_threshold, fit_platt
from capsearch.encoders.training.fit.tag_trainer import TagSet, TagTrainer, tag_logits
from capsearch.encoders.training.nn.caption_decoders import numpy_of
from capsearch.encoders.training.nn.tag_networks import TagConfig, TagNetwork
from capsearch.encoders.training.runs.run import (
    Listener,
    TrainingRun,
    checkpoint_of,
    fit,
    head_card,
    read_split,
)
from capsearch.encoders.training.runs.split_features import SplitFeatures, split_features
from capsearch.engine.records import Vectors


@dataclass(frozen=True, slots=True)
class TagsRun:
    """A training run of a tagger.

    `only_said`: as in COCO-CN, an image has what its captions and human tags say and nothing else.
    """

    run: TrainingRun
    config: TagConfig
    only_said: bool = False


def train_tags(tags: TagsRun, listener: Listener | None = None) -> Path:
    """Train and calibrate a tagger; the new model's folder."""
    listener = listener or Listener()
    run = tags.run
    backbone = models.load_backbone(run.backbone)
    train, validation = (_split(run, backbone, one, listener) for one in ("train", "val"))
    said_of_train, said_of_validation = (
        annotate(one.data.images, run.languages) for one in (train, validation)
    )
    vocabulary = build_vocabulary(said_of_train, run.languages, run.min_count)
    known = {"objects": not tags.only_said, "broader_unknown": not tags.only_said}
    train_set = TagSet(train.views, labels_of(said_of_train, vocabulary, **known))
    validation_set = TagSet(validation.views, labels_of(said_of_validation, vocabulary, **known))
    model = TagNetwork(backbone.dimension, _priors(train_set), tags.config, run.options.seed)
    said = replace(validation_set, labels=labels_of(said_of_validation, vocabulary, objects=False))
    trainer = TagTrainer(model, train_set, said, run.options, checkpoint_of(run.output))
    best = fit(run, trainer, listener)
    calibration = _calibrate(model, vocabulary, validation_set)
    card = {
        **head_card(run, backbone, best, _training(tags, train_set)),
        "description": f"tags in {', '.join(run.languages)} on {backbone.name}",
        "variant": tags.config.variant,
        "semantic": model.semantic,
        "tags": {one: len(found) for one, found in vocabulary.columns.items()},
        "min_confidence": calibration.min_confidence,
        "calibration_error": calibration.error,
    }
    _export(model, vocabulary, calibration.platt, run.output, card)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


def _split(
    run: TrainingRun, backbone: ImageNetwork, part: str, listener: Listener
) -> SplitFeatures:
    """The training or validation split, with the labelled photographs of the same part."""
    data = [read_split(run, run.train_split if part == "train" else run.validation_split)]
    if run.labelled:
        data.append(read_labelled(run.labelled, run.all_concepts).split(part))
    flip = run.flip and part == "train"
    first, *more = (split_features(run, backbone, one, part, listener, flip) for one in data)
    return sum(more, start=first)


def _priors(train: TagSet) -> Mapping[str, torch.Tensor]:
    """The share of the annotated images that have each tag."""
    found = {}
    for language, labels in train.labels.items():
        counts = np.bincount(
            np.concatenate(labels.positives).astype(np.int64), minlength=labels.spaces.shape[1]
        )
        known = np.bincount(labels.space, minlength=len(labels.spaces)) @ labels.spaces
        found[language] = torch.from_numpy(counts / np.maximum(known, 1)).float()
    return found


@dataclass(frozen=True, slots=True)
class _Calibration:
    platt: Platt
    min_confidence: float
    error: float


def _calibrate(model: TagNetwork, vocabulary: TagVocabulary, validation: TagSet) -> _Calibration:
    """Platt scaling of the merged log-odds, and the cut-off with the best F1, on validation."""
    logits = vocabulary.merge(tag_logits(model, validation.views[0]))
    values, known = _merged_labels(vocabulary, validation.labels, len(validation))
    platt = fit_platt(logits, values, known)
    probabilities = platt.probabilities(logits)
    captioned = np.any([one.captioned for one in validation.labels.values()], axis=0)
    at = known > 0
    return _Calibration(
        platt,
        round(best_threshold(probabilities[captioned] * known[captioned], values[captioned]), 2),
        round(expected_calibration_error(probabilities[at], values[at].astype(np.float64)), 4),
    )


def _merged_labels(
    vocabulary: TagVocabulary, labels: Mapping[str, TagLabels], images: int
) -> tuple[Vectors, Vectors]:
    """(N, T) values and known: a tag is there if one language says so, unknown if none knows."""
    values = np.zeros((images, len(vocabulary.tags)), np.float32)
    known = np.zeros_like(values)
    rows = np.arange(images)
    for language, found in labels.items():
        columns = vocabulary.columns[language]
        own_values, own_known = found.dense(rows)
        values[:, columns] = np.maximum(values[:, columns], own_values)
        known[:, columns] = np.maximum(known[:, columns], own_known)
    return values, known


def _training(tags: TagsRun, train: TagSet) -> Mapping[str, Any]:
    return {
        "images": len(train),
        "captioned": {one: int(found.captioned.sum()) for one, found in train.labels.items()},
        "config": asdict(tags.config),
        "only_said": tags.only_said,
    }


def _export(
    model: TagNetwork,
    vocabulary: TagVocabulary,
    platt: Platt,
    folder: Path,
    card: Mapping[str, Any],
) -> None:
    arrays: dict[str, NDArray[Any]] = {"slope": platt.slope, "intercept": platt.intercept}
    for layers, name in ((model.hidden, "hidden"), (model.out, "out")):
        for part, layer in layers.items():
            assert isinstance(layer, nn.Linear)
            arrays[f"{part}.{name}_W"] = numpy_of(layer.weight)
            arrays[f"{part}.{name}_b"] = numpy_of(layer.bias)
    model_folder.save_arrays(folder / WEIGHTS_FILE, arrays)
    vocabulary.save(folder)
    digest = model_folder.digest(folder, str(card["backbone_digest"]), str(card["semantic"]))
    model_folder.write_card(folder, {"kind": "tagger", **card, "digest": digest})
