"""Whole training runs: from a folder of captioned photos to a model folder with its card."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from capsearch.encoders import models, storage
from capsearch.encoders.image import Backbone
from capsearch.encoders.sentence import SentenceEncoder
from capsearch.encoders.training.activations import load_activations
from capsearch.encoders.training.backbone import Eyes, export_backbone, labels_of, lower_half
from capsearch.encoders.training.calibrate import calibrate
from capsearch.encoders.training.corpus import (
    MIN_COUNT,
    LanguageCaptions,
    Vocabulary,
    build_vocabulary,
    encode_captions,
    texts_of,
    word_vectors,
)
from capsearch.encoders.training.data import CaptionData, Source, read
from capsearch.encoders.training.efficientnet import FEATURES, LITES
from capsearch.encoders.training.export import export_projection, export_text, finish_card
from capsearch.encoders.training.features import Decode, FeatureCache, Report, load_features
from capsearch.encoders.training.pair import Pair, TrainingOptions, TrainingSet
from capsearch.encoders.training.projection import known, load_text
from capsearch.encoders.training.text import Epoch, TextTrainer
from capsearch.encoders.training.variants import apply_variant
from capsearch.engine.errors import TrainingProblem
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
class Run:
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
    mirror: bool = True
    resume: bool = False
    limit: int | None = None  # of training photos, for a learning curve
    data_licence: str = "not stated"
    options: TrainingOptions = field(default_factory=TrainingOptions)


@dataclass(frozen=True)
class Corpus:
    """Vocabularies and encoded captions of both splits."""

    vocabularies: Mapping[str, Vocabulary]
    vectors: Mapping[str, torch.Tensor]
    train: Mapping[str, LanguageCaptions]
    validation: Mapping[str, LanguageCaptions]


def train_text(run: Run, decode: Decode, listener: Listener | None = None) -> Path:
    """Text encoders and projection on a backbone's features; the folder of the new model."""
    listener = listener or Listener()
    backbone = models.load_backbone(run.backbone)
    options = apply_variant(run.variant, run.options, backbone.dimension)
    run = replace(run, options=options)
    train, validation = _features(run, backbone, decode, listener)
    corpus = build_corpus(run, train.data, validation.data, listener)
    pair = Pair(corpus.vocabularies, corpus.vectors, backbone.dimension, run.options)
    held_out = TrainingSet(validation.views, corpus.validation)
    best = _fit(run, pair, TrainingSet(train.views, corpus.train), held_out, listener)
    card = {
        **_card(run, train.data, best),
        "description": f"text encoders for {', '.join(run.languages)} on {backbone.name}",
        **_standing(run, backbone),
        **asdict(calibrate(pair, held_out)),
    }
    export_text(pair, corpus.vocabularies, run.output, card)
    return run.output


def train_projection(run: Run, text: str, decode: Decode, listener: Listener | None = None) -> Path:
    """Another backbone's features into the space of the text model called `text`."""
    listener = listener or Listener()
    backbone = models.load_backbone(run.backbone)
    network, vocabularies = load_text(text)
    train, validation = _features(run, backbone, decode, listener)
    run = replace(run, languages=tuple(vocabularies))
    sentences = SentenceEncoder(models.find(SENTENCE, "sentence"))
    sides = [_captions(part.data, vocabularies, sentences) for part in (train, validation)]
    table, (train_rows, held_out_rows) = known(network, sides)
    options = replace(run.options, dimension=network.out.out_features)
    pair = Pair(vocabularies, {}, backbone.dimension, options, text=table)
    held_out = TrainingSet(validation.views, held_out_rows)
    best = _fit(run, pair, TrainingSet(train.views, train_rows), held_out, listener)
    card = {
        **_card(run, train.data, best),
        "description": f"{backbone.name} in the space of {text}",
        **_standing(run, backbone),
        "dimension": options.dimension,
        "text": text,
        "text_digest": storage.read_card(models.find(text, "text"))["digest"],
        **asdict(calibrate(pair, held_out)),
    }
    export_projection(pair.image, run.output)
    finish_card(run.output, card)
    return run.output


@dataclass(frozen=True, slots=True)
class Seen:
    """A split's photos that have a picture, and their features in one or two views."""

    data: CaptionData
    views: Vectors  # (V, N, F)


def _features(
    run: Run, backbone: Backbone, decode: Decode, listener: Listener
) -> tuple[Seen, Seen]:
    """Training photos as they are and mirrored, validation photos as they are."""
    cache = FeatureCache(run.cache)

    def seen(split: str, mirrored: bool) -> Seen:
        report = listener.report(f"features of {split}")
        data, plain = load_features(backbone, _read(run, split), cache, decode, report)
        if not mirrored:
            return Seen(data, plain[None])
        report = listener.report(f"features of {split}, mirrored")
        turned = load_features(backbone, data, cache, _mirroring(decode), report, "mirror")[1]
        return Seen(data, np.stack([plain, turned]))

    return seen(run.train_split, run.mirror), seen(run.validation_split, False)


def _standing(run: Run, backbone: Backbone) -> dict[str, Any]:
    """What a text model's card says about what it stands on."""
    return {
        "languages": list(run.languages),
        "dimension": run.options.dimension,
        "backbone": run.backbone,
        "backbone_digest": backbone.digest,
        "sentence": SENTENCE,
    }


def train_backbone(run: Run, decode: Decode, listener: Listener | None = None) -> Path:
    """Fine-tune the upper blocks of an ImageNet network (`run.backbone`: lite0, lite1, lite2)."""
    listener = listener or Listener()
    lower = lower_half(run.backbone)
    train, validation = (
        load_activations(
            lower, _read(run, split), run.cache, decode, listener.report(f"activations of {split}")
        )
        for split in (run.train_split, run.validation_split)
    )
    mean, deviation = train.features.mean(0), train.features.std(0) + 1e-3
    start = LITES[run.backbone].first_trained
    network = lower.network.requires_grad_(True)
    eyes = Eyes(network, start, torch.from_numpy(mean), torch.from_numpy(deviation))
    corpus = build_corpus(run, train.data, validation.data, listener)
    labels = labels_of(train.data)
    count = 0 if labels is None else labels.values.shape[1]
    pair = Pair(corpus.vocabularies, corpus.vectors, FEATURES, run.options, eyes, count)
    best = _fit(
        run,
        pair,
        TrainingSet(train.values[None], corpus.train, labels),
        TrainingSet(validation.values[None], corpus.validation),
        listener,
    )
    assert isinstance(pair.eyes, Eyes)
    for at, block in enumerate(pair.eyes.blocks):
        network.blocks[start + at] = block
    network.head = pair.eyes.head
    card = {
        **_card(run, train.data, best),
        "description": f"EfficientNet-{run.backbone} fine-tuned against captions",
        "architecture": f"EfficientNet-{run.backbone}, batch norm folded",
        "started_from": f"ImageNet weights, sha256 {LITES[run.backbone].sha256}, Apache-2.0",
    }
    export_backbone(network, run.backbone, pair.eyes.mean, pair.eyes.deviation, run.output, card)
    return run.output


def build_corpus(
    run: Run, train: CaptionData, validation: CaptionData, listener: Listener
) -> Corpus:
    """Vocabularies from the training captions; both splits' captions in numbers and vectors."""
    sentences = SentenceEncoder(models.find(SENTENCE, "sentence"))
    vocabularies, vectors, encoded = {}, {}, {}
    for at, language in enumerate(run.languages):
        listener.progress("captions", at, len(run.languages))
        texts, photos = texts_of(train, language)
        if not texts:
            raise TrainingProblem(
                f"no {language} captions in split '{run.train_split}'; name the languages there "
                "are with --lang"
            )
        vocabulary, tokens = build_vocabulary(language, texts, run.min_count)
        vocabularies[language] = vocabulary
        width = run.options.config.word_width
        vectors[language] = word_vectors(vocabulary, tokens, width, run.options.seed)
        encoded[language] = encode_captions(vocabulary, texts, photos, sentences, tokens)
    listener.progress("captions", len(run.languages), len(run.languages))
    held_out = _captions(validation, vocabularies, sentences)
    return Corpus(vocabularies, vectors, encoded, held_out)


def _captions(
    data: CaptionData, vocabularies: Mapping[str, Vocabulary], sentences: SentenceEncoder
) -> dict[str, LanguageCaptions]:
    return {
        language: encode_captions(vocabulary, *texts_of(data, language), sentences)
        for language, vocabulary in vocabularies.items()
    }


def _fit(
    run: Run, pair: Pair, train: TrainingSet, validation: TrainingSet, listener: Listener
) -> Epoch:
    """Train; afterwards `pair` holds the weights that validated best."""
    run.output.mkdir(parents=True, exist_ok=True)
    checkpoint, log = run.output / "checkpoint.pt", run.output / storage.LOG
    trainer = TextTrainer(pair, train, validation, run.options, checkpoint)
    if run.resume:
        trainer.resume()
    else:
        log.unlink(missing_ok=True)
    for epoch in trainer.fit():
        listener.epoch(epoch)
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(epoch)) + "\n")
    assert trainer.best is not None  # the first epoch is the best so far
    pair.load_state_dict(trainer.averaged.module.state_dict())
    checkpoint.unlink(missing_ok=True)
    return trainer.best


def _read(run: Run, split: str) -> CaptionData:
    data = read(run.sources, splits=[split])
    return data.first(run.limit) if run.limit and split == run.train_split else data


def _mirroring(decode: Decode) -> Decode:
    return lambda content, size: np.ascontiguousarray(decode(content, size)[:, ::-1])


def _card(run: Run, train: CaptionData, best: Epoch) -> dict[str, Any]:
    counts: Iterator[tuple[str, int]] = (
        (language, len(texts_of(train, language)[0])) for language in run.languages
    )
    return {
        "name": run.name,
        "licence": f"research use; trained on captions under: {run.data_licence}",
        "training": {
            "photos": len(train),
            "captions": dict(counts),
            "epochs": best.number,
            "options": asdict(run.options),
        },
        "validation_mrr": {k: round(v, 4) for k, v in best.validation.items()},
    }
