"""Quality of what models write about images.

Captions: BLEU, METEOR, ROUGE-L and CIDEr-D, beside the captions of the most similar training image.
Tags: precision, recall and F at five by COCO-CN's protocol, and calibration.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from capsearch.encoders.calibrate.regression import expected_calibration_error
from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.tag_labels import TagLabels, annotate, labels_of
from capsearch.encoders.models.captioner import BATCH, BuiltInCaptioner
from capsearch.encoders.models.image import ImageNetwork, check_backbone
from capsearch.encoders.models.tagger import BuiltInTagger
from capsearch.encoders.train.activations import EncodedImages
from capsearch.encoders.train.caption_metrics import References, all_scores, references_of
from capsearch.engine.errors import DataProblem
from capsearch.engine.metrics import precision_recall_f
from capsearch.engine.records import Vectors
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
        having = [at for at, image in enumerate(train.data.images) if image.captions.get(language)]
        if not having:
            continue
        rows = list(wanted)
        scores = unit(images.pooled[rows]) @ unit(train.pooled[having]).T  # cosine
        nearest = [train.data.images[having[at]] for at in scores.argmax(1)]
        captions = {
            row: image.captions[language][0].text for row, image in zip(rows, nearest, strict=True)
        }
        yield CaptionRow(
            split=images.data.splits[0],
            model=BASELINE,
            language=language,
            images=len(rows),
            scores=all_scores(captions, wanted, language),
        )


def _references(data: CaptionDataset, languages: Sequence[str]) -> References:
    references = {
        language: texts for language, texts in references_of(data, languages).items() if texts
    }
    if not references:
        raise DataProblem(
            f"split '{', '.join(data.splits)}' has no captions in {', '.join(languages)}"
        )
    return references


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
        batch = captioner.caption(features)
        seconds += perf_counter() - started
        written += [{caption.language: caption.text for caption in captions} for captions in batch]
    return written, seconds


FIRST = 5


@dataclass(frozen=True, slots=True)
class TagRow:
    """The figures of one tagger in one language.

    By the protocol of the paper, images are tagged with the five best tags of the language's own
    output, and what captions and human tags name is right. `f_shown` ranks by the calibrated
    probabilities that an index stores. `calibration_error` is theirs.
    """

    split: str
    model: str
    language: str
    images: int
    vocabulary: int
    precision: float
    recall: float
    f: float
    f_shown: float
    calibration_error: float


def evaluate_tags(
    tagger: BuiltInTagger, data: CaptionDataset, pooled: Vectors, most: int | None = None
) -> Iterator[TagRow]:
    """A row for each language in which images have tags; DataProblem if none has.

    With `most`, only so many of the most frequent tags of each language are given and are right.
    """
    languages = tuple(tagger.vocabulary.columns)
    annotations = annotate(data.images, languages)
    labels = labels_of(annotations, tagger.vocabulary, objects=False)
    measured = {
        language: tag_labels for language, tag_labels in labels.items() if _tagged(tag_labels).size
    }
    if not measured:
        raise DataProblem(
            f"split '{', '.join(data.splits)}' names no tag of {tagger.name} in its captions"
        )
    logits, probabilities = tagger.logits(pooled), tagger.probabilities(pooled)
    for language, tag_labels in measured.items():
        columns = tagger.vocabulary.columns[language][:most]  # frequent ones first
        rows = _tagged(tag_labels)
        named = [tag_labels.positives[row] for row in rows.tolist()]
        positives = [right[right < len(columns)] for right in named]
        shown = probabilities[:, columns]
        values, known = (table[:, : len(columns)] for table in tag_labels.dense(rows))
        at = known > 0
        own = logits[language][rows][:, : len(columns)]
        precision, recall, f = precision_recall_f(own, positives, FIRST)
        yield TagRow(
            split=data.splits[0],
            model=tagger.name,
            language=language,
            images=len(rows),
            vocabulary=len(columns),
            precision=precision,
            recall=recall,
            f=f,
            f_shown=precision_recall_f(shown[rows], positives, FIRST)[2],
            calibration_error=expected_calibration_error(
                shown[rows][at].astype(np.float64), values[at].astype(np.float64)
            ),
        )


def _tagged(labels: TagLabels) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Rows of the images that have a tag of this language."""
    return np.array(
        [row for row in np.flatnonzero(labels.captioned).tolist() if len(labels.positives[row])],
        np.int64,
    )
