"""A backbone's training run: from captioned photos to eyes, and the text encoders beside them."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch

from capsearch.encoders import model_folder
from capsearch.encoders.training.fit.activations import Activations, load_activations
from capsearch.encoders.training.fit.calibration import calibrate
from capsearch.encoders.training.fit.corpus import Corpus, captions_of
from capsearch.encoders.training.fit.prune import pruned
from capsearch.encoders.training.fit.query_bank import build_query_bank
from capsearch.encoders.training.fit.trainer import Trainer
from capsearch.encoders.training.fit.validation import Epoch, mix
from capsearch.encoders.training.nn.backbone import (
    LowerBlocks,
    UpperBlocks,
    export_backbone,
    labels_of,
    lower_blocks_of,
    restandardise,
    upper_blocks_of,
)
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, Labels, TrainingSet
from capsearch.encoders.training.nn.efficientnet import FEATURES
from capsearch.encoders.training.runs.export import export_text
from capsearch.encoders.training.runs.import_weights import (
    load_projection,
    load_text,
    load_upper_blocks,
)
from capsearch.encoders.training.runs.init import Start, architecture, start_of
from capsearch.encoders.training.runs.text_run import (
    Listener,
    TrainingRun,
    card_of,
    checkpoint_of,
    corpus_of,
    fit,
    read_split,
    sentences_of,
    standing,
    trained,
)
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Vectors


def train_backbone(run: TrainingRun, listener: Listener | None = None) -> Path:
    """Fine-tune a network's upper blocks; `run.backbone` is where it starts, see `start_of`.

    The text encoders learn beside it and are written as a model of their own, `run.text_name`,
    whose folder is returned: trained afterwards, on features that know the training photos,
    they are no better.
    """
    listener = listener or Listener()
    start = start_of(run.backbone)
    lower = lower_blocks_of(start.lite)
    train, validation = (
        load_activations(
            lower,
            read_split(run, split),
            run.cache,
            listener.report(f"activations of {split}"),
        )
        for split in (run.train_split, run.validation_split)
    )
    job = _Job(run, start, lower, train, validation, labels_of(train.data), listener)
    run, pair, corpus, best = _fresh(job) if start.text is None else _continued(job)
    seen = TrainingSet(train.values[None], corpus.train, job.labels)
    held_out = TrainingSet(validation.values[None], corpus.validation)
    if run.options.epochs:
        before = {name: value.clone() for name, value in pair.state_dict().items()}
        best = fit(run, pair, seen, held_out, listener)
        if start.text is not None:
            best = mix(pair, before, best, held_out)
            listener.epoch(best)
    if best is None:
        raise TrainingProblem("no epochs at all: nothing would be trained")
    restandardise(pair, seen)
    made = {**card_of(run, seen, best), "started_from": start.described}
    card = {
        **made,
        "description": f"EfficientNet-{start.lite}, "
        + ("upper blocks fine-tuned against captions" if run.options.epochs else "as it came"),
        "architecture": architecture(start.lite),
    }
    eyes = pair.backbone
    assert isinstance(eyes, UpperBlocks)
    export_backbone(lower.network, start.lite, eyes.mean, eyes.deviation, run.output, card)
    digest = model_folder.read_card(run.output)["digest"]
    folder = run.folders[1]
    bank = build_query_bank(pair, seen.captions, run.options.seed)
    text_card = {
        **made,
        "name": run.text_name,
        "description": f"text encoders for {', '.join(run.languages)}, trained with {run.name}",
        **standing(replace(run, backbone=run.name), digest),
        **asdict(calibrate(pair, bank, held_out)),
    }
    export_text(pair, corpus.vocabularies, bank, folder, text_card)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return folder


@dataclass(frozen=True, slots=True)
class _Job:
    """A run with its photos at hand."""

    run: TrainingRun
    start: Start
    lower: LowerBlocks
    train: Activations
    validation: Activations
    labels: Labels | None
    listener: Listener

    @property
    def label_count(self) -> int:
        """How many labels the eyes learn beside the captions."""
        return 0 if self.labels is None else self.labels.values.shape[1]


def _fresh(job: _Job) -> tuple[TrainingRun, DualEncoder, Corpus, Epoch | None]:
    """New text encoders, warmed up on the ImageNet features, and the network's own upper half."""
    run, train, validation, listener = job.run, job.train, job.validation, job.listener
    corpus = corpus_of(run, train.data, validation.data, listener)
    pair = DualEncoder(
        corpus.vocabularies, corpus.vectors, FEATURES, run.options, labels=job.label_count
    )
    mean, deviation = train.features.mean(0), train.features.std(0) + 1e-3

    def plain(features: Vectors) -> Vectors:
        standard: Vectors = (features - mean) / deviation
        return standard[None]

    best = None
    if run.frozen_epochs and not (run.resume and checkpoint_of(run.output).is_file()):
        # Quick enough to do again: only the long epochs leave a checkpoint.
        warm = replace(run.options, epochs=run.frozen_epochs, lr=2 * run.options.lr)
        seen = TrainingSet(plain(train.features), corpus.train, job.labels)
        judge = TrainingSet(plain(validation.features), corpus.validation)
        best = trained(Trainer(pair, seen, judge, warm), listener)
    pair.backbone = upper_blocks_of(job.lower, torch.from_numpy(mean), torch.from_numpy(deviation))
    return run, pair, corpus, best


def _continued(job: _Job) -> tuple[TrainingRun, DualEncoder, Corpus, Epoch | None]:
    """Words and eyes of a model there is: its languages and vocabularies stay."""
    folder, eyes = job.start.text, job.start.backbone
    assert folder is not None and eyes is not None
    text, vocabularies = load_text(str(folder))
    sentences = sentences_of(job.run, job.listener)
    told, asked = (
        captions_of(part.data, vocabularies, sentences) for part in (job.train, job.validation)
    )
    if job.run.hidden:
        text = pruned(text, told, job.run.hidden, job.run.options.seed)
    options = replace(job.run.options, config=text.config, dimension=text.out.out_features)
    seeing = load_upper_blocks(eyes, job.lower)
    pair = DualEncoder(vocabularies, {}, FEATURES, options, seeing, job.label_count, text)
    load_projection(folder, pair.image)
    run = replace(job.run, languages=tuple(vocabularies), options=options)
    return run, pair, Corpus(vocabularies, {}, told, asked), None
