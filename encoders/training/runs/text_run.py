"""Whole training runs: from a folder of captioned photos to a model folder with its card."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from capsearch.encoders import model_folder, models
from capsearch.encoders.datasets.dataset import CaptionDataset, Source, read
from capsearch.encoders.datasets.features import FeatureCache, Report, load_features
from capsearch.encoders.datasets.text_cache import CachedSentenceEncoder
from capsearch.encoders.hubness import QueryBank
from capsearch.encoders.image import Backbone
from capsearch.encoders.sentence import SentenceEncoder
from capsearch.encoders.training.fit.calibration import calibrate
from capsearch.encoders.training.fit.corpus import (
    MIN_COUNT,
    Corpus,
    build_corpus,
    captions_of,
)
from capsearch.encoders.training.fit.query_bank import build_query_bank
from capsearch.encoders.training.fit.trainer import Trainer
from capsearch.encoders.training.fit.validation import Epoch
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, TrainingOptions, TrainingSet
from capsearch.encoders.training.nn.frozen_text import known
from capsearch.encoders.training.runs.export import export_projection, export_text, finish_card
from capsearch.encoders.training.runs.import_weights import load_text
from capsearch.encoders.training.runs.variants import apply_variant
from capsearch.engine.records import LANGUAGES, Vectors

SENTENCE = "use3"
DEFAULT_BACKBONE = "lite2-cap"


@dataclass(frozen=True, slots=True)
class Listener:
    """Who is told how a run goes: long steps by name and count, epochs as they end."""

    progress: Callable[[str, int, int], None] = lambda stage, done, of: None
    epoch: Callable[[Epoch], None] = lambda epoch: None

    def report(self, stage: str) -> Report:
        """A counter for one long step."""
        return lambda done, of: self.progress(stage, done, of)


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """What a run reads and writes."""

    sources: tuple[Source | Path | str, ...]
    name: str
    output: Path
    languages: tuple[str, ...] = LANGUAGES
    train_split: str = "train"
    validation_split: str = "val"
    backbone: str = DEFAULT_BACKBONE
    cache: Path = Path("cache")
    variant: str = "shared"
    min_count: int = MIN_COUNT
    flip: bool = True
    resume: bool = False
    limit: int | None = None  # of training photos, for a learning curve
    data_licence: str = "not stated"
    options: TrainingOptions = field(default_factory=TrainingOptions)
    frozen_epochs: int = 3  # on the features as they come, before the eyes are opened
    text_name: str = ""  # of the text model that a backbone is trained with
    hidden: int | None = None  # units a model that learns on is pruned to; None: as it is

    @property
    def folders(self) -> tuple[Path, ...]:
        """What is written: one model, or a backbone and the text model trained with it."""
        beside = (self.output.parent / self.text_name,) if self.text_name else ()
        return (self.output, *beside)


def train_text(run: TrainingRun, listener: Listener | None = None) -> Path:
    """Text encoders and projection on a backbone's features; the folder of the new model."""
    listener = listener or Listener()
    backbone = models.load_backbone(run.backbone)
    options = apply_variant(run.variant, run.options, backbone.dimension)
    run = replace(run, options=options)
    train, validation = _features(run, backbone, listener)
    corpus = corpus_of(run, train.data, validation.data, listener)
    pair = DualEncoder(corpus.vocabularies, corpus.vectors, backbone.dimension, run.options)
    held_out = TrainingSet(validation.views, corpus.validation)
    seen = TrainingSet(train.views, corpus.train)
    best = fit(run, pair, seen, held_out, listener)
    bank = build_query_bank(pair, seen.captions, run.options.seed)
    card = {
        **card_of(run, seen, best),
        "description": f"text encoders for {', '.join(run.languages)} on {backbone.name}",
        **standing(run, backbone.digest),
        **asdict(calibrate(pair, bank, held_out)),
    }
    export_text(pair, corpus.vocabularies, bank, run.output, card)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


def train_projection(run: TrainingRun, text: str, listener: Listener | None = None) -> Path:
    """Another backbone's features into the space of the text model called `text`."""
    listener = listener or Listener()
    backbone = models.load_backbone(run.backbone)
    network, vocabularies = load_text(text)
    bank = QueryBank.load(models.find(text, "text"))
    train, validation = _features(run, backbone, listener)
    run = replace(run, languages=tuple(vocabularies))
    sentences = sentences_of(run, listener)
    sides = [captions_of(part.data, vocabularies, sentences) for part in (train, validation)]
    table, (train_rows, held_out_rows) = known(network, sides)
    # The captions' vectors are fixed: nothing is to be learned between them.
    options = replace(run.options, dimension=network.out.out_features, caption_loss_weight=0.0)
    run = replace(run, options=options)
    pair = DualEncoder(vocabularies, {}, backbone.dimension, options, text=table)
    held_out = TrainingSet(validation.views, held_out_rows)
    seen = TrainingSet(train.views, train_rows)
    best = fit(run, pair, seen, held_out, listener)
    card = {
        **card_of(run, seen, best),
        "description": f"{backbone.name} in the space of {text}",
        **standing(run, backbone.digest),
        "text": text,
        "text_digest": model_folder.read_card(models.find(text, "text"))["digest"],
        **asdict(calibrate(pair, bank, held_out)),
    }
    export_projection(pair.image, run.output)
    finish_card(run.output, card)
    checkpoint_of(run.output).unlink(missing_ok=True)
    return run.output


@dataclass(frozen=True, slots=True)
class Seen:
    """A split's photos that have an image, and their features in one or two views."""

    data: CaptionDataset
    views: Vectors  # (V, N, F)


def _features(run: TrainingRun, backbone: Backbone, listener: Listener) -> tuple[Seen, Seen]:
    """Training photos as they are and flipped, validation photos as they are."""
    cache = FeatureCache(run.cache)

    def seen(split: str, flipped: bool) -> Seen:
        report = listener.report(f"features of {split}")
        data, plain = load_features(backbone, read_split(run, split), cache, report)
        if not flipped:
            return Seen(data, plain[None])
        report = listener.report(f"features of {split}, flipped")
        turned = load_features(backbone, data, cache, report, flip=True)[1]
        return Seen(data, np.stack([plain, turned]))

    return seen(run.train_split, run.flip), seen(run.validation_split, False)


def standing(run: TrainingRun, backbone_digest: str) -> dict[str, Any]:
    """What a text model's card says about what it stands on."""
    return {
        "languages": list(run.languages),
        "dimension": run.options.dimension,
        "backbone": run.backbone,
        "backbone_digest": backbone_digest,
        "sentence": SENTENCE,
    }


def corpus_of(
    run: TrainingRun, train: CaptionDataset, validation: CaptionDataset, listener: Listener
) -> Corpus:
    """The captions of both splits, with vocabularies and word vectors of their own."""
    return build_corpus(
        train,
        validation,
        run.languages,
        sentences_of(run, listener),
        FeatureCache(run.cache),
        run.options.config.word_width,
        run.min_count,
        run.options.seed,
    )


def sentences_of(run: TrainingRun, listener: Listener) -> CachedSentenceEncoder:
    """The sentence encoder, remembering what it encoded."""
    folder = models.find(SENTENCE, "sentence")
    return CachedSentenceEncoder(
        SentenceEncoder(folder),
        model_folder.digest(folder),
        FeatureCache(run.cache),
        listener.report("sentences"),
    )


def fit(
    run: TrainingRun,
    pair: DualEncoder,
    train: TrainingSet,
    validation: TrainingSet,
    listener: Listener,
) -> Epoch:
    """Train with a log and a checkpoint; afterwards `pair` holds what validated best."""
    run.output.mkdir(parents=True, exist_ok=True)
    checkpoint, log = checkpoint_of(run.output), run.output / model_folder.LOG
    trainer = Trainer(pair, train, validation, run.options, checkpoint)
    if run.resume:
        trainer.resume()
    else:
        log.unlink(missing_ok=True)

    def logged(epoch: Epoch) -> None:
        listener.epoch(epoch)
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(epoch)) + "\n")

    return trained(trainer, replace(listener, epoch=logged))


def trained(trainer: Trainer, listener: Listener) -> Epoch:
    """TrainingRun to the end; afterwards the trainer's pair holds the weights that validated best."""
    for epoch in trainer.fit(listener.report):
        listener.epoch(epoch)
    assert trainer.best is not None  # the first epoch is the best so far
    trainer.pair.load_state_dict(trainer.averaged.module.state_dict())
    return trainer.best


def checkpoint_of(output: Path) -> Path:
    """Where a run waits for --resume, until its model is written: beside it, not part of it."""
    return output.parent / f"{output.name}.checkpoint.pt"


def read_split(run: TrainingRun, split: str) -> CaptionDataset:
    """A split of the run's data, within the limit if it is the one trained on."""
    data = read(run.sources, splits=[split])
    return data.first(run.limit) if run.limit and split == run.train_split else data


def card_of(run: TrainingRun, train: TrainingSet, best: Epoch) -> dict[str, Any]:
    """What every model's card says of its training."""
    return {
        "name": run.name,
        "licence": f"research use; trained on captions under: {run.data_licence}",
        "training": {
            "photos": len(train),
            "captions": {
                language: len(told.image_rows) for language, told in train.captions.items()
            },
            "epochs": best.number,
            "options": asdict(run.options),
        },
        "validation_mrr": {k: round(v, 4) for k, v in best.validation.items()},
    }
