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
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from capsearch.encoders.calibrate.collection import EncodedImages
from capsearch.encoders.calibrate.regression import expected_calibration_error
from capsearch.encoders.calibrate.run import names_of
from capsearch.encoders.calibrate.scenarios import Scenario, share_of, without_captions
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.scores import Queries, encode_queries
from capsearch.engine.errors import DataProblem
from capsearch.engine.evidence import Evidence, EvidenceModel, Floats
from capsearch.engine.metrics import Relevance, first_ranks, mean_reciprocal_rank

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


@dataclass
class _Hits:
    """The first hits of several queries: their probabilities, and which are right."""

    probabilities: list[float] = field(default_factory=list)
    right: list[bool] = field(default_factory=list)

    def add(self, values: Floats, relevant: Relevance) -> None:
        """Of one query: (N,) probabilities, and which documents are right."""
        first = np.argsort(-values)[:FIRST]
        self.probabilities.extend(values[first])
        self.right.extend(relevant[first])

    @property
    def calibration_error(self) -> float:
        """Over all hits."""
        return expected_calibration_error(np.array(self.probabilities), np.array(self.right, float))


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
    calibrated = np.stack([values for values, _ in _answers(model, scenario)])
    fusion = model.text.convex(language)
    convex = np.stack(
        [
            fusion.scores(Evidence.of(len(image), image=image, caption=caption))
            for image, caption in zip(scenario.image, scenario.caption, strict=True)
        ]
    )
    hits = _Hits()
    for values, relevant in zip(calibrated, scenario.relevant, strict=True):
        hits.add(values, relevant)
    return ShareRow(
        language,
        other,
        captions,
        share,
        _mrr(scenario.image, scenario),
        _mrr(convex, scenario),
        _mrr(calibrated, scenario),
        hits.calibration_error,
    )


def names(model: Model, bank: DocumentBank, data: EncodedImages) -> Iterator[NamesRow]:
    """Names of the labels in each language, against images that nobody captioned."""
    labels = sorted({label for shown in data.objects for label in shown})
    if not labels:
        raise DataProblem("no image of this split has labelled objects")
    for language, named in names_of(labels).items():
        if language in model.text.languages:
            yield _names_row(model, bank, data, language, named)


def _names_row(
    model: Model, bank: DocumentBank, data: EncodedImages, language: str, named: Mapping[str, str]
) -> NamesRow:
    queries = encode_queries(model.text, list(named.values()), language)
    relevant = data.relevance(list(named), np.arange(len(data.images)))
    scenario = _alone(bank, data, queries, relevant)
    lost, empty, precision_cm, hits = [], [], [], _Hits()
    for row, (values, fitted) in enumerate(_answers(model, scenario)):
        right = relevant[row]
        shown, least = values >= fitted.tail_cutoff, fitted.best_cutoff(bool(data.generated))
        lost.append(values.max() < least or not (shown & right).any())
        empty.append(values[~right].max() < least)
        hits.add(values, right)
        precision_cm.extend(right[np.argsort(-scenario.image[row])[:FIRST]])
    return NamesRow(
        language,
        len(queries.texts),
        float(np.mean(lost)),
        float(np.mean(empty)),
        hits.calibration_error,
        float(np.mean(precision_cm)),
        float(np.mean(hits.right)),
    )


def absent(model: Model, bank: DocumentBank, data: EncodedImages) -> Iterator[CutoffRow]:
    """Sentences about what no image shows, and the images' own captions.

    A caption is lost if its image is among the first hits and below the cut-off.
    """
    described = bool(data.generated)
    for language, captions in data.captions.items():
        queries = encode_queries(model.text, absent_sentences(language), language)
        empty = [
            values.max() < fitted.best_cutoff(described)
            for values, fitted in _answers(model, _alone(bank, data, queries))
        ]
        lost, hits = [], _Hits()
        scenario = _alone(bank, data, captions.queries(language))
        for image, (values, fitted) in zip(
            captions.image_rows, _answers(model, scenario), strict=True
        ):
            hits.add(values, np.arange(len(values)) == image)
            if image in np.argsort(-values)[:FIRST]:
                best = values.max() >= fitted.best_cutoff(described)
                lost.append(not best or values[image] < fitted.tail_cutoff)
        yield CutoffRow(
            language,
            len(queries.texts),
            float(np.mean(lost or [0.0])),
            float(np.mean(empty)),
            hits.calibration_error,
        )


def absent_sentences(language: str) -> tuple[str, ...]:
    """Sentences about what photographs of everyday scenes hardly ever show."""
    with (Path(__file__).parent / "absent.tsv").open(encoding="utf-8", newline="") as file:
        return tuple(row[language] for row in csv.DictReader(file, delimiter="\t"))


def _alone(
    bank: DocumentBank, data: EncodedImages, queries: Queries, relevant: Relevance | None = None
) -> Scenario:
    """Queries against every image, none of which anybody captioned."""
    images = np.arange(len(data.images))
    if relevant is None:
        relevant = np.zeros((len(queries.texts), len(images)), bool)
    return without_captions(data, images, queries, relevant, bank)


def _answers(model: Model, scenario: Scenario) -> Iterator[tuple[Floats, EvidenceModel]]:
    """For each query, the probability of every image, and what calibration fitted for it."""
    queries = scenario.queries
    for row, text in enumerate(queries.texts):
        fitted = model.text.evidence_model(text, queries.language)
        if fitted is None:
            raise DataProblem(f"{model.name} is not calibrated: run `capsearch calibrate` first")
        yield scenario.probabilities(row, fitted), fitted


def _mrr(scores: Floats, scenario: Scenario) -> float:
    return float(mean_reciprocal_rank(first_ranks(scores, scenario.relevant)))
