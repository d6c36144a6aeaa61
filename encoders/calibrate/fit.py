"""Fits an EvidenceModel for each sort of queries in each language, with its cut-offs.

Sentences are fitted first. Names of things have many right answers where a sentence has one, so
they are fitted apart, in up to three sorts (`name_sorts`). For every sort the kinds of documents
are fitted one after the other: the sources that a kind has are fused by shares tuned for the
ranking, then one regression turns the fused score into log-odds. Words of generated text are not
fitted: what they say is mostly said by the captions' vectors and the tags already.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibrate import regression
from capsearch.encoders.calibrate.collection import EncodedImages, LabelledImages
from capsearch.encoders.calibrate.regression import (
    REFERENCE_SIZE,
    ExampleList,
    Examples,
    Regression,
    fitted_regression,
    sampled,
)
from capsearch.encoders.calibrate.scenarios import (
    Scenario,
    drawn_names,
    labelled_names,
    labelled_rows,
    object_names,
    sentences,
)
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.scores import encode_queries
from capsearch.engine.errors import DataProblem
from capsearch.engine.evidence import EvidenceModel, Floats, KindWeights, LengthDependent
from capsearch.engine.metrics import middle_of_best
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Source

BANK = 750  # images and captions
# The share of the queries that may lose all hits to the cut-off, and of right hits their place.
LOST_NAMES, LOST_SENTENCES, LOST_PLACES = 0.02, 0.004, 0.01
FIRST = 10  # hits that count for the cut-offs
# Collections for the cut-offs of objects' names: these are few, and what 2 % of them reach differs
# from one collection to the next.
_CUTOFF_DRAWS = 24
# Log-odds of all rare words found as words, in what people and in what models wrote; see
# docs/ablations.md.
WORDS: Mapping[Source, float] = {"words": 3.0}
GENERATED_WORDS: Mapping[Source, float] = {"words": 3.0, "generated_words": 0.5}
_NEARLY_ALL = 0.9  # some images lose their only caption to another, as wrong captions
GENERATED_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
# A tag's score is a probability, the others are cosines; of log-probabilities, see engine.evidence.
TAG_SHARES = (0.0, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0)
# Up to .06: names of single objects gain further above (P@10 on validation .85, at .45 .91), but
# queries of a few words, between names and sentences, lose (MRR .40, at .15 .36).
CONCEPT_WEIGHTS = (0.0, 0.0025, 0.005, 0.0075, 0.01, 0.0125, 0.015, 0.02, 0.025, 0.03, 0.04, 0.06)


@dataclass(frozen=True, slots=True)
class QuerySort:
    """Queries that are fitted apart, in the collections they are asked in."""

    collections: Sequence[Scenario]
    lost: float = LOST_NAMES  # the share of the queries that may lose all hits to the cut-off
    for_cutoffs: Sequence[Scenario] = ()  # further collections, for the cut-offs alone


def document_bank(data: EncodedImages, seed: int = 0) -> DocumentBank:
    """Images and captions in general, the languages in equal parts."""
    random = np.random.default_rng(seed)
    images = data.images[random.permutation(len(data.images))[:BANK]]
    each = BANK // max(len(data.captions), 1)
    captions = [
        captions.documents[random.permutation(len(captions.documents))[:each]]
        for captions in data.captions.values()
    ]
    if not captions or not len(images):
        raise DataProblem("calibration needs images with captions for its bank")
    return DocumentBank(images, np.concatenate(captions))


def fit_evidence(
    encoder: TextEncoder,
    data: EncodedImages,
    bank: DocumentBank,
    names: Mapping[str, Mapping[str, str]],
    labelled: LabelledImages | None = None,
    objects: Collection[str] = (),
    seed: int = 0,
) -> dict[str, LengthDependent]:
    """For every language the data has captions in, what evidence is worth to its queries.

    `names[language]` has the names of the labels of `data.objects`, and `objects` the concepts
    that they name. Without names of either these or `labelled` images, names count as sentences.
    """
    fitted = {}
    for language in data.captions:
        random = np.random.default_rng(seed)
        described = list(sentences(data, language, bank, random))
        if not described:
            raise DataProblem(f"no {language} captions to calibrate with")
        weight = encoder.convex(language).weight
        long = _fit(QuerySort(described, LOST_SENTENCES), described, weight, random)
        sorts = name_sorts(
            encoder, data, bank, language, names.get(language, {}), labelled, objects, random
        )
        models = {
            name: _fit(sort, described, weight, random)
            for name, sort in sorts.items()
            if sort.collections
        }
        fitted[language] = LengthDependent(
            models.get("short", long), long, models.get("unfamiliar"), models.get("rare")
        )
    return fitted


def name_sorts(
    encoder: TextEncoder,
    data: EncodedImages,
    bank: DocumentBank,
    language: str,
    names: Mapping[str, str],
    labelled: LabelledImages | None,
    objects: Collection[str],
    random: np.random.Generator,
) -> Mapping[Literal["unfamiliar", "rare", "short"], QuerySort]:
    """The sorts of names, in the order in which they are fitted; some have no collections.

    short        objects that people labelled; where they labelled none, what labelled images show
    unfamiliar   names with unknown words, of what labelled images show
    rare         names of other things than `objects`, likewise
    """
    queries = encode_queries(encoder, list(names.values()), language)
    of_objects = list(object_names(data, queries, names, bank, random))
    sizes = [REFERENCE_SIZE] * (_CUTOFF_DRAWS if of_objects else 0)
    rows = labelled_rows(data)
    for_cutoffs = list(drawn_names(data, rows, queries, names, bank, random, sizes))
    short, unfamiliar, rare = (
        list(labelled_names(labelled, encoder, language, bank, random, sort, objects))
        if labelled is not None
        else []
        for sort in ("short", "unfamiliar", "rare")
    )
    return {
        "unfamiliar": QuerySort(unfamiliar),
        "rare": QuerySort(rare),
        "short": QuerySort(of_objects or short, for_cutoffs=for_cutoffs),
    }


def _fit(
    sort: QuerySort,
    described: Sequence[Scenario],
    clm_weight: float,
    random: np.random.Generator,
) -> EvidenceModel:
    """All kinds of documents, and the cut-offs.

    What captions are worth is fitted on `described` where no collection of the sort has any.
    """
    concept_weight = best_concept_weight(sort.collections)
    collections, described, for_cutoffs = (
        [scenario.with_named(concept_weight) for scenario in some]
        for some in (sort.collections, described, sort.for_cutoffs)
    )
    alone: dict[Source, float] = {"image": 1.0}
    beside: dict[Source, float] = {"image": 1.0 - clm_weight, "caption": clm_weight}
    examples = _examples(collections, random, clm_weight, captioned=False)
    features, labels, weights, sizes = examples
    free = regression.fit(np.c_[features, sizes], labels, weights, np.zeros(len(labels)))
    exponent = round(float(np.clip(-free.coefficients[-1], 0.0, 1.0)), 3)
    fitted = fitted_regression(examples, exponent, alone)
    kinds = {"": _kind_weights(fitted, alone, alone, WORDS)}
    captioned = [
        scenario for scenario in collections if not np.isnan(scenario.caption).all()
    ] or described
    languages = sorted({scenario.caption_language for scenario in captioned})
    examples = _examples(captioned, random, clm_weight, captioned=True, languages=languages)
    fitted = fitted_regression(examples, exponent, beside)
    kinds["caption"] = _kind_weights(fitted, beside, beside, WORDS)
    offsets = _offsets(fitted, kinds["caption"], languages)
    written = [scenario for scenario in collections if scenario.generated]
    if written:
        both = [scenario for scenario in captioned if scenario.generated]
        kinds["generated"] = _generated_kind(written, alone, offsets, exponent, random)
        kinds["caption+generated"] = _generated_kind(both, beside, offsets, exponent, random)
    model = EvidenceModel(
        kinds,
        REFERENCE_SIZE,
        exponent,
        0.0,
        caption_offsets=offsets,
        concept_weight=concept_weight,
    )
    return _with_cutoffs(model, [*collections, *for_cutoffs], sort.lost)


def _kind_weights(
    fitted: Regression,
    shares: Mapping[Source, float],
    backgrounds: Collection[Source],
    words: Mapping[Source, float],
) -> KindWeights:
    """One kind of documents: a slope for the fused score, shared out among its sources."""
    slope = max(float(fitted.coefficients[0]), 0.0)  # more similar is never less relevant
    weights = {source: round(slope * share, 4) for source, share in shares.items()}
    coefficients = fitted.coefficients[1 : 1 + len(backgrounds)]
    background = (round(float(value), 4) for value in coefficients)
    return KindWeights(
        round(fitted.intercept, 4),
        {**weights, **words},
        dict(zip(backgrounds, background, strict=True)),
    )


def _offsets(fitted: Regression, kind: KindWeights, languages: Sequence[str]) -> dict[str, float]:
    """What a caption's language adds to its score; the first language is the reference."""
    weight = kind.weights["caption"]
    coefficients = fitted.coefficients[len(fitted.coefficients) - len(languages) + 1 :]
    if not weight:
        return {}
    values = {
        language: round(float(value) / weight, 4)
        for language, value in zip(languages[1:], coefficients, strict=True)
    }
    return {languages[0]: 0.0, **values}


def _examples(
    collections: Sequence[Scenario],
    random: np.random.Generator,
    clm_weight: float,
    captioned: bool,
    languages: Sequence[str] = (),
) -> Examples:
    """All positives, the hardest negatives, and a weighted sample of the others.

    Features are the fused score, the backgrounds, and the captions' language but the first. Within
    documents that all have captions the ranking is the paper's: weight * CL + (1 - weight) * CM,
    tuned for MRR. Letting the regression choose the weight ranks a little worse.
    """
    examples = ExampleList()
    for scenario in collections:
        has_caption = ~np.isnan(scenario.caption)
        weights = sampled(scenario, random) * (has_caption if captioned else ~has_caption)
        rows, columns = np.nonzero(weights)
        scores, backgrounds = scenario.image[rows, columns], [scenario.image_background[rows]]
        if captioned:
            scores = (1 - clm_weight) * scores + clm_weight * scenario.caption[rows, columns]
            backgrounds.append(scenario.caption_background[rows])
            backgrounds += [
                np.full(len(rows), float(scenario.caption_language == other))
                for other in languages[1:]
            ]
        examples.add(scenario, rows, columns, weights, [scores, *backgrounds])
    return examples.joined()


def _generated_kind(
    collections: Sequence[Scenario],
    base: Mapping[Source, float],
    offsets: Mapping[str, float],
    exponent: float,
    random: np.random.Generator,
) -> KindWeights:
    """Documents of which a model wrote captions and tags, beside what `base` has."""
    shares = fused_shares(base, *best_shares(collections, base, offsets))
    examples = ExampleList()
    for scenario in collections:
        rows_of_kind = np.isnan(scenario.caption) != ("caption" in base)
        weights = sampled(scenario, random) * rows_of_kind
        rows, columns = np.nonzero(weights)
        scores = fused(scenario, shares, offsets)[rows, columns]
        backgrounds = [scenario.image_background[rows], scenario.caption_background[rows]]
        examples.add(scenario, rows, columns, weights, [scores, *backgrounds])
    # A query's captions in general stand for generated ones too.
    captions = shares.get("caption", 0.0) + shares["generated"]
    against: dict[Source, float] = {"image": shares["image"], "caption": captions}
    fitted = fitted_regression(examples.joined(), exponent, against)
    return _kind_weights(fitted, shares, against, GENERATED_WORDS)


def best_shares(
    collections: Sequence[Scenario], base: Mapping[Source, float], offsets: Mapping[str, float]
) -> tuple[float, float]:
    """The shares of generated captions and of tags with the highest mean average precision.

    Collections of about the reference size decide, in which nearly all images are of the kind. Of
    equal ones the least counts: what adds nothing gets no weight.
    """
    chosen = _usual(collections, "caption" in base)
    tags = TAG_SHARES if any(scenario.tag is not None for scenario in chosen) else (0.0,)

    def precision(pair: tuple[float, float]) -> float:
        shares = fused_shares(base, *pair)
        values = [
            average_precision(fused(scenario, shares, offsets), scenario.relevant)
            for scenario in chosen
        ]
        return float(np.mean(values)) if values else 0.0

    pairs = sorted(product(GENERATED_SHARES, tags), key=lambda pair: (sum(pair), pair))
    return max(pairs, key=precision)  # the first of equal ones


def best_concept_weight(collections: Sequence[Scenario]) -> float:
    """The weight of what queries name, in the score of images alone (engine.evidence).

    The middle of those with nearly the highest mean average precision; 0 without classifiers.
    """
    chosen = [
        scenario for scenario in _usual(collections, captioned=False) if scenario.named is not None
    ]

    def precision(weight: float) -> float:
        weighted = [scenario.with_named(weight) for scenario in chosen]
        return float(
            np.mean([average_precision(scenario.image, scenario.relevant) for scenario in weighted])
        )

    return middle_of_best(CONCEPT_WEIGHTS, [*map(precision, CONCEPT_WEIGHTS)]) if chosen else 0.0


def _usual(collections: Sequence[Scenario], captioned: bool) -> list[Scenario]:
    """Those of about the reference size in which nearly all images, or none, have captions."""
    suited = [scenario for scenario in collections if _is_of_kind(scenario, captioned)]
    sizes = (scenario.image.shape[1] for scenario in suited)
    size = min(sizes, key=lambda n: abs(n - REFERENCE_SIZE), default=0)
    return [scenario for scenario in suited if scenario.image.shape[1] == size]


def _is_of_kind(scenario: Scenario, captioned: bool) -> bool:
    share = float((~np.isnan(scenario.caption)).mean()) if scenario.caption.size else np.nan
    return share > _NEARLY_ALL if captioned else share == 0.0


def fused_shares(base: Mapping[Source, float], generated: float, tag: float) -> dict[Source, float]:
    """`base` gives way to generated captions; tags come on top."""
    shares: dict[Source, float] = {
        source: (1.0 - generated) * share for source, share in base.items()
    }
    return {**shares, "generated": generated, "tag": tag}


def fused(
    scenario: Scenario, shares: Mapping[Source, float], offsets: Mapping[str, float]
) -> Floats:
    """(Q, N) the weighted sum of the scores; NaN where a document lacks a source with a share."""
    scores = shares["image"] * scenario.image + shares["generated"] * scenario.best_generated(
        offsets
    )
    if "caption" in shares:
        scores = scores + shares["caption"] * (
            scenario.caption + offsets.get(scenario.caption_language, 0.0)
        )
    return scores if scenario.tag is None else scores + shares["tag"] * scenario.tag


def average_precision(scores: Floats, relevant: NDArray[np.bool_]) -> float:
    """The mean over queries with a relevant document; with a single one, the MRR."""
    order = np.argsort(-scores, axis=1, kind="stable")
    hits = np.take_along_axis(relevant, order, axis=1)
    precision = np.cumsum(hits, axis=1) / np.arange(1, hits.shape[1] + 1)
    average = (precision * hits).sum(axis=1) / np.maximum(hits.sum(axis=1), 1)
    return float(average[hits.any(axis=1)].mean()) if hits.any() else 0.0


def _with_cutoffs(
    model: EvidenceModel, collections: Sequence[Scenario], lost: float
) -> EvidenceModel:
    """The model with what all but a few best hits reach, and all but a few right ones.

    Only queries with a right hit among the first count. Captions by people only make hits surer,
    so collections without any decide, of about the reference size: as `capsearch index` leaves
    them, with what models wrote if they did, and as `--no-enrich` does.
    """
    sizes = (scenario.image.shape[1] for scenario in collections)
    size = min(sizes, key=lambda n: abs(n - REFERENCE_SIZE))
    chosen = [
        scenario
        for scenario in collections
        if scenario.image.shape[1] == size and np.isnan(scenario.caption).all()
    ]
    first, others = _reached(
        model, [replace(scenario, generated={}, tag=None) for scenario in chosen], lost
    )
    described = 0.0
    if any(scenario.generated for scenario in chosen):
        described, again = _reached(model, chosen, lost)
        others = min(others, again)
    return replace(
        model,
        cutoff=round(first, 4),
        tail_cutoff=round(min(first, others), 4),
        described_cutoff=round(described, 4),
    )


def _reached(
    model: EvidenceModel, collections: Sequence[Scenario], lost: float
) -> tuple[float, float]:
    """The probability that all but `lost` best hits reach, and all but a few right ones."""
    best, right = [], []
    for scenario in collections:
        for row in range(len(scenario.image)):
            values = scenario.probabilities(row, model)
            first = np.argsort(-values)[:FIRST]
            hits = values[first][scenario.relevant[row][first]]
            if len(hits):
                best.append(values[first[0]])
                right.extend(hits)
    if not best:
        return 0.0, 0.0
    return float(np.quantile(best, lost)), float(np.quantile(right, LOST_PLACES))
