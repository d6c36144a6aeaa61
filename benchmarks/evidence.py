"""How evidence is fused in collections like people's folders, and what the cut-off leaves.

Three experiments on a split, all with the engine's own fusion. If the data has captions and tags
that models wrote, they are evidence in all of them, and a share of 0 has nothing else:

    shares   MRR when a share of the images has captions in another language: images alone (CM, the
             cosine), the paper's convex combination (CLM), and calibrated evidence, with its
             calibration error
    names    names of labelled objects, each with and without the images of its class: how many
             absent ones come back empty at the default cut-off, and how many present ones are lost
    absent   the same for sentences: those of `absent.tsv`, our own, are about things that
             photographs of everyday scenes hardly ever show
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsearch.encoders.calibrate.collection import EncodedImages, encode_texts
from capsearch.encoders.calibrate.fit import probabilities
from capsearch.encoders.calibrate.regression import Floats, expected_calibration_error
from capsearch.encoders.calibrate.run import names_of
from capsearch.encoders.calibrate.scenarios import Scenario, relevance, share_of, without_captions
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import DataProblem
from capsearch.engine.evidence import Evidence, EvidenceModel
from capsearch.engine.fusion import ConvexCombination
from capsearch.engine.metrics import first_ranks, mean_reciprocal_rank

FIRST = 10  # hits that the calibration error is measured on


@dataclass(frozen=True, slots=True)
class ShareRow:
    """MRR at one share of captioned images."""

    query_lang: str
    caption_lang: str
    captions: int  # an image, at most
    share: float
    cm: float
    clm: float
    evidence: float
    calibration_error: float


@dataclass(frozen=True, slots=True)
class CutoffRow:
    """The cut-off on names, or on sentences, of one language."""

    language: str
    queries: int  # absent ones
    lost: float  # present, but without a right hit above the cut-off
    empty: float  # absent, and nothing is shown
    calibration_error: float


@dataclass(frozen=True, slots=True)
class NamesRow(CutoffRow):
    """Names also have a precision: of the first ten hits by images alone, and by all evidence."""

    precision_cm: float
    precision: float


@dataclass(frozen=True, slots=True)
class _Answer:
    """What one query gives every image."""

    image: Floats  # (N,) scores of the images alone
    values: Floats  # (N,) probabilities
    fitted: EvidenceModel


def shares(
    model: Model,
    bank: DocumentBank,
    data: EncodedImages,
    wanted: Sequence[float],
    captions: int,
    seed: int = 0,
) -> Iterator[ShareRow]:
    """Every ordered pair of languages at every share."""
    for language in data.captions:
        for other in data.captions:
            for share in wanted if language != other else ():
                random = np.random.default_rng(seed)
                scenario = share_of(data, language, other, bank, share, captions, random)
                if scenario is not None:
                    yield _share_row(model, data, scenario, language, other, share, captions)


def _share_row(
    model: Model,
    data: EncodedImages,
    scenario: Scenario,
    language: str,
    other: str,
    share: float,
    captions: int,
) -> ShareRow:
    fitted = [_fitted(model, text, language) for text in scenario.texts]
    calibrated = np.stack([probabilities(one, scenario, row) for row, one in enumerate(fitted)])
    weight, floor = model.text.clm_weight(language), model.text.cl_floor(language)
    fusion = ConvexCombination(weight, floor)
    convex = np.stack(
        [
            fusion.scores(Evidence.of(len(image), image=image, caption=caption))
            for image, caption in zip(scenario.image, scenario.caption, strict=True)
        ]
    )
    first = np.argsort(-calibrated, axis=1)[:, :FIRST]
    return ShareRow(
        language,
        other,
        captions,
        share,
        _mrr(scenario.image, scenario),
        _mrr(convex, scenario),
        _mrr(calibrated, scenario),
        expected_calibration_error(
            np.take_along_axis(calibrated, first, axis=1).ravel(),
            np.take_along_axis(scenario.relevant, first, axis=1).ravel().astype(float),
        ),
    )


def names(model: Model, bank: DocumentBank, data: EncodedImages) -> Iterator[NamesRow]:
    """Names of the labels in each language, against images that nobody captioned."""
    labels = sorted({label for found in data.objects for label in found})
    if not labels:
        raise DataProblem("no image of this split has labelled objects")
    for language, named in names_of(labels).items():
        if language in model.text.languages:
            yield _names_row(model, bank, data, language, named)


def _names_row(
    model: Model, bank: DocumentBank, data: EncodedImages, language: str, named: Mapping[str, str]
) -> NamesRow:
    texts, images = list(named.values()), np.arange(len(data.images))
    answers = _alone(model, bank, data, texts, language)
    lost, empty, found, right, right_cm = [], [], list[float](), list[bool](), list[bool]()
    all_relevant = relevance(data, list(named), images)
    for relevant, answer in zip(all_relevant, answers, strict=True):
        values, fitted = answer.values, answer.fitted
        shown, least = values >= fitted.tail_cutoff, fitted.best_cutoff(bool(data.generated))
        lost.append(values.max() < least or not (shown & relevant).any())
        empty.append(values[~relevant].max() < least)
        first = np.argsort(-values)[:FIRST]
        found.extend(values[first])
        right.extend(relevant[first])
        right_cm.extend(relevant[np.argsort(-answer.image)[:FIRST]])
    return NamesRow(
        language,
        len(texts),
        float(np.mean(lost)),
        float(np.mean(empty)),
        expected_calibration_error(np.array(found), np.array(right, float)),
        float(np.mean(right_cm)),
        float(np.mean(right)),
    )


def absent(model: Model, bank: DocumentBank, data: EncodedImages) -> Iterator[CutoffRow]:
    """Sentences about what no image shows, and the images' own captions.

    A caption is lost if its image is among the first hits and below the cut-off.
    """
    for language, captions in data.captions.items():
        texts = absent_sentences(language)
        nothing = _alone(model, bank, data, texts, language)
        written = bool(data.generated)
        empty = [one.values.max() < one.fitted.best_cutoff(written) for one in nothing]
        lost, found, right = [], list[float](), list[bool]()
        described = _alone(model, bank, data, captions.texts, language)
        for row, answer in zip(captions.image_rows, described, strict=True):
            values, fitted = answer.values, answer.fitted
            first = np.argsort(-values)[:FIRST]
            found.extend(values[first])
            right.extend(first == row)
            if row in first:
                best = values.max() >= fitted.best_cutoff(written)
                lost.append(not best or values[row] < fitted.tail_cutoff)
        error = expected_calibration_error(np.array(found), np.array(right, float))
        yield CutoffRow(
            language, len(texts), float(np.mean(lost or [0.0])), float(np.mean(empty)), error
        )


def absent_sentences(language: str) -> tuple[str, ...]:
    """Sentences about what photographs of everyday scenes hardly ever show."""
    with (Path(__file__).parent / "absent.tsv").open(encoding="utf-8", newline="") as file:
        return tuple(row[language] for row in csv.DictReader(file, delimiter="\t"))


def _alone(
    model: Model, bank: DocumentBank, data: EncodedImages, texts: Sequence[str], language: str
) -> Iterator[_Answer]:
    """What each text gives every image that nobody captioned, and how it was fitted."""
    images = np.arange(len(data.images))
    encoded = encode_texts(model.text, texts, language)
    nothing = np.zeros((len(texts), len(images)), bool)
    scenario = without_captions(data, images, encoded, nothing, bank, language, texts)
    for row, text in enumerate(texts):
        fitted = _fitted(model, text, language)
        yield _Answer(scenario.image[row], probabilities(fitted, scenario, row), fitted)


def _fitted(model: Model, text: str, language: str) -> EvidenceModel:
    fitted = model.text.evidence_model(text, language)
    if fitted is None:
        raise DataProblem(f"{model.name} is not calibrated: run `capsearch calibrate` first")
    return fitted


def _mrr(scores: Floats, scenario: Scenario) -> float:
    return float(mean_reciprocal_rank(first_ranks(scores, scenario.relevant)))
