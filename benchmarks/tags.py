"""Quality of tags: precision, recall and F at five by COCO-CN's protocol, and calibration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from capsearch.encoders.calibration.logistic import expected_calibration_error
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.tag_labels import TagLabels, annotate, labels_of
from capsearch.encoders.taggers import BuiltInTagger
from capsearch.engine.errors import DataProblem
from capsearch.engine.metrics import precision_recall_f
from capsearch.engine.records import Vectors

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


def evaluate(
    tagger: BuiltInTagger, data: CaptionDataset, pooled: Vectors, most: int | None = None
) -> Iterator[TagRow]:
    """A row for each language in which images have tags; DataProblem if none has.

    With `most`, only so many of the most frequent tags of each language are given and are right.
    """
    languages = tuple(tagger.vocabulary.columns)
    annotations = annotate(data.images, languages)
    labels = labels_of(annotations, tagger.vocabulary, objects=False)
    measured = {one: found for one, found in labels.items() if _tagged(found).size}
    if not measured:
        raise DataProblem(
            f"split '{', '.join(data.splits)}' names no tag of {tagger.name} in its captions"
        )
    logits, probabilities = tagger.logits(pooled), tagger.probabilities(pooled)
    for language, found in measured.items():
        columns = tagger.vocabulary.columns[language][:most]  # frequent ones first
        rows = _tagged(found)
        named = [found.positives[row] for row in rows.tolist()]
        positives = [one[one < len(columns)] for one in named]
        shown = probabilities[:, columns]
        values, known = (one[:, : len(columns)] for one in found.dense(rows))
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
