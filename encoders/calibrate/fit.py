"""Fits an EvidenceModel for each query language, and the cut-off below which nothing is shown."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from capsearch.encoders.calibrate import regression
from capsearch.encoders.calibrate.collection import EncodedImages, encode_texts
from capsearch.encoders.calibrate.generated import (
    WORDS_WEIGHT,
    LabelledImages,
    Sort,
    best_concept_weight,
    drawn_names,
    generated_kinds,
    labelled_names,
)
from capsearch.encoders.calibrate.regression import (
    REFERENCE_SIZE,
    ExampleList,
    Examples,
    Floats,
    Regression,
    fitted_regression,
    sampled,
)
from capsearch.encoders.calibrate.scenarios import Scenario, names, scenarios
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.engine.errors import DataProblem
from capsearch.engine.evidence import Evidence, EvidenceModel, KindWeights, LengthDependent
from capsearch.engine.fusion import CalibratedEvidence
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Source

BANK = 750  # images and captions
# The share of the queries that may lose all hits to the cut-off, and of right hits their place.
LOST_NAMES, LOST_SENTENCES, LOST_PLACES = 0.02, 0.004, 0.01
FIRST = 10  # hits that count for the cut-offs
# Collections for the cut-offs of objects' names: these are few, and what 2 % of them reach differs
# from one collection to the next.
_DRAWS = 24


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
    labelled: LabelledImages | None = None,
    objects: Collection[str] = (),
    seed: int = 0,
) -> dict[str, LengthDependent]:
    """For every language the data has captions in, what evidence is worth to its queries.

    `object_names[language]` names the labels of `data.objects`: such short queries have many
    right answers where a sentence has one, so they are fitted apart. Without them the names of what
    `labelled` images show take their place, and without these, sentences. Two more sorts of names
    are fitted on `labelled` images: those with unknown words, and those of other things than
    `objects`, the concepts that `object_names` name.
    """
    fitted = {}
    for language in data.captions:
        random = np.random.default_rng(seed)
        sentences = list(scenarios(data, language, bank, random))
        if not sentences:
            raise DataProblem(f"no {language} captions to calibrate with")
        weight = encoder.clm_weight(language)
        long = _fit(sentences, sentences, weight, random)
        labels = object_names.get(language, {})
        encoded = encode_texts(encoder, list(labels.values()), language)
        short = list(names(data, encoded, labels, bank, random, language))
        plain = list(
            drawn_names(
                data,
                np.array([row for row, found in enumerate(data.objects) if found], np.int64),
                list(labels),
                list(labels.values()),
                encoded,
                bank,
                random,
                language,
                [REFERENCE_SIZE] * (_DRAWS if short else 0),
            )
        )
        further: dict[Sort, list[Scenario]] = {"short": [], "unfamiliar": [], "rare": []}
        if labelled is not None:
            for sort, found in further.items():
                found += labelled_names(labelled, encoder, language, bank, random, sort, objects)
        short = short or further["short"]
        unfamiliar, rare = (
            _fit(further[sort], sentences, weight, random) if further[sort] else None
            for sort in ("unfamiliar", "rare")
        )
        fitted[language] = LengthDependent(
            _fit(short, sentences, weight, random, plain) if short else long,
            long,
            unfamiliar,
            rare,
        )
    return fitted


def _fit(
    found: Sequence[Scenario],
    sentences: Sequence[Scenario],
    clm_weight: float,
    random: np.random.Generator,
    further: Sequence[Scenario] = (),
) -> EvidenceModel:
    """All kinds of documents, and the cut-offs, for which there may be `further` collections.

    What captions are worth is fitted on `sentences` where no collection found has any.
    """
    are_sentences, concept_weight = found is sentences, best_concept_weight(found)
    found, sentences, further = (
        [one.with_named(concept_weight) for one in some] for some in (found, sentences, further)
    )
    examples = _examples(found, random, clm_weight, captioned=False)
    features, labels, weights, sizes = examples
    free = regression.fit(np.c_[features, sizes], labels, weights, np.zeros(len(labels)))
    exponent = round(float(np.clip(-free.coefficients[-1], 0.0, 1.0)), 3)
    image = _kind(fitted_regression(examples, exponent, {"image": 1.0}), {"image": 1.0})
    shares: dict[Source, float] = {"image": 1.0 - clm_weight, "caption": clm_weight}
    described = [one for one in found if not np.isnan(one.caption).all()] or sentences
    languages = sorted({one.caption_language for one in described})
    captioned = _examples(described, random, clm_weight, captioned=True, languages=languages)
    fitted = fitted_regression(captioned, exponent, shares)
    caption = _kind(fitted, shares)
    offsets = _offsets(fitted, caption, languages)
    kinds = {"": image, "caption": caption}
    model = EvidenceModel(
        kinds,
        REFERENCE_SIZE,
        exponent,
        0.0,
        caption_offsets=offsets,
        concept_weight=concept_weight,
    )
    generated = [one for one in found if one.generated]
    if generated:
        both = [one for one in described if one.generated]
        more = generated_kinds(model, generated, both, clm_weight, random)
        model = replace(model, kinds={**kinds, **more})
    lost = LOST_SENTENCES if are_sentences else LOST_NAMES
    return _with_cutoffs(model, [*found, *further], lost)


def _kind(fitted: Regression, shares: Mapping[Source, float]) -> KindWeights:
    """One kind of documents: a slope for the fused score, shared out among its sources."""
    slope, *background = (round(float(one), 4) for one in fitted.coefficients[: 1 + len(shares)])
    slope = max(slope, 0.0)  # more similar is never less relevant
    values: dict[Source, float] = {
        source: round(slope * share, 4) for source, share in shares.items()
    }
    values["words"] = WORDS_WEIGHT
    return KindWeights(
        round(fitted.intercept, 4), values, dict(zip(shares, background, strict=True))
    )


def _offsets(fitted: Regression, kind: KindWeights, languages: Sequence[str]) -> dict[str, float]:
    """What a caption's language adds to its score; the first language is the reference."""
    weight = kind.weights["caption"]
    found = fitted.coefficients[len(fitted.coefficients) - len(languages) + 1 :]
    if not weight:
        return {}
    values = {
        one: round(float(value) / weight, 4)
        for one, value in zip(languages[1:], found, strict=True)
    }
    return {languages[0]: 0.0, **values}


def _examples(
    found: Iterable[Scenario],
    random: np.random.Generator,
    clm_weight: float,
    captioned: bool,
    languages: Sequence[str] = (),
) -> Examples:
    """All positives, the hardest negatives, and a weighted sample of the others.

    Features are the fused score, the backgrounds, and the captions' language but the first.
    Within documents that all have captions
    the ranking is the paper's: weight * CL + (1 - weight) * CM, tuned for MRR. Letting the
    regression choose the weight ranks a little worse.
    """
    examples = ExampleList()
    for one in found:
        has_caption = ~np.isnan(one.caption)
        weights = sampled(one, random) * (has_caption if captioned else ~has_caption)
        rows, columns = np.nonzero(weights)
        scores, backgrounds = one.image[rows, columns], [one.image_background[rows]]
        if captioned:
            scores = (1 - clm_weight) * scores + clm_weight * one.caption[rows, columns]
            backgrounds.append(one.caption_background[rows])
            backgrounds += [
                np.full(len(rows), float(one.caption_language == other)) for other in languages[1:]
            ]
        examples.add(one, rows, columns, weights, [scores, *backgrounds])
    return examples.joined()


def _with_cutoffs(model: EvidenceModel, found: Sequence[Scenario], lost: float) -> EvidenceModel:
    """The model with what all but a few best hits reach, and all but a few right ones.

    Only queries with a right hit among the first count. Captions by people only make hits surer,
    so collections without any decide, of about the reference size: as `capsearch index` leaves
    them, with what models wrote if they did, and as `--no-enrich` does.
    """
    size = min((one.image.shape[1] for one in found), key=lambda n: abs(n - REFERENCE_SIZE))
    chosen = [one for one in found if one.image.shape[1] == size and np.isnan(one.caption).all()]
    first, others = _reached(model, [replace(one, generated={}, tag=None) for one in chosen], lost)
    described = 0.0
    if any(one.generated for one in chosen):
        described, again = _reached(model, chosen, lost)
        others = min(others, again)
    return replace(
        model,
        cutoff=round(first, 4),
        tail_cutoff=round(min(first, others), 4),
        described_cutoff=round(described, 4),
    )


def _reached(model: EvidenceModel, found: Sequence[Scenario], lost: float) -> tuple[float, float]:
    """The probability that all but `lost` best hits reach, and all but a few right ones."""
    best, right = [], []
    for one in found:
        for row in range(len(one.image)):
            values = probabilities(model, one, row)
            first = np.argsort(-values)[:FIRST]
            hits = values[first][one.relevant[row][first]]
            if len(hits):
                best.append(values[first[0]])
                right.extend(hits)
    if not best:
        return 0.0, 0.0
    return float(np.quantile(best, lost)), float(np.quantile(right, LOST_PLACES))


def probabilities(model: EvidenceModel, scenario: Scenario, row: int) -> Floats:
    """(N,) what one query of a scenario gives every document."""
    one = scenario.of_query(row).with_named(model.concept_weight)
    fusion = fusion_of(model, one)
    return fusion.shown(fusion.scores(evidence_of(one, model)))


def fusion_of(model: EvidenceModel, scenario: Scenario) -> CalibratedEvidence:
    """The fusion of the only query of a scenario."""
    background: dict[Source, float] = {
        "image": float(scenario.image_background[0]),
        "caption": float(scenario.caption_background[0]),
    }
    return CalibratedEvidence(model, background, scenario.image.shape[1])


def evidence_of(scenario: Scenario, model: EvidenceModel) -> Evidence:
    """The evidence of the only query of a scenario."""
    count = scenario.image.shape[1]
    offset = model.caption_offsets.get(scenario.caption_language, 0.0)
    known = {"image": scenario.image[0], "caption": scenario.caption[0] + offset}
    if scenario.generated:
        known["generated"] = scenario.best_generated(model.caption_offsets)[0]
    if scenario.tag is not None:
        known["tag"] = scenario.tag[0]
    return Evidence.of(count, **known)
