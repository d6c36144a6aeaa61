"""The run that trains a tagger on a fixed backbone's features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from capsearch.encoders.calibrate.regression import expected_calibration_error
from capsearch.encoders.data.dataset import read_labelled
from capsearch.encoders.data.tag_labels import TagLabels, annotate, build_vocabulary, labels_of
from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.image import ImageNetwork
from capsearch.encoders.models.tagger import WEIGHTS_FILE, TagVocabulary
from capsearch.encoders.settings import DEFAULT_BACKBONE, TagsRun
from capsearch.encoders.train.decoders import numpy_of
from capsearch.encoders.train.run import (
    Listener,
    SplitFeatures,
    checkpoint_of,
    fit,
    head_card,
    read_split,
    split_features,
    training_options,
)
from capsearch.encoders.train.tags import (
    Platt,
    TagConfig,
    TagNetwork,
    TagSet,
    TagTrainer,
    Variant,
    best_threshold,
    fit_platt,
    tag_logits,
)
from capsearch.engine.records import Vectors


def train_tags(run: TagsRun, listener: Listener) -> Path:
    """Train and calibrate a tagger; the new model's folder.

    With `run.only_said`, as in COCO-CN, an image has what its captions and human tags say and
    nothing else.
    """
    config = TagConfig(cast(Variant, run.variant), run.hidden)
    name = run.backbone or DEFAULT_BACKBONE
    backbone = registry.load_backbone(name)
    train_features, validation_features = (
        _features(run, backbone, part, listener) for part in ("train", "val")
    )
    said_of_train, said_of_validation = (
        annotate(part.data.images, run.languages) for part in (train_features, validation_features)
    )
    vocabulary = build_vocabulary(said_of_train, run.languages, run.min_count)
    known = {"objects": not run.only_said, "broader_unknown": not run.only_said}
    train = TagSet(train_features.views, labels_of(said_of_train, vocabulary, **known))
    validation_labels = labels_of(said_of_validation, vocabulary, **known)
    validation = TagSet(validation_features.views, validation_labels)
    model = TagNetwork(backbone.dimension, _priors(train), config, run.seed)
    said = replace(validation, labels=labels_of(said_of_validation, vocabulary, objects=False))
    trainer = TagTrainer(model, train, said, training_options(run), checkpoint_of(run))
    best = fit(run, trainer, listener)
    calibration = _calibrate(model, vocabulary, validation)
    card = {
        **head_card(run, backbone, name, best, _training(run, config, train)),
        "description": f"tags in {', '.join(run.languages)} on {backbone.name}",
        "variant": config.variant,
        "semantic": model.semantic,
        "tags": {language: len(columns) for language, columns in vocabulary.columns.items()},
        "min_confidence": calibration.min_confidence,
        "calibration_error": calibration.error,
    }
    _export(model, vocabulary, calibration.platt, run.folder, card)
    checkpoint_of(run).unlink(missing_ok=True)
    return run.folder


def _features(run: TagsRun, backbone: ImageNetwork, part: str, listener: Listener) -> SplitFeatures:
    """The training or validation split, with the labelled photographs of the same part."""
    parts = [(part, read_split(run, run.train_split if part == "train" else run.val_split))]
    if run.labelled:
        parts.append((part, read_labelled(run.labelled, run.all_concepts).split(part)))
    return split_features(run, backbone, parts, listener, run.flip and part == "train")


def _priors(train: TagSet) -> Mapping[str, torch.Tensor]:
    """The share of the annotated images that have each tag."""
    priors = {}
    for language, labels in train.labels.items():
        counts = np.bincount(
            np.concatenate(labels.positives).astype(np.int64), minlength=labels.spaces.shape[1]
        )
        known = np.bincount(labels.space, minlength=len(labels.spaces)) @ labels.spaces
        priors[language] = torch.from_numpy(counts / np.maximum(known, 1)).float()
    return priors


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
    captioned = np.any([labels.captioned for labels in validation.labels.values()], axis=0)
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
    for language, of_language in labels.items():
        columns = vocabulary.columns[language]
        own_values, own_known = of_language.dense(rows)
        values[:, columns] = np.maximum(values[:, columns], own_values)
        known[:, columns] = np.maximum(known[:, columns], own_known)
    return values, known


def _training(run: TagsRun, config: TagConfig, train: TagSet) -> Mapping[str, Any]:
    captioned = {name: int(labels.captioned.sum()) for name, labels in train.labels.items()}
    return {
        "images": len(train),
        "captioned": captioned,
        "config": asdict(config),
        "only_said": run.only_said,
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
