"""What all training runs share: their settings, fitting with a log and a checkpoint, the card."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from capsearch.encoders.data.dataset import CaptionDataset, Source, read
from capsearch.encoders.data.features import CachedSentenceEncoder, FeatureCache, Report
from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.image import ImageNetwork
from capsearch.encoders.models.sentence import SentenceEncoder
from capsearch.encoders.train.corpus import (
    MIN_COUNT,
    Corpus,
    Vocabulary,
    build_corpus,
    captions_of,
    shown_concepts,
)
from capsearch.encoders.train.dual_encoder import TrainingOptions, TrainingSet
from capsearch.encoders.train.loop import Epoch, TrainingLoop
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import LANGUAGES

SENTENCE = "use3"
DEFAULT_BACKBONE = "tinyvit-trio"


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for the progress of a run: long steps by name and count, epochs as they end."""

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
    labelled: tuple[Source | Path | str, ...] = ()  # images with labels instead of captions
    all_concepts: bool = False  # of labelled images: none is held out, only photographs are
    like: tuple[Source | Path | str, ...] = ()  # images of the quality that will be searched
    languages: tuple[str, ...] = LANGUAGES
    caption_sources: tuple[str, ...] = ()  # of the captions that are used; none: all
    train_split: str = "train"
    validation_split: str = "val"
    backbone: str = DEFAULT_BACKBONE  # or the initial weights of a backbone run
    cache: Path = Path("cache")
    variant: str = "shared"
    min_count: int = MIN_COUNT
    flip: bool = True
    resume: bool = False
    limit: int | None = None  # training images, for a learning curve
    data_licence: str = "not stated"
    options: TrainingOptions = field(default_factory=TrainingOptions)
    frozen_epochs: int = 3  # on the pretrained features, before the backbone is fine-tuned
    text_name: str = ""  # of the text model that is trained together with a backbone
    initial: str | None = None  # a search model whose text encoders are fine-tuned
    teacher: str | None = None  # a CLIP-like model, whose space the text encoders learn
    sentences: tuple[Path, ...] = ()  # files of sentences without images, for the teacher
    hidden: int | None = None  # units that the initial text encoders are pruned to; None: all

    @property
    def folders(self) -> tuple[Path, ...]:
        """What is written: one model, or a backbone and the text model trained with it."""
        text = (self.output.parent / self.text_name,) if self.text_name else ()
        return (self.output, *text)


def read_split(run: TrainingRun, split: str) -> CaptionDataset:
    """A split of the run's data; `run.limit` applies to the training split.

    DataProblem where no caption is of `run.caption_sources`.
    """
    return used_part(run, whole_split(run, split), split)


def used_part(run: TrainingRun, whole: CaptionDataset, split: str) -> CaptionDataset:
    """What a run uses of a split, see `read_split`."""
    data = whole.from_sources(*run.caption_sources)
    if not data.images:
        raise DataProblem(f"no caption of split '{split}' is from {', '.join(run.caption_sources)}")
    return data.first(run.limit) if run.limit and split == run.train_split else data


def whole_split(run: TrainingRun, split: str) -> CaptionDataset:
    """All images and captions of a split, whatever the run uses of them."""
    return read(run.sources, splits=[split])


def corpus_of(
    run: TrainingRun,
    train: CaptionDataset,
    validation: CaptionDataset,
    listener: Listener,
    without_image: Mapping[str, Sequence[str]] | None = None,
) -> Corpus:
    """The captions of both splits, with new vocabularies and word vectors."""
    return build_corpus(
        train,
        validation,
        run.languages,
        sentence_encoder(run, listener),
        FeatureCache(run.cache),
        run.options.config.word_width,
        run.min_count,
        run.options.seed,
        without_image,
    )


def existing_corpus(
    run: TrainingRun,
    vocabularies: Mapping[str, Vocabulary],
    train: CaptionDataset,
    validation: CaptionDataset,
    listener: Listener,
) -> Corpus:
    """The captions of both splits, with the vocabularies of a model."""
    sentences = sentence_encoder(run, listener)
    return Corpus(
        vocabularies,
        {},
        captions_of(train, vocabularies, sentences),
        captions_of(validation, vocabularies, sentences),
        shown_concepts(train),
    )


def sentence_encoder(run: TrainingRun, listener: Listener) -> CachedSentenceEncoder:
    """The sentence encoder with the run's cache."""
    folder = registry.find(SENTENCE, "sentence")
    return CachedSentenceEncoder(
        SentenceEncoder(folder),
        model_folder.digest(folder),
        FeatureCache(run.cache),
        listener.report("sentences"),
    )


def fit(run: TrainingRun, loop: TrainingLoop, listener: Listener, first: bool = True) -> Epoch:
    """Train with a log and a checkpoint; afterwards the loop's model holds the best weights.

    `first` False: a later stage of the run, whose epochs are added to the log of the first.
    """
    run.output.mkdir(parents=True, exist_ok=True)
    log = run.output / model_folder.LOG
    if run.resume:
        loop.resume()
    else:
        if loop.checkpoint is not None:
            loop.checkpoint.unlink(missing_ok=True)  # of an earlier run with this name
        if first:
            log.unlink(missing_ok=True)

    def logged(epoch: Epoch) -> None:
        listener.epoch(epoch)
        with log.open("a", encoding="utf-8") as lines:
            lines.write(json.dumps(asdict(epoch)) + "\n")

    return trained(loop, replace(listener, epoch=logged))


def trained(loop: TrainingLoop, listener: Listener) -> Epoch:
    """Train to the end; afterwards the loop's model holds the best weights."""
    for epoch in loop.fit(listener.report):
        listener.epoch(epoch)
    assert loop.best is not None  # the first epoch is always the best so far
    loop.model.load_state_dict(loop.averaged.module.state_dict())
    return loop.best


def checkpoint_of(output: Path) -> Path:
    """The checkpoint for --resume: beside the model folder, and removed once that is complete."""
    return output.parent / f"{output.name}.checkpoint.safetensors"


def card_of(run: TrainingRun, train: TrainingSet, best: Epoch) -> dict[str, Any]:
    """What every model's card records about its training."""
    return {
        "name": run.name,
        "licence": f"research use; trained on captions under: {run.data_licence}",
        "training": {
            "images": len(train),
            "captions": {
                language: len(captions.image_rows) for language, captions in train.captions.items()
            },
            "epochs": best.number,
            "options": asdict(run.options),
        },
        "validation_mrr": _rounded(best.validation),
    }


def head_card(
    run: TrainingRun, backbone: ImageNetwork, best: Epoch, training: Mapping[str, Any]
) -> dict[str, Any]:
    """What the card of a tagger or a captioner records about its training and its backbone."""
    options = {name: getattr(run.options, name) for name in ("batch_size", "lr", "seed")}
    return {
        "name": run.name,
        "licence": f"research use; trained on captions under: {run.data_licence}",
        "languages": list(run.languages),
        "backbone": registry.reference(run.backbone),
        "backbone_digest": backbone.digest,
        "training": {**training, "epochs": best.number, "options": options},
        "validation": {"metric": best.metric, **_rounded(best.validation)},
    }


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.items()}


def new_backbone(run: TrainingRun) -> str:
    """What a card calls the backbone that a run makes: its name, or its path if it has no name."""
    named = registry.user_models_dir() / run.name
    return run.name if run.output.absolute() == named.absolute() else f"{run.output.absolute()}"


def requirements_of(run: TrainingRun, backbone_digest: str) -> dict[str, Any]:
    """What a text model's card records about the models it is used with."""
    return {
        "languages": list(run.languages),
        "dimension": run.options.dimension,
        "backbone": registry.reference(run.backbone),
        "backbone_digest": backbone_digest,
        "sentence": SENTENCE,
    }
