"""Training runs on a fixed backbone's features: text encoders, or only an image projection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from capsearch.encoders import concepts, model_folder, models
from capsearch.encoders.datasets.labelled import held_out
from capsearch.encoders.hubness import QueryBank
from capsearch.encoders.image import ImageNetwork
from capsearch.encoders.training.fit.anchors import name_anchors
from capsearch.encoders.training.fit.calibration import calibrate
from capsearch.encoders.training.fit.corpus import Corpus, LanguageCaptions, captions_of
from capsearch.encoders.training.fit.distillation import read_sentences
from capsearch.encoders.training.fit.names import shown_concepts
from capsearch.encoders.training.fit.query_bank import build_query_bank
from capsearch.encoders.training.fit.trainer import Trainer
from capsearch.encoders.training.fit.validation import evaluate, interpolate_weights
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, TrainingSet
from capsearch.encoders.training.nn.frozen_text import freeze_text
from capsearch.encoders.training.runs.export import export_projection, export_text, finish_card
from capsearch.encoders.training.runs.image_offset import serve_like
from capsearch.encoders.training.runs.import_weights import (
    load_projection,
    load_text,
    text_source,
)
from capsearch.encoders.training.runs.run import (
    Listener,
    TrainingRun,
    card_of,
    checkpoint_of,
    corpus_of,
    existing_corpus,
    fit,
    requirements_of,
    sentence_encoder,
)
from capsearch.encoders.training.runs.split_features import SplitFeatures, train_and_validation
from capsearch.encoders.training.runs.teacher import find_teacher, teach
from capsearch.encoders.training.runs.variants import apply_variant


def train_text(run: TrainingRun, listener: Listener | None = None) -> Path:
    """Text encoders and image projection on a backbone's features; the new model's folder.

    Those of `run.initial` are fine-tuned, on the features of its own backbone; or new ones trained.
    """
    listener = listener or Listener()
    started = _fine_tuned(run, listener) if run.initial else _new(run, listener)
    run, model, backbone, corpus = started.run, started.model, started.backbone, started.corpus
    validation_set = TrainingSet(started.validation.views, corpus.validation)
    train_set = TrainingSet(
        started.train.views, corpus.train, shown=corpus.shown, anchors=started.anchors
    )
    best = fit(run, _trainer(run, model, train_set, validation_set), listener)
    if started.initial:
        best = interpolate_weights(
            model, started.initial, best, lambda: evaluate(model, validation_set)
        )
        listener.epoch(best)
    bank = build_query_bank(model, train_set.captions, run.options.seed)
    card = {
        **started.card,
        **card_of(run, train_set, best),
        "description": f"text encoders for {', '.join(run.languages)} on {backbone.name}",
        **requirements_of(run, backbone.digest),
        **asdict(calibrate(model, bank, validation_set)),
    }
    export_text(model, corpus.vocabularies, bank, run.output, card)
    serve_like(run, run.output, listener)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


@dataclass(frozen=True, slots=True)
class _Started:
    """A model before training, and what it is trained on."""

    run: TrainingRun
    model: DualEncoder
    backbone: ImageNetwork
    corpus: Corpus
    train: SplitFeatures
    validation: SplitFeatures
    anchors: Mapping[str, LanguageCaptions] | None = None
    initial: Mapping[str, Tensor] = field(default_factory=dict)  # weights; none if they are random
    card: Mapping[str, Any] = field(default_factory=dict)  # where these are from


def _new(run: TrainingRun, listener: Listener) -> _Started:
    """New text encoders, with vocabularies of the training captions."""
    teacher = find_teacher(run)
    run = replace(run, backbone=run.teacher or run.backbone)
    backbone = models.load_backbone(run.backbone)
    options = apply_variant(run.variant, run.options, backbone.dimension)
    if teacher:
        options = replace(options, space="teacher", dimension=backbone.dimension)
    run = replace(run, options=options)
    more = read_sentences(run.sentences, teacher.reads) if teacher else {}
    train, validation = train_and_validation(run, backbone, listener)
    corpus = corpus_of(run, train.data, validation.data, listener, more)
    if teacher:
        corpus = teach(run, teacher, corpus, train.data, more, listener)
    model = DualEncoder(corpus.vocabularies, corpus.vectors, backbone.dimension, run.options)
    return _Started(run, model, backbone, corpus, train, validation)


def _fine_tuned(run: TrainingRun, listener: Listener) -> _Started:
    """The text encoders, projection, languages and vocabularies of `run.initial`."""
    assert run.initial is not None
    folder = models.find(run.initial, "text")
    text, vocabularies = load_text(text_source(run.initial))
    served = model_folder.read_card(folder)
    backbone = models.load_backbone(str(served["backbone"]))
    options = replace(run.options, config=text.config, dimension=text.out.out_features)
    run = replace(run, backbone=backbone.name, languages=tuple(vocabularies), options=options)
    train, validation = train_and_validation(run, backbone, listener)
    corpus = existing_corpus(run, vocabularies, train.data, validation.data, listener)
    model = DualEncoder(vocabularies, {}, backbone.dimension, options, text=text)
    load_projection(folder, model.image)
    known = concepts.all_concepts().keys() - (frozenset() if run.all_concepts else held_out())
    sentences = sentence_encoder(run, listener)
    anchors = name_anchors(text, vocabularies, sentences, sorted(known))
    initial = {name: value.clone() for name, value in model.state_dict().items()}
    card = {"started_from": f"{served['name']}@{served['digest']}"}
    return _Started(run, model, backbone, corpus, train, validation, anchors, initial, card)


def train_projection(run: TrainingRun, text: str, listener: Listener | None = None) -> Path:
    """A projection of another backbone's features into the space of the text model `text`."""
    listener = listener or Listener()
    backbone = models.load_backbone(run.backbone)
    text = text_source(text)
    network, vocabularies = load_text(text)
    train, validation = train_and_validation(run, backbone, listener)
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
    }
    write_projection(model, text, validation_set, run.output, card)
    serve_like(run, run.output, listener)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


def write_projection(
    model: DualEncoder, text: str, validation: TrainingSet, folder: Path, card: Mapping[str, Any]
) -> None:
    """Write a model folder that has an image projection and uses the encoders of `text`."""
    text_folder = models.find(text, "text")
    export_projection(model.image, folder)
    full_card = {
        **card,
        "text": models.reference(text),
        "text_digest": model_folder.read_card(text_folder)["digest"],
        **asdict(calibrate(model, QueryBank.load(text_folder), validation)),
    }
    finish_card(folder, full_card)


def _trainer(
    run: TrainingRun, model: DualEncoder, train: TrainingSet, validation: TrainingSet
) -> Trainer:
    return Trainer(model, train, validation, run.options, checkpoint_of(run.output))
