"""The run that fine-tunes a backbone's upper blocks, together with text encoders."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from capsearch.encoders.train.activations import Activations, load_activations
from capsearch.encoders.train.backbone import (
    InitialWeights,
    LowerBlocks,
    find_initial_weights,
    lower_blocks_of,
    restandardise,
    upper_blocks_of,
)
from capsearch.encoders.train.corpus import Corpus
from capsearch.encoders.train.dual_encoder import DualEncoder, Labels, TrainingSet
from capsearch.encoders.train.export import (
    export_text,
    load_projection,
    load_text,
    load_upper_blocks,
    write_backbone,
)
from capsearch.encoders.train.loop import Epoch, evaluate, interpolate_weights
from capsearch.encoders.train.prune import build_query_bank, calibrate, prune
from capsearch.encoders.train.run import (
    Listener,
    TrainingRun,
    card_of,
    checkpoint_of,
    corpus_of,
    existing_corpus,
    fit,
    new_backbone,
    read_split,
    requirements_of,
    trained,
)
from capsearch.encoders.train.trainer import Trainer, labels_of
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Vectors


def train_backbone(run: TrainingRun, listener: Listener | None = None) -> Path:
    """Fine-tune a network's upper blocks; `run.backbone` names the initial weights.

    The text encoders are trained with it and written as a model of their own, `run.text_name`,
    whose folder is returned. Training them afterwards, on features that have overfitted the
    training images, gives no better ones.
    """
    listener = listener or Listener()
    job = _prepare(run, listener)
    state = _new_model(job) if job.initial.text is None else _existing_model(job)
    train = TrainingSet(job.train.values[None], state.corpus.train, job.labels)
    validation = TrainingSet(job.validation.values[None], state.corpus.validation)
    best = _fine_tune(job, state, train, validation)
    restandardise(state.model, train)
    card = {**card_of(state.run, train, best), "started_from": job.initial.description}
    made = "upper blocks fine-tuned against captions" if run.options.epochs else "pretrained"
    digest = write_backbone(job.lower, state.model.backbone, run.output, card, made)
    folder = _export_text(state, train, validation, card, digest)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class _Job:
    """A run with its initial weights and its data."""

    run: TrainingRun
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
    """The model to fine-tune; the run has the languages and options that this model has."""

    run: TrainingRun
    model: DualEncoder
    corpus: Corpus
    best: Epoch | None = None  # of the frozen epochs, if there were any


def _prepare(run: TrainingRun, listener: Listener) -> _Job:
    initial = find_initial_weights(run.backbone)
    lower = lower_blocks_of(initial.network)
    train, validation = (
        load_activations(
            lower, [read_split(run, split)], run.cache, listener.report(f"activations of {split}")
        )
        for split in (run.train_split, run.validation_split)
    )
    return _Job(run, initial, lower, train, validation, labels_of(train.data), listener)


def _new_model(job: _Job) -> _State:
    """A pretrained backbone and new text encoders, trained on its frozen features first."""
    run, train, validation = job.run, job.train, job.validation
    corpus = corpus_of(run, train.data, validation.data, job.listener)
    model = DualEncoder(
        corpus.vocabularies,
        corpus.vectors,
        train.features.shape[1],
        run.options,
        labels=job.label_count,
    )
    mean, deviation = train.features.mean(0), train.features.std(0) + 1e-3

    def standardised(features: Vectors) -> Vectors:
        values: Vectors = (features - mean) / deviation
        return values[None]

    best = None
    if run.frozen_epochs and not (run.resume and checkpoint_of(run.output).is_file()):
        # They take little time, so there is no checkpoint of them.
        options = replace(run.options, epochs=run.frozen_epochs, lr=2 * run.options.lr)
        train_set = TrainingSet(standardised(train.features), corpus.train, job.labels)
        validation_set = TrainingSet(standardised(validation.features), corpus.validation)
        best = trained(Trainer(model, train_set, validation_set, options), job.listener)
    model.backbone = upper_blocks_of(job.lower, torch.from_numpy(mean), torch.from_numpy(deviation))
    return _State(run, model, corpus, best)


def _existing_model(job: _Job) -> _State:
    """Text encoders and backbone of an existing model, with its languages and vocabularies."""
    folder, backbone_folder = job.initial.text, job.initial.backbone
    assert folder is not None and backbone_folder is not None
    text, vocabularies = load_text(str(folder))
    corpus = existing_corpus(
        job.run, vocabularies, job.train.data, job.validation.data, job.listener
    )
    if job.run.hidden:
        text = prune(text, corpus.train, job.run.hidden, job.run.options.seed)
    options = replace(job.run.options, config=text.config, dimension=text.out.out_features)
    backbone = load_upper_blocks(backbone_folder, job.lower)
    model = DualEncoder(
        vocabularies, {}, len(backbone.mean), options, backbone, job.label_count, text
    )
    load_projection(folder, model.image)
    run = replace(job.run, languages=tuple(vocabularies), options=options)
    return _State(run, model, corpus)


def _fine_tune(job: _Job, state: _State, train: TrainingSet, validation: TrainingSet) -> Epoch:
    """Train the model in place; an existing one is then interpolated with its initial weights."""
    best = state.best
    if state.run.options.epochs:
        initial = {name: value.clone() for name, value in state.model.state_dict().items()}
        checkpoint = checkpoint_of(state.run.output)
        trainer = Trainer(state.model, train, validation, state.run.options, checkpoint)
        best = fit(state.run, trainer, job.listener)
        if job.initial.text is not None:
            best = interpolate_weights(
                state.model, initial, best, lambda: evaluate(state.model, validation)
            )
            job.listener.epoch(best)
    if best is None:
        raise TrainingProblem("--epochs and --frozen-epochs are both 0: nothing would be trained")
    return best


def _export_text(
    state: _State,
    train: TrainingSet,
    validation: TrainingSet,
    card: dict[str, object],
    backbone_digest: str,
) -> Path:
    """Write the text model's folder and return it."""
    run, model, folder = state.run, state.model, state.run.folders[1]
    bank = build_query_bank(model, train.captions, run.options.seed)
    text_card = {
        **card,
        "name": run.text_name,
        "description": f"text encoders for {', '.join(run.languages)}, trained with {run.name}",
        **requirements_of(replace(run, backbone=new_backbone(run)), backbone_digest),
        **asdict(calibrate(model, bank, validation)),
    }
    export_text(model, state.corpus.vocabularies, bank, folder, text_card)
    return folder
