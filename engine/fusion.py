"""Evidence into one score.

Every source of evidence (the image itself, captions people wrote, captions a model wrote, words
found as words) gives each document a score for a query, or none: a document without a caption is
not a document with an unrelated one. Three ways to fuse them, all linear in the scores:

    SingleSource        CM or CL alone
    ConvexCombination   COCO-CN section IV-D: weight * CL + (1 - weight) * CM, with a floor
    CalibratedEvidence  log-odds of relevance; what a source is worth was fitted on validation,
                        separately for documents with and without each kind of caption

Backends call `scores` on candidates and `bound` to know when no other document can rank higher.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Caption, Contributions, Source, Unit

Floats: TypeAlias = NDArray[np.float64]
SOURCES: tuple[Source, ...] = ("image", "caption", "generated", "words")


@dataclass(frozen=True, slots=True)
class Evidence:
    """The scores of n documents for one query, by source; NaN where a document has none.

    `caption` and `generated` are the best of a document's captions; `words` is the share of the
    query's words that occur in its text, 0 where none does.
    """

    image: Floats
    caption: Floats
    generated: Floats
    words: Floats

    @classmethod
    def of(cls, count: int, **known: Floats) -> Evidence:
        """Evidence of `count` documents; what is not given is missing, words are not found."""
        absent = np.full(count, np.nan)
        values: dict[str, Floats] = dict.fromkeys(SOURCES, absent)
        values["words"] = np.zeros(count)
        return cls(**(values | {name: np.asarray(one, float) for name, one in known.items()}))

    def at(self, rows: NDArray[np.int64]) -> Evidence:
        """Some of the documents."""
        return Evidence(*(getattr(self, source)[rows] for source in SOURCES))

    def __len__(self) -> int:
        return len(self.image)


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

    def bound(self, highest: Mapping[Source, float]) -> float:
        """The most a document can score whose evidence does not exceed `highest`."""
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

    def bound(self, highest: Mapping[Source, float]) -> float:
        """The highest of the source."""
        return max(highest[source] for source in self.sources)

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
        return self._sum(captions, np.nan_to_num(evidence.image, nan=0.0))

    def bound(self, highest: Mapping[Source, float]) -> float:
        """The same sum of the highest; a missing caption scores the floor."""
        caption = max(highest["caption"], highest["generated"], self.floor)
        return float(self._sum(np.array(caption), np.array(highest["image"])))

    def _sum(self, caption: Floats, image: Floats) -> Floats:
        return np.asarray(self.weight * caption + (1.0 - self.weight) * image)

    def shown(self, scores: Floats) -> Floats:
        """As they are."""
        return scores

    def log_odds(self, evidence: Evidence) -> Mapping[str, Floats]:
        """None."""
        return {}


@dataclass(frozen=True, slots=True)
class KindWeights:
    """Logistic regression for documents that have one set of sources.

    `weights` multiply the scores of the sources, `background` what the query scores on a bank of
    unrelated documents: a query that scores high on everything needs more (engine.search).
    """

    intercept: float
    weights: Mapping[Source, float]
    background: Mapping[Source, float]


@dataclass(frozen=True, slots=True)
class EvidenceModel:
    """What calibration fitted for one model and one query language.

    `kinds` by the captions a document has: "", "caption", "generated", "caption+generated"; one
    that was not fitted falls back on the next simpler one. A collection of N documents shifts
    the log-odds by -size_exponent * log(N / size): 1 if one document is relevant in a collection
    of any size, 0 if their share is constant. `cutoff` is the default least probability.
    """

    kinds: Mapping[str, KindWeights]
    size: int
    size_exponent: float
    cutoff: float

    def kind(self, caption: bool, generated: bool) -> tuple[str, KindWeights]:
        """The fitted kind for documents with such captions, and its name."""
        wanted = "+".join(["caption"] * caption + ["generated"] * generated)
        for name in (wanted, "caption" if caption else "", ""):
            if name in self.kinds:
                return name, self.kinds[name]
        raise ValueError("an evidence model needs at least the kind ''")


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

    def bound(self, highest: Mapping[Source, float]) -> float:
        """The most any kind of document reaches."""
        possible = []
        for caption in (False, True):
            for generated in (False, True):
                given = {
                    "image": highest["image"],
                    "caption": highest["caption"] if caption else np.nan,
                    "generated": highest["generated"] if generated else np.nan,
                    "words": highest["words"],
                }
                one = Evidence(*(np.array([given[source]]) for source in SOURCES))
                possible.append(float(self.scores(one)[0]))
        return max(possible)

    def shown(self, scores: Floats) -> Floats:
        """Probabilities."""
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(scores, -60, 60))))

    def log_odds(self, evidence: Evidence) -> Mapping[str, Floats]:
        """By source; "prior" holds intercept, background and collection size."""
        parts: dict[str, Floats] = {source: np.zeros(len(evidence)) for source in SOURCES}
        parts["prior"] = np.zeros(len(evidence))
        has_caption, has_generated = (
            ~np.isnan(evidence.caption),
            ~np.isnan(evidence.generated),
        )
        for caption in (False, True):
            for generated in (False, True):
                rows = (has_caption == caption) & (has_generated == generated)
                if rows.any():
                    self._add(parts, evidence, rows, caption, generated)
        return parts

    def _add(
        self,
        parts: dict[str, Floats],
        evidence: Evidence,
        rows: NDArray[np.bool_],
        caption: bool,
        generated: bool,
    ) -> None:
        _, fitted = self.model.kind(caption, generated)
        shift = -self.model.size_exponent * np.log(max(self.documents, 1) / self.model.size)
        background = sum(
            weight * self.background.get(source, 0.0)
            for source, weight in fitted.background.items()
        )
        parts["prior"][rows] = fitted.intercept + background + shift
        for source, weight in fitted.weights.items():
            values = getattr(evidence, source)[rows]
            # A document whose image is not encoded yet scores as the background does.
            fallback = self.background.get(source, 0.0)
            parts[source][rows] = weight * np.nan_to_num(values, nan=fallback)


def contributions(
    evidence: Evidence,
    log_odds: Mapping[str, Floats],
    row: int,
    sources: frozenset[Source],
    caption: Caption | None,
) -> Contributions:
    """Why the document in a row is a hit, by the sources its fusion used."""
    best = np.fmax(evidence.caption[row], evidence.generated[row])
    return Contributions(
        cm=_known(evidence.image[row]) if "image" in sources else None,
        cl=_known(best) if "caption" in sources else None,
        words=_known(evidence.words[row]) if "words" in sources else None,
        caption=caption if "caption" in sources else None,
        log_odds={name: float(values[row]) for name, values in log_odds.items() if values[row]},
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def word_weight(documents: int, containing: int) -> float:
    """The inverse document frequency of a word that so many of the documents contain."""
    return float(np.log1p(documents / (1.0 + containing)))


def without(model: EvidenceModel, *sources: Source) -> EvidenceModel:
    """The model with some sources ignored, as `--mode cm` does."""
    kinds = {
        name: replace(
            one,
            weights={key: value for key, value in one.weights.items() if key not in sources},
        )
        for name, one in model.kinds.items()
        if not set(name.split("+")) & set(sources)
    }
    return replace(model, kinds=kinds)


def _best_caption(evidence: Evidence) -> Floats:
    """The better of people's and models' captions; NaN where a document has neither."""
    return np.fmax(evidence.caption, evidence.generated)


def _or_worst(scores: Floats) -> Floats:
    return np.where(np.isnan(scores), -np.inf, scores)
