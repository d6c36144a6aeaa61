"""Names of what labelled photographs show, as queries to calibrate with.

The objects of captioned photographs are few and well known to every model. Names of the world are
not: among them are some that the model was never trained on, whose best hits are mostly wrong.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsearch.encoders import concepts
from capsearch.encoders.calibration.collection import encode_texts
from capsearch.encoders.calibration.scenarios import (
    MAX_QUERIES,
    SIZES,
    Scenario,
    backgrounds,
    draw,
)
from capsearch.encoders.datasets.captioned import Source
from capsearch.encoders.datasets.dataset import read_labelled
from capsearch.encoders.datasets.features import FeatureCache, Report, load_features
from capsearch.encoders.evidence import DocumentBank
from capsearch.encoders.models import Model
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Vectors

SPLIT = "val"  # of encoders.datasets.labelled: neither trained on nor reported
_DRAWS = 4  # of each size: as many queries as the captioned photographs give
_ENOUGH = 20  # names to fit on


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images as documents, and the ids of the concepts they show, broader ones included."""

    images: Vectors  # (N, D)
    shown: tuple[frozenset[str], ...]
    named: tuple[str, ...]  # the concepts that labels stand for


def encode_labelled(
    model: Model,
    sources: Iterable[Source | Path | str],
    cache: FeatureCache | None = None,
    report: Report | None = None,
) -> LabelledImages:
    """The labelled photographs of the validation split; DataProblem if there are none."""
    data, features = load_features(model.image, read_labelled(sources).split(SPLIT), cache, report)
    shown = (
        frozenset(above for one in image.concepts for above in concepts.broader(one))
        for image in data.images
    )
    named = {one for image in data.images for one in image.concepts}
    return LabelledImages(model.image.project(features), tuple(shown), tuple(sorted(named)))


def labelled_names(
    data: LabelledImages,
    encoder: TextEncoder,
    language: str,
    bank: DocumentBank,
    random: np.random.Generator,
    unfamiliar: bool = False,
) -> Iterator[Scenario]:
    """Names of concepts as queries against images without captions, in several sizes.

    Names of which the encoder knows every word, or with `unfamiliar` the others; none at all if
    these are too few.
    """
    names = {one: concepts.by_id(one).name(language) for one in data.named}
    named = [
        one
        for one, name in names.items()
        if bool(encoder.unknown_words(name, language)) == unfamiliar
    ]
    if len(named) < _ENOUGH:
        return
    texts = [names[one] for one in named]
    encoded = encode_texts(encoder, texts, language)
    image_background, caption_background = backgrounds(bank, encoded.visual, encoded.caption)
    everything = np.array([[one in found for found in data.shown] for one in named], bool)
    for size in (size for size in SIZES for _ in range(_DRAWS)):
        chosen = draw(np.arange(len(data.images)), size, random)
        relevant = everything[:, chosen]
        asked = draw(np.flatnonzero(relevant.any(axis=1)), MAX_QUERIES, random)
        scores = (encoded.visual[asked] @ data.images[chosen].T).astype(np.float64)
        yield Scenario(
            scores,
            np.full_like(scores, np.nan),
            relevant[asked],
            image_background[asked],
            caption_background[asked],
            language,
            tuple(texts[row] for row in asked),
        )
