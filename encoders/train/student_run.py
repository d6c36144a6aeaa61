"""`capsearch train student`: a small backbone learns the image vectors of a larger model.

The text encoders are the teacher's and stay unchanged, so that both models share one space. The
student's upper blocks and a projection are trained with two losses: captions and names against
images, as the teacher was, and the distance to the teacher's image vectors (distillation).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from capsearch.encoders.models import registry
from capsearch.encoders.train.activations import Activations, load_activations
from capsearch.encoders.train.backbone import (
    InitialWeights,
    LowerBlocks,
    UpperBlocks,
    find_initial_weights,
    lower_blocks_of,
    network,
    restandardise,
    sample_rows,
    upper_blocks_of,
)
from capsearch.encoders.train.corpus import captions_of, shown_concepts
from capsearch.encoders.train.dual_encoder import (
    DualEncoder,
    FrozenText,
    TrainingOptions,
    TrainingSet,
    freeze_text,
    image_features,
)
from capsearch.encoders.train.export import (
    load_projection,
    load_text,
    load_upper_blocks,
    serve_like,
    text_source,
    write_backbone,
)
from capsearch.encoders.train.feature_maps import split_features, training_parts
from capsearch.encoders.train.run import (
    Listener,
    TrainingRun,
    card_of,
    checkpoint_of,
    fit,
    new_backbone,
    read_split,
    requirements_of,
    sentence_encoder,
)
from capsearch.encoders.train.text_run import write_projection
from capsearch.encoders.train.trainer import Trainer
from capsearch.encoders.train.trunk import Block
from capsearch.encoders.train.w2vv import ImageProjection
from capsearch.engine.records import Vectors

RIDGE = 0.01  # of the first projection, as a share of the features' variance


def train_student(run: TrainingRun, listener: Listener | None = None) -> Path:
    """Train a student in the space of `run.teacher`, a search model.

    `run.backbone` names a pretrained network, or an earlier student to train on. Returns the folder
    of the search model `run.text_name`, which uses the new backbone.
    """
    listener = listener or Listener()
    initial, teacher = find_initial_weights(run.backbone, own_text=False), _teacher(run)
    images = _images(run, initial, teacher, listener)
    text, train, validation, run = _captioned(run, teacher, images, listener)
    model = _model(run, initial, images.lower, text, train)
    checkpoint = checkpoint_of(run.output)
    best = fit(run, Trainer(model, train, validation, run.options, checkpoint), listener)
    restandardise(model, train)
    card = {
        **card_of(run, train, best),
        "started_from": initial.description,
        "teacher": f"{teacher.model.name}@{teacher.model.digest}",
    }
    made = f"upper blocks distilled from {run.teacher}"
    backbone_digest = write_backbone(images.lower, model.backbone, run.output, card, made)
    folder = run.folders[1]
    text_card = {
        **card,
        "name": run.text_name,
        "description": f"{run.name} in the space of {run.teacher}",
        **requirements_of(replace(run, backbone=new_backbone(run)), backbone_digest),
    }
    write_projection(model, teacher.text, validation, folder, text_card)
    serve_like(run, folder, listener)
    checkpoint.unlink(missing_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class _Teacher:
    """The search model that is distilled, and the model whose text encoders it uses."""

    model: registry.Model
    folder: Path
    text: str  # its own name, or the model that its card names


def _teacher(run: TrainingRun) -> _Teacher:
    """UnknownModel if there is none, or if what it was trained with has changed."""
    assert run.teacher is not None  # the command requires it
    folder, model = registry.find(run.teacher, "text"), registry.load(run.teacher)
    return _Teacher(model, folder, text_source(run.teacher))


@dataclass(frozen=True, slots=True)
class _Images:
    """The student's lower activations of both splits, and the teacher's vectors of the first."""

    lower: LowerBlocks
    train: Activations
    validation: Activations
    teacher: Vectors  # (N, D) unit rows


def _images(
    run: TrainingRun, initial: InitialWeights, teacher: _Teacher, listener: Listener
) -> _Images:
    lower = lower_blocks_of(initial.network)  # before the long steps: it may not be installed
    card = teacher.model.card
    backbone = registry.load_backbone(str(card["backbone"]))
    projection = ImageProjection(backbone.dimension, int(str(card["dimension"]))).eval()
    load_projection(teacher.folder, projection)
    taught = [
        split_features(run, backbone, data, what, listener)
        for what, data in training_parts(run).items()
    ]
    with torch.no_grad():
        vectors = [projection(torch.from_numpy(part.views[0])).numpy() for part in taught]
    split = run.validation_split
    report = listener.report(f"activations of {run.train_split}")
    train = load_activations(lower, [part.data for part in taught], run.cache, report)
    report = listener.report(f"activations of {split}")
    validation = load_activations(lower, [read_split(run, split)], run.cache, report)
    return _Images(lower, train, validation, np.concatenate(vectors)[train.rows])


def _captioned(
    run: TrainingRun, teacher: _Teacher, images: _Images, listener: Listener
) -> tuple[FrozenText, TrainingSet, TrainingSet, TrainingRun]:
    """The images with their captions, encoded by the teacher; the run with its languages."""
    encoders, vocabularies = load_text(teacher.text)
    sentences = sentence_encoder(run, listener)
    splits = [
        captions_of(part.data, vocabularies, sentences)
        for part in (images.train, images.validation)
    ]
    table, (train_captions, validation_captions) = freeze_text(encoders, splits)
    options: TrainingOptions = replace(
        run.options,
        dimension=encoders.out.out_features,
        caption_loss_weight=0.0,  # the caption vectors are fixed
    )
    train = TrainingSet(
        images.train.values[None],
        train_captions,
        shown=shown_concepts(images.train.data),
        teacher=images.teacher,
    )
    validation = TrainingSet(images.validation.values[None], validation_captions)
    return table, train, validation, replace(run, languages=tuple(vocabularies), options=options)


def _model(
    run: TrainingRun,
    initial: InitialWeights,
    lower: LowerBlocks,
    text: FrozenText,
    train: TrainingSet,
) -> DualEncoder:
    """The student before training."""
    features = network(initial.network).features
    if initial.text is None or initial.backbone is None:
        upper = upper_blocks_of(lower, torch.zeros(features), torch.ones(features))
    else:
        upper = load_upper_blocks(initial.backbone, lower)
    for block in upper.blocks:
        assert isinstance(block, Block)
        block.drop = 0.0  # a student underfits: as near to its teacher on validation as in training
    model = DualEncoder({}, {}, features, run.options, upper, text=text)
    if initial.text is None:
        _start(model, train)
    else:
        load_projection(initial.text, model.image)
    return model


def _start(model: DualEncoder, train: TrainingSet) -> None:
    """Standardise the pretrained features, and project them by least squares to the teacher's."""
    assert train.teacher is not None and isinstance(model.backbone, UpperBlocks)
    rows = sample_rows(len(train))
    features = image_features(model, TrainingSet(train.inputs[:, rows], {}))
    mean, deviation = features.mean(0), features.std(0) + 1e-3
    standard, targets = (features - mean) / deviation, train.teacher[rows]
    gram = standard.T @ standard / len(rows) + RIDGE * np.eye(len(mean), dtype=np.float32)
    weights = np.linalg.solve(gram, standard.T @ (targets - targets.mean(0)) / len(rows))
    with torch.no_grad():
        model.backbone.mean.copy_(torch.from_numpy(mean))
        model.backbone.deviation.copy_(torch.from_numpy(deviation))
        model.image.linear.weight.copy_(torch.from_numpy(weights.T))
        model.image.linear.bias.copy_(torch.from_numpy(targets.mean(0)))
