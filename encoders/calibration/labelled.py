"""Names of what labelled photographs show, as queries to calibrate with.

The objects of captioned photographs are few and well known to every model. Names of the world are
not: among them are some that the model was never trained on, whose best hits are mostly wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from capsearch.encoders import concepts
from capsearch.encoders.calibration.collection import EncodedImages, Rows, described, encode_texts
from capsearch.encoders.calibration.scenarios import (
    MAX_QUERIES,
    SIZES,
    Scenario,
    draw,
    relevance,
    without_captions,
)
from capsearch.encoders.concept_classifiers import ConceptClassifiers
from capsearch.encoders.concepts.mentions import names_one_of
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.datasets.features import FeatureCache, Report, load_features
from capsearch.encoders.evidence import DocumentBank
from capsearch.encoders.models import Model
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import EncodedText

SPLIT = "val"  # of encoders.datasets.labelled: neither trained on nor reported
_DRAWS = 4  # of each size: as many queries as the captioned photographs give
_ENOUGH = 20  # names to fit on
_OF_A_SET = 40  # names of one labelled set: models of cars are not more of the world than places
Sort = Literal["short", "unfamiliar", "rare"]  # as in engine.evidence_model.LengthDependent


@dataclass(frozen=True, slots=True)
class LabelledImages:
    """Images whose objects are the ids of the concepts they show, broader ones included."""

    data: EncodedImages  # without captions by people
    sets: Mapping[str, str]  # the concepts that labels stand for, and the labelled set of each


def encode_labelled(
    model: Model,
    chosen: CaptionDataset,
    cache: FeatureCache | None = None,
    report: Report | None = None,
    classifiers: ConceptClassifiers | None = None,
) -> LabelledImages:
    """Labelled photographs, and what the model's heads write of them."""
    data, features = load_features(model.image, chosen, cache, report)
    shown = (
        {above for one in image.concepts for above in concepts.broader(one)}
        for image in data.images
    )
    objects = tuple(tuple(sorted(found)) for found in shown)
    images = model.image.project(features)
    written = described(model, model.enricher(), data, features, report)
    sets = {one: image.labelled_set for image in data.images for one in image.concepts}
    encoded = EncodedImages(images, {}, objects, *written, classifiers)
    return LabelledImages(encoded, dict(sorted(sets.items())))


def labelled_names(
    labelled: LabelledImages,
    encoder: TextEncoder,
    language: str,
    bank: DocumentBank,
    random: np.random.Generator,
    sort: Sort = "short",
    objects: Collection[str] = (),
) -> Iterator[Scenario]:
    """Names of concepts as queries against images without captions, in several sizes.

    Names of one sort; none at all if these are too few. `objects` are the concepts that
    names were fitted on before.
    """
    data = labelled.data
    names = {one: concepts.by_id(one).name(language) for one in labelled.sets}
    by_set: dict[str, list[str]] = defaultdict(list)
    for one, name in names.items():
        if _sort_of(name, encoder, language, objects) == sort:
            by_set[labelled.sets[one]].append(one)
    named = [
        some[at]
        for some in by_set.values()
        for at in draw(np.arange(len(some)), _OF_A_SET, random).tolist()
    ]
    if len(named) < _ENOUGH:
        return
    texts = [names[one] for one in named]
    encoded = encode_texts(encoder, texts, language)
    sizes = [size for size in SIZES for _ in range(_DRAWS)]
    rows = np.arange(len(data.images))
    yield from drawn_names(data, rows, named, texts, encoded, bank, random, language, sizes)


def drawn_names(
    data: EncodedImages,
    rows: Rows,
    labels: Sequence[str],
    texts: Sequence[str],
    encoded: EncodedText,
    bank: DocumentBank,
    random: np.random.Generator,
    language: str,
    sizes: Iterable[int],
) -> Iterator[Scenario]:
    """Names of labels against images that nobody described, drawn from `rows`, of each size.

    `texts` are the names, `encoded` the same in that order; those with a right image are asked.
    """
    everything = relevance(data, labels, rows)
    for size in sizes:
        at = draw(np.arange(len(rows)), size, random)
        chosen, relevant = rows[at], everything[:, at]
        asked = draw(np.flatnonzero(relevant.any(axis=1)), MAX_QUERIES, random)
        yield without_captions(
            data,
            chosen,
            encoded.at(asked),
            relevant[asked],
            bank,
            language,
            [texts[row] for row in asked],
        )


def _sort_of(name: str, encoder: TextEncoder, language: str, objects: Collection[str]) -> Sort:
    if encoder.unknown_words(name, language):
        return "unfamiliar"
    return "short" if not objects or names_one_of(name, language, objects) else "rare"
