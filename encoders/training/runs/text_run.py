"""Training runs on a fixed backbone's features: text encoders, or only an image projection."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from capsearch.encoders import model_folder, models
from capsearch.encoders.datasets.dataset import CaptionDataset, read_labelled
from capsearch.encoders.datasets.features import FeatureCache, load_features
from capsearch.encoders.hubness import QueryBank
from capsearch.encoders.image import ImageNetwork
from capsearch.encoders.training.fit.calibration import calibrate
from capsearch.encoders.training.fit.corpus import captions_of
from capsearch.encoders.training.fit.distillation import read_sentences
from capsearch.encoders.training.fit.names import shown_concepts
from capsearch.encoders.training.fit.query_bank import build_query_bank
from capsearch.encoders.training.fit.trainer import Trainer
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, TrainingSet
from capsearch.encoders.training.nn.frozen_text import freeze_text
from capsearch.encoders.training.runs.export import export_projection, export_text, finish_card
from capsearch.encoders.training.runs.import_weights import load_text
from capsearch.encoders.training.runs.run import (
    Listener,
    TrainingRun,
    card_of,
    checkpoint_of,
    corpus_of,
    fit,
    read_split,
    requirements_of,
    sentence_encoder,
)
from capsearch.encoders.training.runs.teacher import find_teacher, teach
from capsearch.encoders.training.runs.variants import apply_variant
from capsearch.engine.records import Vectors


def train_text(run: TrainingRun, listener: Listener | None = None) -> Path:
    """Text encoders and image projection on a backbone's features; the new model's folder."""
    listener = listener or Listener()
    teacher = find_teacher(run)
    run = replace(run, backbone=run.teacher or run.backbone)
    backbone = models.load_backbone(run.backbone)
    options = apply_variant(run.variant, run.options, backbone.dimension)
    if teacher:
        options = replace(options, space="teacher", dimension=backbone.dimension)
    run = replace(run, options=options)
    more = read_sentences(run.sentences, teacher.reads) if teacher else {}
    train, validation = _features(run, backbone, listener)
    corpus = corpus_of(run, train.data, validation.data, listener, more)
    if teacher:
        corpus = teach(run, teacher, corpus, train.data, more, listener)
    model = DualEncoder(corpus.vocabularies, corpus.vectors, backbone.dimension, run.options)
    validation_set = TrainingSet(validation.views, corpus.validation)
    train_set = TrainingSet(train.views, corpus.train, shown=corpus.shown)
    best = fit(run, _trainer(run, model, train_set, validation_set), listener)
    bank = build_query_bank(model, train_set.captions, run.options.seed)
    card = {
        **card_of(run, train_set, best),
        "description": f"text encoders for {', '.join(run.languages)} on {backbone.name}",
        **requirements_of(run, backbone.digest),
        **asdict(calibrate(model, bank, validation_set)),
    }
    export_text(model, corpus.vocabularies, bank, run.output, card)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


def train_projection(run: TrainingRun, text: str, listener: Listener | None = None) -> Path:
    """A projection of another backbone's features into the space of the text model `text`."""
    listener = listener or Listener()
    backbone = models.load_backbone(run.backbone)
    network, vocabularies = load_text(text)
    bank = QueryBank.load(models.find(text, "text"))
    train, validation = _features(run, backbone, listener)
    run = replace(run, languages=tuple(vocabularies))
    sentences = sentence_encoder(run, listener)
    splits = [captions_of(part.data, vocabularies, sentences) for part in (train, validation)]
    table, (train_rows, validation_rows) = freeze_text(network, splits)
    # The caption vectors are fixed, so a loss between them would train nothing.
    options = replace(run.options, dimension=network.out.out_features, caption_loss_weight=0.0)
    run = replace(run, options=options)
    model = DualEncoder(vocabularies, {}, backbone.dimension, options, text=table)
    validation_set = TrainingSet(validation.views, validation_rows)
    train_set = TrainingSet(train.views, train_rows, shown=shown_concepts(train.data))
    best = fit(run, _trainer(run, model, train_set, validation_set), listener)
    card = {
        **card_of(run, train_set, best),
        "description": f"{backbone.name} in the space of {text}",
        **requirements_of(run, backbone.digest),
        "text": models.reference(text),
        "text_digest": model_folder.read_card(models.find(text, "text"))["digest"],
        **asdict(calibrate(model, bank, validation_set)),
    }
    export_projection(model.image, run.output)
    finish_card(run.output, card)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


def _trainer(
    run: TrainingRun, model: DualEncoder, train: TrainingSet, validation: TrainingSet
) -> Trainer:
    return Trainer(model, train, validation, run.options, checkpoint_of(run.output))


@dataclass(frozen=True, slots=True)
class _SplitFeatures:
    """A split's readable images, and their features in one or two views."""

    data: CaptionDataset
    views: Vectors  # (V, N, F)

    def __add__(self, other: _SplitFeatures) -> _SplitFeatures:
        images = (*self.data.images, *other.data.images)
        return _SplitFeatures(
            self.data.only(images), np.concatenate([self.views, other.views], axis=1)
        )


def _features(
    run: TrainingRun, backbone: ImageNetwork, listener: Listener
) -> tuple[_SplitFeatures, _SplitFeatures]:
    """Training images with their flipped view if `run.flip`, validation images without."""
    cache = FeatureCache(run.cache)

    def of_images(data: CaptionDataset, what: str, flip: bool) -> _SplitFeatures:
        report = listener.report(f"features of {what}")
        data, features = load_features(backbone, data, cache, report)
        if not flip:
            return _SplitFeatures(data, features[None])
        report = listener.report(f"features of {what}, flipped")
        flipped = load_features(backbone, data, cache, report, flip=True)[1]
        return _SplitFeatures(data, np.stack([features, flipped]))

    train = of_images(read_split(run, run.train_split), run.train_split, run.flip)
    if run.labelled:
        labelled = read_labelled(run.labelled).split("train")
        train += of_images(labelled, "labelled images", run.flip)
    validation = read_split(run, run.validation_split)
    return train, of_images(validation, run.validation_split, False)
