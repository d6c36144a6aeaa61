"""Fits an EvidenceModel for each query language, and the cut-off below which nothing is shown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from capsearch.encoders.calibration import logistic
from capsearch.encoders.calibration.collection import EncodedImages, encode_texts
from capsearch.encoders.calibration.logistic import Floats
from capsearch.encoders.calibration.scenarios import Scenario, names, scenarios
from capsearch.encoders.evidence import DocumentBank
from capsearch.engine.errors import DataProblem
from capsearch.engine.evidence import Evidence
from capsearch.engine.evidence_model import EvidenceModel, KindWeights, LengthDependent
from capsearch.engine.fusion import CalibratedEvidence
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Source

REFERENCE_SIZE = 1000
BANK = 750  # images and captions
HARD, RANDOM = 30, 40  # negatives a query: the best-scored ones, and some others
LOST = 0.03  # of the queries may lose their first right hit to the cut-off
TOP = 1  # of a sentence's hits, those that the cut-off must not lose
WORDS_WEIGHT = 3.0  # log-odds of all rare words found as words; see docs/ablations.md


@dataclass
class _Examples:
    """Pairs of a query and a document, with sampling weights."""

    features: list[Floats] = field(default_factory=list)
    labels: list[Floats] = field(default_factory=list)
    weights: list[Floats] = field(default_factory=list)
    log_sizes: list[Floats] = field(default_factory=list)

    def joined(self) -> tuple[Floats, Floats, Floats, Floats]:
        parts = (self.features, self.labels, self.weights, self.log_sizes)
        features, labels, weights, sizes = (np.concatenate(one) for one in parts)
        return features, labels, weights, sizes


def document_bank(data: EncodedImages, seed: int = 0) -> DocumentBank:
    """Images and captions in general, the languages in equal parts."""
    random = np.random.default_rng(seed)
    images = data.images[random.permutation(len(data.images))[:BANK]]
    each = BANK // max(len(data.captions), 1)
    captions = [
        one.documents[random.permutation(len(one.documents))[:each]]
        for one in data.captions.values()
    ]
    if not captions or not len(images):
        raise DataProblem("calibration needs images with captions for its bank")
    return DocumentBank(images, np.concatenate(captions))


def fit_evidence(
    encoder: TextEncoder,
    data: EncodedImages,
    bank: DocumentBank,
    object_names: Mapping[str, Mapping[str, str]],
    seed: int = 0,
) -> dict[str, LengthDependent]:
    """For every language the data has captions in, what evidence is worth to its queries.

    `object_names[language]` names the labels of `data.objects`: such short queries have many
    right answers where a sentence has one, so they are fitted apart. Without names, sentences
    stand for both.
    """
    fitted = {}
    for language in data.captions:
        random = np.random.default_rng(seed)
        sentences = list(scenarios(data, language, bank, random))
        if not sentences:
            raise DataProblem(f"no {language} captions to calibrate with")
        weight = encoder.clm_weight(language)
        long = _fit(sentences, weight, random, first=TOP)
        labels = object_names.get(language, {})
        encoded = encode_texts(encoder, list(labels.values()), language)
        short = list(names(data, encoded, list(labels), bank, random, language))
        fitted[language] = LengthDependent(
            short=_fit(short, weight, random, first=None) if short else long, long=long
        )
    return fitted


def _fit(
    found: Sequence[Scenario], clm_weight: float, random: np.random.Generator, first: int | None
) -> EvidenceModel:
    """Both kinds of documents; `first` limits the hits that the cut-off must not lose."""
    examples = _examples(found, random, clm_weight, captioned=False)
    features, labels, weights, sizes = examples
    free = logistic.fit(np.c_[features, sizes], labels, weights, np.zeros(len(labels)))
    exponent = round(float(np.clip(-free.coefficients[-1], 0.0, 1.0)), 3)
    image = _kind(examples, exponent, {"image": 1.0})
    shares: dict[Source, float] = {"image": 1.0 - clm_weight, "caption": clm_weight}
    caption = _kind(_examples(found, random, clm_weight, captioned=True), exponent, shares)
    model = EvidenceModel({"": image, "caption": caption}, REFERENCE_SIZE, exponent, cutoff=0.0)
    return replace(model, cutoff=_cutoff(model, found, first))


def _kind(
    examples: tuple[Floats, Floats, Floats, Floats],
    exponent: float,
    shares: Mapping[Source, float],
) -> KindWeights:
    """One kind of documents: a slope for the fused score, shared out among its sources."""
    features, labels, weights, sizes = examples
    fitted = logistic.fit(features, labels, weights, -exponent * sizes)
    slope, *background = (round(float(one), 4) for one in fitted.coefficients)
    slope = max(slope, 0.0)  # more similar is never less relevant
    values: dict[Source, float] = {
        source: round(slope * share, 4) for source, share in shares.items()
    }
    values["words"] = WORDS_WEIGHT
    return KindWeights(
        round(fitted.intercept, 4), values, dict(zip(shares, background, strict=True))
    )


def _examples(
    found: Iterable[Scenario],
    random: np.random.Generator,
    clm_weight: float,
    captioned: bool,
) -> tuple[Floats, Floats, Floats, Floats]:
    """All positives, the hardest negatives, and a weighted sample of the others.

    Features are the fused score and the backgrounds. Within documents that all have captions
    the ranking is the paper's: weight * CL + (1 - weight) * CM, tuned for MRR. Letting the
    regression choose the weight ranks a little worse.
    """
    examples = _Examples()
    for one in found:
        has_caption = ~np.isnan(one.caption)
        weights = _sampled(one, random) * (has_caption if captioned else ~has_caption)
        rows, columns = np.nonzero(weights)
        scores, backgrounds = one.image[rows, columns], [one.image_background[rows]]
        if captioned:
            scores = (1 - clm_weight) * scores + clm_weight * one.caption[rows, columns]
            backgrounds.append(one.caption_background[rows])
        examples.features.append(np.stack([scores, *backgrounds], axis=1))
        examples.labels.append(one.relevant[rows, columns].astype(float))
        examples.weights.append(weights[rows, columns])
        size = np.log(one.image.shape[1] / REFERENCE_SIZE)
        examples.log_sizes.append(np.full(len(rows), size))
    return examples.joined()


def _sampled(one: Scenario, random: np.random.Generator) -> Floats:
    """(Q, N) sampling weights, zero for pairs left out."""
    hard = one.relevant.copy()
    for scores in (one.image, np.nan_to_num(one.caption, nan=-np.inf)):
        best = np.argsort(-scores, axis=1)[:, :HARD]
        np.put_along_axis(hard, best, True, axis=1)
    others = (~hard).sum(axis=1, keepdims=True)
    easy = ~hard & (random.random(hard.shape) < RANDOM / np.maximum(others, 1))
    drawn = np.maximum(easy.sum(axis=1, keepdims=True), 1)
    return np.where(hard, 1.0, np.where(easy, others / drawn, 0.0))


def _cutoff(model: EvidenceModel, found: Sequence[Scenario], first: int | None) -> float:
    """The probability that all but a few first right hits reach, in the largest collections.

    With `first`, only hits that stand among so many count: what ranks behind them is lost anyway.
    """
    largest = max(one.image.shape[1] for one in found)
    reached = [
        [right for row in range(len(one.image)) if (right := _first_right(model, one, row, first))]
        for one in found
        if one.image.shape[1] == largest
    ]
    # Captions only make right hits surer, so images without any decide.
    return round(min((float(np.quantile(one, LOST)) for one in reached if one), default=0.0), 4)


def _first_right(
    model: EvidenceModel, scenario: Scenario, row: int, first: int | None
) -> float | None:
    """The probability of a query's first right hit; None where it is not among `first`."""
    values = probabilities(model, scenario, row)
    right = float(values[scenario.relevant[row]].max())
    return right if first is None or (values > right).sum() < first else None


def probabilities(model: EvidenceModel, scenario: Scenario, row: int) -> Floats:
    """(N,) what one query of a scenario gives every document."""
    fusion = fusion_of(model, scenario, row)
    return fusion.shown(fusion.scores(evidence_of(scenario, row)))


def fusion_of(model: EvidenceModel, scenario: Scenario, row: int) -> CalibratedEvidence:
    """The fusion of one query of a scenario."""
    background: dict[Source, float] = {
        "image": float(scenario.image_background[row]),
        "caption": float(scenario.caption_background[row]),
    }
    return CalibratedEvidence(model, background, scenario.image.shape[1])


def evidence_of(scenario: Scenario, row: int) -> Evidence:
    """The evidence of one query of a scenario."""
    count = scenario.image.shape[1]
    return Evidence.of(count, image=scenario.image[row], caption=scenario.caption[row])
