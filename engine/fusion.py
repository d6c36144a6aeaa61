"""Evidence into one score.

Every source of evidence (the image itself, captions people wrote, captions a model wrote, words
found as words in either, tags of what the query names) gives each document a score for a query, or
none: a document without a caption is not a document with an unrelated one. Three ways to fuse them,
all linear in the scores:

    SingleSource        CM or CL alone
    ConvexCombination   COCO-CN section IV-D: weight * CL + (1 - weight) * CM, with a floor
    CalibratedEvidence  log-odds of relevance; what a source is worth was fitted on validation,
                        separately for documents with and without each kind of caption

Backends call `scores` on candidates and `bounds` to know when no other document can rank higher.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.evidence import (
    SOURCES,
    Evidence,
    EvidenceModel,
    Floats,
    KindWeights,
    LengthDependent,
    without,
)
from capsearch.engine.records import Source, Unit

__all__ = [
    "CalibratedEvidence",
    "ConvexCombination",
    "EvidenceModel",
    "Fusion",
    "KindWeights",
    "LengthDependent",
    "SingleSource",
    "without",
]


class Fusion(Protocol):
    """How evidence becomes a score."""

    @property
    def sources(self) -> frozenset[Source]:
        """The sources that can make a document a hit: candidates come from these."""
        ...

    @property
    def unit(self) -> Unit:
        """What `shown` returns."""
        ...

    def scores(self, evidence: Evidence) -> Floats:
        """(n,) higher is better; -inf for a document that cannot be a hit."""
        ...

    def bounds(self, highest: Evidence) -> Floats:
        """(n,) the most that documents can score whose evidence does not exceed `highest`.

        NaN where a document has no evidence by a source. It may lack captions all the same, but
        has an image score wherever `highest` has one.
        """
        ...

    def shown(self, scores: Floats) -> Floats:
        """Scores as users see them: probabilities where calibrated."""
        ...

    def log_odds(self, evidence: Evidence) -> Mapping[str, Floats]:
        """What each source adds to the score, and "prior"; empty where it is no sum of these."""
        ...


@dataclass(frozen=True, slots=True)
class SingleSource:
    """One source alone: CM, CL, or similarity to an image. Generated captions count as captions."""

    source: Source = "image"
    unit: Unit = "score"

    @property
    def sources(self) -> frozenset[Source]:
        """The one, and generated captions beside captions."""
        return frozenset({self.source} | ({"generated"} if self.source == "caption" else set()))

    def scores(self, evidence: Evidence) -> Floats:
        """The source's score."""
        if self.source == "caption":
            return _or_worst(_best_caption(evidence))
        return _or_worst(getattr(evidence, self.source))

    def bounds(self, highest: Evidence) -> Floats:
        """The highest of the source."""
        return self.scores(highest)

    def shown(self, scores: Floats) -> Floats:
        """As they are."""
        return scores

    def log_odds(self, evidence: Evidence) -> Mapping[str, Floats]:
        """None."""
        return {}


@dataclass(frozen=True, slots=True)
class ConvexCombination:
    """COCO-CN section IV-D: weight * CL + (1 - weight) * CM.

    A document without captions scores `floor` for CL, the mean score of unrelated captions on
    validation. So it ranks captioned documents first as soon as only some have captions; the
    paper's collections are captioned throughout.
    """

    weight: float
    floor: float
    unit: Unit = "score"

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"weight must lie in [0, 1], not {self.weight}")

    @property
    def sources(self) -> frozenset[Source]:
        """Image and captions, where they have any weight."""
        used: set[Source] = {"image"} if self.weight < 1 else set()
        return frozenset(used | ({"caption", "generated"} if self.weight > 0 else set()))

    def scores(self, evidence: Evidence) -> Floats:
        """The weighted sum."""
        captions = np.nan_to_num(_best_caption(evidence), nan=self.floor)
        images = np.nan_to_num(evidence.image, nan=0.0)
        return np.asarray(self.weight * captions + (1.0 - self.weight) * images)

    def bounds(self, highest: Evidence) -> Floats:
        """The same sum of the highest; a missing caption scores the floor."""
        captions = np.fmax(_best_caption(highest), self.floor)
        return self.scores(replace(highest, caption=captions))

    def shown(self, scores: Floats) -> Floats:
        """As they are."""
        return scores

    def log_odds(self, evidence: Evidence) -> Mapping[str, Floats]:
        """None."""
        return {}


@dataclass(frozen=True, slots=True)
class CalibratedEvidence:
    """Log-odds of relevance: an EvidenceModel for one query and one collection.

    `background` is what this query scores on the model's banks of unrelated images and captions.
    """

    model: EvidenceModel
    background: Mapping[Source, float]
    documents: int  # in the collection
    unit: Unit = "probability"

    @property
    def sources(self) -> frozenset[Source]:
        """All that any kind of document was fitted with."""
        return frozenset(source for one in self.model.kinds.values() for source in one.weights)

    def scores(self, evidence: Evidence) -> Floats:
        """(n,) log-odds."""
        parts = self.log_odds(evidence)
        return np.asarray(sum(parts.values()), float)

    def bounds(self, highest: Evidence) -> Floats:
        """The most that any kind of document reaches whose captions `highest` has."""
        best = np.full(len(highest), -np.inf)
        for caption, generated, rows in _kinds(highest, exactly=False):
            prior, weights = self._fitted(caption, generated)
            scores = np.full(len(highest), prior)
            for source, weight in weights.items():
                if weight:  # evidence may be infinite
                    scores += weight * self._known(highest, source)
            best = np.where(rows, np.fmax(best, scores), best)
        return best

    def shown(self, scores: Floats) -> Floats:
        """Probabilities."""
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(scores, -60, 60))))

    def log_odds(self, evidence: Evidence) -> Mapping[str, Floats]:
        """By source; "prior" holds intercept, background and collection size."""
        parts: dict[str, Floats] = {
            source: np.zeros(len(evidence)) for source in (*SOURCES, "prior")
        }
        for caption, generated, rows in _kinds(evidence, exactly=True):
            prior, weights = self._fitted(caption, generated)
            parts["prior"][rows] = prior
            for source, weight in weights.items():
                parts[source][rows] = weight * self._known(evidence, source)[rows]
        return parts

    def _fitted(self, caption: bool, generated: bool) -> tuple[float, Mapping[Source, float]]:
        """The log-odds of a document of a kind before its own evidence, and the weights of that."""
        _, fitted = self.model.kind(caption, generated)
        shift = -self.model.size_exponent * np.log(max(self.documents, 1) / self.model.size)
        background = sum(
            weight * self.background.get(source, 0.0)
            for source, weight in fitted.background.items()
        )
        return fitted.intercept + background + shift, fitted.weights

    def _known(self, evidence: Evidence, source: Source) -> Floats:
        """A document whose image is not encoded yet scores as the background does."""
        values: Floats = getattr(evidence, source)
        return np.where(np.isnan(values), self.background.get(source, 0.0), values)


def _kinds(evidence: Evidence, exactly: bool) -> Iterator[tuple[bool, bool, NDArray[np.bool_]]]:
    """Kinds of documents by their captions, and which are of that kind, or else could be."""
    captioned, described = ~np.isnan(evidence.caption), ~np.isnan(evidence.generated)
    for caption in (False, True):
        for generated in (False, True):
            rows = (captioned == caption) & (described == generated)
            if not exactly:
                rows = (captioned >= caption) & (described >= generated)
            if rows.any():
                yield caption, generated, rows


def _best_caption(evidence: Evidence) -> Floats:
    """The better of people's and models' captions; NaN where a document has neither."""
    return np.fmax(evidence.caption, evidence.generated)


def _or_worst(scores: Floats) -> Floats:
    return np.where(np.isnan(scores), -np.inf, scores)
