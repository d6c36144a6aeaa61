"""Quality of generated captions, beside the captions of the most similar training image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

import numpy as np

from capsearch.encoders.captioners import BATCH, BuiltInCaptioner
from capsearch.encoders.captioners.metrics import References, all_scores, references_of
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.datasets.features import Report
from capsearch.encoders.image import ImageNetwork, check_backbone
from capsearch.encoders.training.fit.feature_maps import EncodedImages, load_feature_maps
from capsearch.engine.errors import DataProblem
from capsearch.engine.vectors import unit

BASELINE = "nearest neighbour"


@dataclass(frozen=True, slots=True)
class CaptionRow:
    """The figures of one model in one language."""

    split: str
    model: str
    language: str
    images: int
    scores: Mapping[str, float]
    ms_per_image: float | None = None  # of all languages together; None for the baseline
    examples: tuple[tuple[str, str], ...] = ()  # (image id, caption)


def encode(
    backbone: ImageNetwork, data: CaptionDataset, cache: Path, report: Report | None = None
) -> EncodedImages:
    """A split's feature maps; those of the training of a captioner are reused."""
    return load_feature_maps(backbone, data, cache, report)


def evaluate(
    captioner: BuiltInCaptioner, backbone: ImageNetwork, images: EncodedImages, examples: int = 0
) -> Iterator[CaptionRow]:
    """A row for each language that has references.

    UnknownModel for features of another backbone than the captioner's, DataProblem without
    references.
    """
    check_backbone(captioner.card, backbone)
    references = _references(images.data, captioner.languages)
    written, seconds = _write(captioner, images)
    for language, wanted in references.items():
        captions = {row: written[row][language] for row in wanted}
        yield CaptionRow(
            split=images.data.splits[0],
            model=captioner.name,
            language=language,
            images=len(wanted),
            scores=all_scores(captions, wanted, language),
            ms_per_image=1000 * seconds / len(images),
            examples=tuple(
                (images.data.images[row].id, captions[row]) for row in list(wanted)[:examples]
            ),
        )


def nearest_neighbour(
    train: EncodedImages, images: EncodedImages, languages: Sequence[str]
) -> Iterator[CaptionRow]:
    """The first caption of the most similar training image that has one (Karpathy 2016, 4.2)."""
    references = _references(images.data, languages)
    for language, wanted in references.items():
        having = [at for at, one in enumerate(train.data.images) if one.captions.get(language)]
        if not having:
            continue
        rows = list(wanted)
        scores = unit(images.pooled[rows]) @ unit(train.pooled[having]).T  # cosine
        nearest = [train.data.images[having[at]] for at in scores.argmax(1)]
        captions = {
            row: one.captions[language][0].text for row, one in zip(rows, nearest, strict=True)
        }
        yield CaptionRow(
            split=images.data.splits[0],
            model=BASELINE,
            language=language,
            images=len(rows),
            scores=all_scores(captions, wanted, language),
        )


def _references(data: CaptionDataset, languages: Sequence[str]) -> References:
    found = {one: texts for one, texts in references_of(data, languages).items() if texts}
    if not found:
        raise DataProblem(
            f"split '{', '.join(data.splits)}' has no captions in {', '.join(languages)}"
        )
    return found


def _write(
    captioner: BuiltInCaptioner, images: EncodedImages
) -> tuple[Sequence[Mapping[str, str]], float]:
    """Captions by language for each image, and the seconds that decoding took."""
    written: list[Mapping[str, str]] = []
    seconds = 0.0
    captioner.caption(images.at(np.arange(min(len(images), 1))))  # opens the weights
    for first in range(0, len(images), BATCH):
        features = images.at(np.arange(first, min(first + BATCH, len(images))))
        started = perf_counter()
        found = captioner.caption(features)
        seconds += perf_counter() - started
        written += [{one.language: one.text for one in captions} for captions in found]
    return written, seconds
