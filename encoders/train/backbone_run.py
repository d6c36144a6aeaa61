"""Runs that train a backbone: fine-tuned with text encoders, or distilled from a search model.

A student has the teacher's text encoders, which stay unchanged, so an index of either model answers
the same queries: it learns the teacher's image vectors, and captions and names as the teacher did.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
import torch

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.models import registry
from capsearch.encoders.settings import BackboneRun, BackboneTrainingRun, StudentRun
from capsearch.encoders.train import w2vv
from capsearch.encoders.train.activations import Activations, load_activations
from capsearch.encoders.train.backbone import (
    InitialWeights,
    LowerBlocks,
    UpperBlocks,
    find_initial_weights,
    lower_blocks_of,
    restandardise,
    sample_rows,
    upper_blocks_of,
)
from capsearch.encoders.train.captions import Corpus, captions_of, shown_concepts
from capsearch.encoders.train.dual_encoder import (
    DualEncoder,
    FrozenText,
    Labels,
    TrainingOptions,
    TrainingSet,
    freeze_text,
    image_features,
)
from capsearch.encoders.train.export import (
    export_text,
    load_projection,
    load_text,
    load_upper_blocks,
    text_source,
    write_backbone,
)
from capsearch.encoders.train.loop import Epoch, interpolate_weights
from capsearch.encoders.train.networks import Block, network
from capsearch.encoders.train.prune import build_query_bank, calibrate, prune
from capsearch.encoders.train.run import (
    Listener,
    card_of,
    checkpoint_of,
    existing_corpus,
    fit,
    read_split,
    requirements_of,
    sentence_encoder,
    serve_like,
    split_features,
    trained,
    training_options,
    training_parts,
)
from capsearch.encoders.train.text_run import corpus_builder, write_projection
from capsearch.encoders.train.trainer import Trainer, evaluate, labels_of
from capsearch.encoders.train.w2vv import ImageProjection
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Vectors

RIDGE = 0.01  # of a student's first projection, as a share of the features' variance


def train_backbone(run: BackboneRun, listener: Listener) -> Path:
    """Fine-tune a network's upper blocks; `run.from_` names the initial weights.

    The text encoders are trained with it and written as a model of their own, `run.search_model`,
    whose folder is returned. Training them afterwards, on features that have overfitted the
    training images, gives no better ones.
    """
    job = _prepare(run, listener)
    state = _new_model(job) if job.initial.text is None else _existing_model(job)
    train = TrainingSet(job.train.values[None], state.corpus.train, job.labels)
    validation = TrainingSet(job.validation.values[None], state.corpus.validation)
    best = _fine_tune(job, state, train, validation)
    restandardise(state.model, train)
    run, options = state.run, state.options
    card = {**card_of(run, options, train, best), "started_from": job.initial.description}
    made = "upper blocks fine-tuned against captions" if run.epochs else "pretrained"
    digest = write_backbone(job.lower, state.model.backbone, run.folder, card, made)
    bank = build_query_bank(state.model, train.captions, options.seed)
    text_card = {
        **card,
        "name": run.search_model,
        "description": f"text encoders for {', '.join(run.languages)}, trained with {run.name}",
        **requirements_of(run, options.dimension, _new_backbone(run), digest),
        **asdict(calibrate(state.model, bank, validation)),
    }
    folder = run.written[run.search_model]
    export_text(state.model, state.corpus.vocabularies, bank, folder, text_card)
    checkpoint_of(run).unlink(missing_ok=True)
    return folder


def _new_backbone(run: BackboneTrainingRun) -> str:
    """What a card calls the backbone that a run makes: its name, or its path if it has no name."""
    named = registry.user_models_dir() / run.name
    return run.name if run.folder.absolute() == named.absolute() else f"{run.folder.absolute()}"


@dataclass(frozen=True, slots=True)
class _Job:
    """A run with its initial weights and its data."""

    run: BackboneRun
    initial: InitialWeights
    lower: LowerBlocks
    train: Activations
    validation: Activations
    labels: Labels | None
    listener: Listener

    @property
    def label_count(self) -> int:
        """How many labels are trained beside the captions."""
        return 0 if self.labels is None else self.labels.values.shape[1]


@dataclass(frozen=True, slots=True)
class _State:
    """The model to fine-tune; the run has the languages that this model has."""

    run: BackboneRun
    options: TrainingOptions
    model: DualEncoder
    corpus: Corpus
    best: Epoch | None = None  # of the frozen epochs, if there were any


def _prepare(run: BackboneRun, listener: Listener) -> _Job:
    initial = find_initial_weights(run.from_)
    lower = lower_blocks_of(initial.network)
    train, validation = (
        _activations(run, lower, split, [read_split(run, split)], listener)
        for split in (run.train_split, run.val_split)
    )
    return _Job(run, initial, lower, train, validation, labels_of(train.data), listener)


def _activations(
    run: BackboneTrainingRun,
    lower: LowerBlocks,
    name: str,
    parts: Sequence[CaptionDataset],
    listener: Listener,
) -> Activations:
    return load_activations(lower, parts, run.features, listener.report(f"activations of {name}"))


def _new_model(job: _Job) -> _State:
    """A pretrained backbone and new text encoders, trained on its frozen features first."""
    run, train, validation = job.run, job.train, job.validation
    options = training_options(run, config=w2vv.text_config(run.inputs, run.pooling, run.hidden))
    builder = corpus_builder(run, options, job.listener)
    corpus = builder.build(train.data, validation.data, run.languages, {})
    features, labels = train.features.shape[1], job.label_count
    model = DualEncoder(corpus.vocabularies, corpus.vectors, features, options, labels=labels)
    mean, deviation = train.features.mean(0), train.features.std(0) + 1e-3

    def standardised(features: Vectors) -> Vectors:
        values: Vectors = (features - mean) / deviation
        return values[None]

    best = None
    if run.frozen_epochs and not (run.resume and checkpoint_of(run).is_file()):
        # They take little time, so there is no checkpoint of them.
        frozen = replace(options, epochs=run.frozen_epochs, lr=2 * run.lr)
        train_set = TrainingSet(standardised(train.features), corpus.train, job.labels)
        validation_set = TrainingSet(standardised(validation.features), corpus.validation)
        best = trained(Trainer(model, train_set, validation_set, frozen), job.listener)
    model.backbone = upper_blocks_of(job.lower, torch.from_numpy(mean), torch.from_numpy(deviation))
    return _State(run, options, model, corpus, best)


def _existing_model(job: _Job) -> _State:
    """Text encoders and backbone of an existing model, with its languages and vocabularies."""
    folder, backbone_folder = job.initial.text, job.initial.backbone
    assert folder is not None and backbone_folder is not None
    text, vocabularies = load_text(str(folder))
    corpus = existing_corpus(
        job.run, vocabularies, job.train.data, job.validation.data, job.listener
    )
    if job.run.hidden:
        text = prune(text, corpus.train, job.run.hidden, job.run.seed)
    options = training_options(job.run, config=text.config, dimension=text.out.out_features)
    backbone = load_upper_blocks(backbone_folder, job.lower)
    model = DualEncoder(
        vocabularies, {}, len(backbone.mean), options, backbone, job.label_count, text
    )
    load_projection(folder, model.image)
    return _State(replace(job.run, lang=tuple(vocabularies)), options, model, corpus)


def _fine_tune(job: _Job, state: _State, train: TrainingSet, validation: TrainingSet) -> Epoch:
    """Train the model in place; an existing one is then interpolated with its initial weights."""
    best = state.best
    if state.run.epochs:
        initial = {name: value.clone() for name, value in state.model.state_dict().items()}
        checkpoint = checkpoint_of(state.run)
        trainer = Trainer(state.model, train, validation, state.options, checkpoint)
        best = fit(state.run, trainer, job.listener)
        if job.initial.text is not None:
            best = interpolate_weights(
                state.model, initial, best, lambda: evaluate(state.model, validation)
            )
            job.listener.epoch(best)
    if best is None:
        raise TrainingProblem("--epochs and --frozen-epochs are both 0: nothing would be trained")
    return best


def train_student(run: StudentRun, listener: Listener) -> Path:
    """Train a student in the space of `run.teacher`, a search model.

    `run.from_` names a pretrained network, or an earlier student to train on. Returns the folder of
    the search model `run.search_model`, which uses the new backbone.
    """
    initial, teacher = find_initial_weights(run.from_, own_text=False), _teacher(run)
    images = _images(run, initial, teacher, listener)
    text, train, validation, run = _captioned(run, teacher, images, listener)
    # The caption vectors are fixed, so a loss between them would train nothing.
    options = training_options(run, dimension=text.dimension, caption_loss_weight=0.0)
    model = _model(options, initial, images.lower, text, train)
    best = fit(run, Trainer(model, train, validation, options, checkpoint_of(run)), listener)
    restandardise(model, train)
    card = {
        **card_of(run, options, train, best),
        "started_from": initial.description,
        "teacher": f"{teacher.model.name}@{teacher.model.digest}",
    }
    made = f"upper blocks distilled from {run.teacher}"
    digest = write_backbone(images.lower, model.backbone, run.folder, card, made)
    text_card = {
        **card,
        "name": run.search_model,
        "description": f"{run.name} in the space of {run.teacher}",
        **requirements_of(run, options.dimension, _new_backbone(run), digest),
    }
    folder = run.written[run.search_model]
    write_projection(model, teacher.text, validation, folder, text_card)
    serve_like(run, folder, listener)
    checkpoint_of(run).unlink(missing_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class _Teacher:
    """The search model that is distilled, and the model whose text encoders it uses."""

    model: registry.Model
    folder: Path
    text: str  # its own name, or the model that its card names


def _teacher(run: StudentRun) -> _Teacher:
    """UnknownModel if there is none, or if what it was trained with has changed."""
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
    run: StudentRun, initial: InitialWeights, teacher: _Teacher, listener: Listener
) -> _Images:
    lower = lower_blocks_of(initial.network)  # before the long steps: it may not be installed
    card = teacher.model.card
    backbone = registry.load_backbone(str(card["backbone"]))
    projection = ImageProjection(backbone.dimension, int(str(card["dimension"]))).eval()
    load_projection(teacher.folder, projection)
    taught = [
        split_features(run, backbone, [part], listener) for part in training_parts(run).items()
    ]
    with torch.no_grad():
        vectors = [projection(torch.from_numpy(part.views[0])).numpy() for part in taught]
    parts = [part.data for part in taught]
    train = _activations(run, lower, run.train_split, parts, listener)
    validation_data = [read_split(run, run.val_split)]
    validation = _activations(run, lower, run.val_split, validation_data, listener)
    return _Images(lower, train, validation, np.concatenate(vectors)[train.rows])


def _captioned(
    run: StudentRun, teacher: _Teacher, images: _Images, listener: Listener
) -> tuple[FrozenText, TrainingSet, TrainingSet, StudentRun]:
    """The images with their captions, encoded by the teacher; the run with its languages."""
    encoders, vocabularies = load_text(teacher.text)
    sentences = sentence_encoder(run, listener)
    splits = [
        captions_of(part.data, vocabularies, sentences)
        for part in (images.train, images.validation)
    ]
    table, (train_captions, validation_captions) = freeze_text(encoders, splits)
    train = TrainingSet(
        images.train.values[None],
        train_captions,
        shown=shown_concepts(images.train.data),
        teacher=images.teacher,
    )
    validation = TrainingSet(images.validation.values[None], validation_captions)
    return table, train, validation, replace(run, lang=tuple(vocabularies))


def _model(
    options: TrainingOptions,
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
    model = DualEncoder({}, {}, features, options, upper, text=text)
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
