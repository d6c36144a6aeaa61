"""What all training runs share: reading their data, fitting with a log and a checkpoint, the card.

Networks, losses and loops know nothing of runs; runs put them together.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from capsearch.encoders.data.dataset import CaptionDataset, Source, read, read_labelled
from capsearch.encoders.data.features import (
    CachedSentenceEncoder,
    FeatureCache,
    Report,
    load_features,
)
from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.image import ImageNetwork
from capsearch.encoders.models.sentence import SentenceEncoder
from capsearch.encoders.settings import LabelledRun, SearchModelRun, TrainingRun
from capsearch.encoders.train.captions import Corpus, Vocabulary, captions_of, shown_concepts
from capsearch.encoders.train.dual_encoder import TrainingOptions, TrainingSet
from capsearch.encoders.train.export import move_projection
from capsearch.encoders.train.loop import Epoch, TrainingLoop
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Vectors

SENTENCE = "use3"


@dataclass(frozen=True, slots=True)
class Listener:
    """Callbacks for the progress of a run: long steps by name and count, epochs as they end."""

    progress: Callable[[str, int, int], None] = lambda stage, done, of: None
    epoch: Callable[[Epoch], None] = lambda epoch: None

    def report(self, stage: str) -> Report:
        """A counter for one long step."""
        return lambda done, of: self.progress(stage, done, of)


def training_options(run: TrainingRun, **more: Any) -> TrainingOptions:
    """The hyperparameters of a run: those of its options that are some, and `more`."""
    names = (option.name for option in fields(TrainingOptions))
    shared = {name: getattr(run, name) for name in names if hasattr(run, name)}
    return TrainingOptions(**{**shared, **more})


def read_split(run: TrainingRun, split: str) -> CaptionDataset:
    """A split of the run's data; `run.limit` applies to the training split.

    DataProblem where no caption is of `run.caption_source`.
    """
    return used_part(run, whole_split(run, split), split)


def used_part(run: TrainingRun, whole: CaptionDataset, split: str) -> CaptionDataset:
    """What a run uses of a split, see `read_split`."""
    data = whole.from_sources(*run.caption_source)
    if not data.images:
        raise DataProblem(f"no caption of split '{split}' is from {', '.join(run.caption_source)}")
    return data.first(run.limit) if run.limit and split == run.train_split else data


def whole_split(run: TrainingRun, split: str) -> CaptionDataset:
    """All images and captions of a split, whatever the run uses of them."""
    return read([Source(path, images=run.images) for path in run.data], splits=[split])


def training_parts(run: LabelledRun) -> dict[str, CaptionDataset]:
    """The captioned training images, and the labelled ones if there are some, by what they are."""
    parts = {run.train_split: read_split(run, run.train_split)}
    if run.labelled:
        parts["labelled images"] = read_labelled(run.labelled, run.all_concepts).split("train")
    return parts


@dataclass(frozen=True, slots=True)
class SplitFeatures:
    """A split's readable images, and their features in one or two views."""

    data: CaptionDataset
    views: Vectors  # (V, N, F)


def split_features(
    run: TrainingRun,
    backbone: ImageNetwork,
    parts: Iterable[tuple[str, CaptionDataset]],
    listener: Listener,
    flip: bool = False,
) -> SplitFeatures:
    """Features of the images of all parts, by name; with `flip` of the flipped images too."""
    cache = FeatureCache(run.features)
    images, views = [], []
    for name, data in parts:
        report = listener.report(f"features of {name}")
        readable, features = load_features(backbone, data, cache, report)
        of_part = [features]
        if flip:
            report = listener.report(f"features of {name}, flipped")
            of_part.append(load_features(backbone, readable, cache, report, flip=True)[1])
        images.append(readable)
        views.append(np.stack(of_part))
    joined = images[0].only([image for part in images for image in part.images])
    return SplitFeatures(joined, np.concatenate(views, axis=1))


def train_and_validation(
    run: LabelledRun, backbone: ImageNetwork, listener: Listener, flip: bool
) -> tuple[SplitFeatures, SplitFeatures]:
    """Training images with their flipped view if `flip`, validation images without."""
    train = split_features(run, backbone, training_parts(run).items(), listener, flip)
    validation = [(run.val_split, read_split(run, run.val_split))]
    return train, split_features(run, backbone, validation, listener)


def sentence_encoder(run: TrainingRun, listener: Listener) -> CachedSentenceEncoder:
    """The sentence encoder with the run's cache."""
    folder = registry.find(SENTENCE, "sentence")
    return CachedSentenceEncoder(
        SentenceEncoder(folder),
        model_folder.digest(folder),
        FeatureCache(run.features),
        listener.report("sentences"),
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
    train_captions, validation_captions = (
        captions_of(data, vocabularies, sentences) for data in (train, validation)
    )
    return Corpus(vocabularies, {}, train_captions, validation_captions, shown_concepts(train))


def fit(run: TrainingRun, loop: TrainingLoop, listener: Listener, first: bool = True) -> Epoch:
    """Train with a log and a checkpoint; afterwards the loop's model holds the best weights.

    `first` False: a later stage of the run, whose epochs are added to the log of the first.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    log = run.folder / model_folder.LOG
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


def checkpoint_of(run: TrainingRun, stage: str = "") -> Path:
    """The checkpoint for --resume: beside the model folder, and removed once that is complete."""
    return run.folder.parent / f"{run.folder.name}{stage}.checkpoint.safetensors"


def card_of(
    run: TrainingRun, options: TrainingOptions, train: TrainingSet, best: Epoch
) -> dict[str, Any]:
    """What every model's card records about its training."""
    return {
        "name": run.name,
        "licence": f"research use; trained on captions under: {run.licence}",
        "training": {
            "images": len(train),
            "captions": {language: len(captions) for language, captions in train.captions.items()},
            "epochs": best.number,
            "options": asdict(options),
        },
        "validation_mrr": rounded(best.validation),
    }


def head_card(
    run: TrainingRun, backbone: ImageNetwork, name: str, best: Epoch, training: Mapping[str, Any]
) -> dict[str, Any]:
    """What the card of a tagger or a captioner records about its training and its backbone."""
    options = {option: getattr(run, option) for option in ("batch_size", "lr", "seed")}
    return {
        "name": run.name,
        "licence": f"research use; trained on captions under: {run.licence}",
        "languages": list(run.languages),
        "backbone": registry.reference(name),
        "backbone_digest": backbone.digest,
        "training": {**training, "epochs": best.number, "options": options},
        "validation": {"metric": best.metric, **rounded(best.validation)},
    }


def rounded(scores: Mapping[str, float]) -> dict[str, float]:
    """Scores as a card has them."""
    return {name: round(value, 4) for name, value in scores.items()}


def requirements_of(
    run: TrainingRun, dimension: int, backbone: str, backbone_digest: str
) -> dict[str, Any]:
    """What a text model's card records about the models it is used with."""
    return {
        "languages": list(run.languages),
        "dimension": dimension,
        "backbone": registry.reference(backbone),
        "backbone_digest": backbone_digest,
        "sentence": SENTENCE,
    }


def serve_like(run: SearchModelRun, folder: Path, listener: Listener) -> None:
    """Move the projection of a finished search model from validation images to `run.like`.

    Nothing changes without `run.like`.
    """
    if not run.like:
        return
    cache = FeatureCache(run.features)
    image = registry.load(str(folder.resolve())).image
    wanted, given = (
        load_features(image, data, cache, listener.report(f"features of {what}"))[1]
        for what, data in (
            ("images to serve", read(run.like)),
            (run.val_split, read_split(run, run.val_split)),
        )
    )
    move_projection(folder, wanted.mean(axis=0) - given.mean(axis=0), len(wanted))
