"""What captions and tags that models wrote are worth: documents with them are kinds of their own.

As for people's captions, the sources are first fused by shares tuned for the ranking, then one
regression turns the fused score into log-odds. Words of generated text are not fitted: what they
say is mostly said by the captions' vectors and the tags already.

Names of what labelled photographs show, as queries to calibrate with.

The objects of captioned photographs are few and well known to every model. Names of the world are
not: among them are some that the model was never trained on, whose best hits are mostly wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibrate.collection import EncodedImages, Rows, described, encode_texts
from capsearch.encoders.calibrate.regression import (
    REFERENCE_SIZE,
    ExampleList,
    Floats,
    fitted_regression,
    sampled,
)
from capsearch.encoders.calibrate.scenarios import (
    MAX_QUERIES,
    SIZES,
    Scenario,
    draw,
    relevance,
    without_captions,
)
from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.features import FeatureCache, Report, load_features
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.classifiers import ConceptClassifiers
from capsearch.encoders.models.registry import Model
from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import names_one_of
from capsearch.engine.evidence import EvidenceModel, KindWeights
from capsearch.engine.metrics import middle_of_best
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import EncodedText, Source

WORDS_WEIGHT = 3.0  # log-odds of all rare words found as words; see docs/ablations.md
GENERATED_WORDS_WEIGHT = 0.5
_NEARLY_ALL = 0.9  # some images lose their only caption to another, as wrong captions
GENERATED_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
# A tag's score is a probability, the others are cosines; of log-probabilities, see engine.evidence.
# Up to .06: names of single objects gain further above (P@10 on validation .85, at .45 .91), but
# queries of a few words, between names and sentences, lose (MRR .40, at .15 .36).
CONCEPT_WEIGHTS = (0.0, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06)
TAG_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)


def generated_kinds(
    model: EvidenceModel,
    described: Sequence[Scenario],
    captioned: Sequence[Scenario],
    clm_weight: float,
    random: np.random.Generator,
) -> dict[str, KindWeights]:
    """The kinds "generated" and "caption+generated", beside those `model` has.

    `captioned` are collections in which people captioned images, too: the second is fitted on them.
    """
    alone: dict[Source, float] = {"image": 1.0}
    beside: dict[Source, float] = {"image": 1.0 - clm_weight, "caption": clm_weight}
    return {
        "generated": _kind(model, described, alone, random),
        "caption+generated": _kind(model, captioned, beside, random),
    }


def _kind(
    model: EvidenceModel,
    described: Sequence[Scenario],
    base: Mapping[Source, float],
    random: np.random.Generator,
) -> KindWeights:
    generated, tag = best_shares(model, described, base)
    shares = fused_shares(base, generated, tag)
    examples = ExampleList()
    for one in described:
        rows_of_kind = np.isnan(one.caption) != ("caption" in base)
        weights = sampled(one, random) * rows_of_kind
        rows, columns = np.nonzero(weights)
        scores = fused(model, one, shares)[rows, columns]
        backgrounds = [one.image_background[rows], one.caption_background[rows]]
        examples.add(one, rows, columns, weights, [scores, *backgrounds])
    # A query's captions in general stand for generated ones too.
    written = shares.get("caption", 0.0) + shares["generated"]
    against: dict[Source, float] = {"image": shares["image"], "caption": written}
    regression = fitted_regression(examples.joined(), model.size_exponent, against)
    slope = max(float(regression.coefficients[0]), 0.0)
    weights_of: dict[Source, float] = {
        source: round(slope * share, 4) for source, share in shares.items()
    }
    weights_of |= {"words": WORDS_WEIGHT, "generated_words": GENERATED_WORDS_WEIGHT}
    background = (round(float(one), 4) for one in regression.coefficients[1:3])
    return KindWeights(
        round(regression.intercept, 4), weights_of, dict(zip(against, background, strict=True))
    )


def best_shares(
    model: EvidenceModel, described: Sequence[Scenario], base: Mapping[Source, float]
) -> tuple[float, float]:
    """The shares of generated captions and of tags with the highest mean average precision.

    Collections of about the reference size decide, in which nearly all images are of the kind. Of
    equal ones the least counts: what adds nothing gets no weight.
    """
    chosen = _usual(described, "caption" in base)
    tags = TAG_SHARES if any(one.tag is not None for one in chosen) else (0.0,)

    def precision(pair: tuple[float, float]) -> float:
        shares = fused_shares(base, *pair)
        found = [average_precision(fused(model, one, shares), one.relevant) for one in chosen]
        return float(np.mean(found)) if found else 0.0

    pairs = sorted(product(GENERATED_SHARES, tags), key=lambda pair: (sum(pair), pair))
    return max(pairs, key=precision)  # the first of equal ones


def best_concept_weight(found: Sequence[Scenario]) -> float:
    """The weight of what queries name, in the score of images alone (engine.evidence).

    The middle of those with nearly the highest mean average precision; 0 without classifiers.
    """
    chosen = [one for one in _usual(found, captioned=False) if one.named is not None]

    def precision(weight: float) -> float:
        weighted = [one.with_named(weight) for one in chosen]
        return float(np.mean([average_precision(one.image, one.relevant) for one in weighted]))

    return middle_of_best(CONCEPT_WEIGHTS, [*map(precision, CONCEPT_WEIGHTS)]) if chosen else 0.0


def _usual(found: Sequence[Scenario], captioned: bool) -> list[Scenario]:
    """Those of about the reference size in which nearly all images, or none, have captions."""
    suited = [one for one in found if _is_of_kind(one, captioned)]
    sizes = (one.image.shape[1] for one in suited)
    size = min(sizes, key=lambda n: abs(n - REFERENCE_SIZE), default=0)
    return [one for one in suited if one.image.shape[1] == size]


def fused_shares(base: Mapping[Source, float], generated: float, tag: float) -> dict[Source, float]:
    """`base` gives way to generated captions; tags come on top."""
    shares: dict[Source, float] = {
        source: (1.0 - generated) * share for source, share in base.items()
    }
    return {**shares, "generated": generated, "tag": tag}


def fused(model: EvidenceModel, one: Scenario, shares: Mapping[Source, float]) -> Floats:
    """(Q, N) the weighted sum of the scores; NaN where a document lacks one with a share."""
    offsets = model.caption_offsets
    scores = shares["image"] * one.image + shares["generated"] * one.best_generated(offsets)
    if "caption" in shares:
        scores = scores + shares["caption"] * (one.caption + offsets.get(one.caption_language, 0.0))
    return scores if one.tag is None else scores + shares["tag"] * one.tag


def average_precision(scores: Floats, relevant: NDArray[np.bool_]) -> float:
    """The mean over queries with a relevant document; with a single one, the MRR."""
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = np.take_along_axis(relevant, order, axis=1)
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    found = (precision * hits).sum(axis=1) / np.maximum(hits.sum(axis=1), 1)
    return float(found[hits.any(axis=1)].mean()) if hits.any() else 0.0


def _is_of_kind(one: Scenario, captioned: bool) -> bool:
    share = float((~np.isnan(one.caption)).mean())
    return share > _NEARLY_ALL if captioned else share == 0.0


SPLIT = "val"  # of encoders.data.labels: neither trained on nor reported
_DRAWS = 4  # of each size: as many queries as the captioned photographs give
_ENOUGH = 20  # names to fit on
_OF_A_SET = 40  # names of one labelled set: models of cars are not more of the world than places
Sort = Literal["short", "unfamiliar", "rare"]  # as in engine.evidence.LengthDependent


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
