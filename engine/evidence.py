"""Evidence, and its fusion into one score.

Every source of evidence (the image itself, captions people wrote, captions a model wrote, words
found as words in either, tags of what the query names) gives each document a score for a query, or
none: a document without a caption is not a document with an unrelated one. Three ways to fuse them,
all linear in the scores:

    SingleSource        CM or CL alone
    ConvexCombination   COCO-CN section IV-D: weight * CL + (1 - weight) * CM, with a floor
    CalibratedEvidence  log-odds of relevance; what a source is worth was fitted on validation,
                        separately for documents with and without each kind of caption

Backends call `scores` on candidates and `bounds` to know when no other document can rank higher.

What a query names is recognised in image vectors by linear classifiers. The score of an image is
its cosine plus

    weight * sum over the things named of log P(the image shows it)

so an image that lacks one of them falls behind, which a cosine hardly tells. The classifiers work
in the space of image vectors: nothing more is stored for an image.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Caption, Contributions, Source, Unit, Vectors

Floats: TypeAlias = NDArray[np.float64]
SOURCES: tuple[Source, ...] = (
    "image", "caption", "generated", "words", "generated_words", "tag",
)  # fmt: skip
# What a document has by a source of which nothing is known: no score, or a share of nothing.
ABSENT: Mapping[Source, float] = {
    "image": np.nan, "caption": np.nan, "generated": np.nan,
    "words": 0.0, "generated_words": 0.0, "tag": 0.0,
}  # fmt: skip
MAX_WORDS = 64  # of one query that documents are looked up by; rarer ones first
MAX_RARE = 2000  # documents; where a word has more, the vectors know it


@dataclass(frozen=True, slots=True)
class Evidence:
    """The scores of n documents for one query, by source; NaN where a document has none.

    `caption` and `generated` are the best of a document's captions; `words` is the share of the
    query's words that occur in what people wrote about it, `generated_words` in what models wrote;
    `tag` is the mean probability of the concepts that the query names. All three are 0 where
    nothing is found.
    """

    image: Floats
    caption: Floats
    generated: Floats
    words: Floats
    generated_words: Floats
    tag: Floats

    @classmethod
    def of(cls, count: int, **known: Floats) -> Evidence:
        """Evidence of `count` documents; what is not given is absent."""
        values: dict[str, Floats] = {
            source: np.full(count, absent) for source, absent in ABSENT.items()
        }
        return cls(**(values | {name: np.asarray(scores, float) for name, scores in known.items()}))

    @classmethod
    def single(cls, scores: Mapping[Source, float]) -> Evidence:
        """The evidence of one document."""
        return cls.of(1, **{source: np.array([score]) for source, score in scores.items()})

    def at(self, rows: NDArray[np.int64]) -> Evidence:
        """Some of the documents."""
        return Evidence(*(getattr(self, source)[rows] for source in SOURCES))

    def __len__(self) -> int:
        return len(self.image)


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
        tag=_known(evidence.tag[row]) if "tag" in sources else None,
        caption=caption if "caption" in sources else None,
        log_odds={name: float(values[row]) for name, values in log_odds.items() if values[row]},
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def tag_score(concepts: Sequence[frozenset[str]], confidences: Mapping[str, float]) -> float:
    """The mean over what a query names of the highest confidence among its concepts, 0 for none.

    `confidences` are those of a document's tags, by concept.
    """
    if not concepts:
        return 0.0
    best = [
        max((value for concept, value in confidences.items() if concept in ids), default=0.0)
        for ids in concepts
    ]
    return sum(best) / len(best)


def word_weight(documents: int, containing: int) -> float:
    """The inverse document frequency of a word that so many of the documents contain."""
    return float(np.log1p(documents / (1.0 + containing)))


def is_rare(documents: int, containing: int) -> bool:
    """Whether a word says enough to count: it is in one of fifty documents at most, or in 100."""
    return 0 < containing <= max(100, min(documents // 50, MAX_RARE))


SHORT, LONG = 2, 6  # words of a query, see LengthDependent
Weights = Mapping[Source, float]


@dataclass(frozen=True, slots=True)
class KindWeights:
    """Logistic regression for documents that have one set of sources.

    `weights` multiply the scores of the sources, `background` what the query scores on a bank of
    unrelated documents: a query that scores high on everything needs more (engine.search).
    `weights` are not negative: more evidence never counts against a document.
    """

    intercept: float
    weights: Weights
    background: Weights

    def __post_init__(self) -> None:
        if any(weight < 0.0 for weight in self.weights.values()):
            raise ValueError(f"weights of evidence must not be negative: {dict(self.weights)}")


@dataclass(frozen=True, slots=True)
class EvidenceModel:
    """What calibration fitted for one model and one query language.

    `kinds` by the captions a document has: "", "caption", "generated", "caption+generated"; one
    that was not fitted falls back on the next simpler one. A collection of N documents shifts
    the log-odds by -size_exponent * log(N / size): 1 if one document is relevant in a collection
    of any size, 0 if their share is constant. `cutoff` is the least probability of the best
    hit: below it nothing matches. `described_cutoff` is that of a best hit which a model has
    described: it knows more of it. `tail_cutoff` is that of the hits behind it.
    `caption_offsets` are added to the scores of captions in a language: what a caption says to
    a query depends on the pair of languages. `concept_weight` is that of what the query names in
    the score of an image.
    """

    kinds: Mapping[str, KindWeights]
    size: int
    size_exponent: float
    cutoff: float
    tail_cutoff: float = 0.0
    caption_offsets: Mapping[str, float] = field(default_factory=dict)
    described_cutoff: float = 0.0
    concept_weight: float = 0.0

    def best_cutoff(self, described: bool) -> float:
        """The cut-off of the best hit; `described`: a model has written captions or tags of it."""
        return max(self.cutoff, self.described_cutoff) if described else self.cutoff

    def kind(self, caption: bool, generated: bool) -> tuple[str, KindWeights]:
        """The fitted kind for documents with such captions, and its name."""
        wanted = "+".join(["caption"] * caption + ["generated"] * generated)
        for name in (wanted, "caption" if caption else "", ""):
            if name in self.kinds:
                return name, self.kinds[name]
        raise ValueError("an evidence model needs at least the kind ''")


@dataclass(frozen=True, slots=True)
class LengthDependent:
    """Evidence models for short queries and for sentences; those between are interpolated.

    "cat" has many right answers and a sentence one, so the same score means different odds. Names
    of other things than the labelled objects have fewer right answers than those. Names that the
    text encoder was not trained with find less than others at the same score; in longer queries the
    other words help.
    """

    short: EvidenceModel  # up to SHORT words
    long: EvidenceModel  # from LONG words on
    unfamiliar: EvidenceModel | None = None  # short, with a word outside the vocabulary
    rare: EvidenceModel | None = None  # short, and names none of the objects `short` was fitted on

    def at(self, words: int, unfamiliar: bool = False, rare: bool = False) -> EvidenceModel:
        """The model for a query of so many words."""
        if unfamiliar and self.unfamiliar is not None and words <= SHORT:
            return self.unfamiliar
        few = self.rare if rare and self.rare is not None else self.short
        share = float(np.clip((words - SHORT) / (LONG - SHORT), 0.0, 1.0))

        def mixed(short: float, long: float) -> float:
            return (1.0 - share) * short + share * long

        def all_mixed(short: Weights, long: Weights) -> dict[Source, float]:
            return {
                source: mixed(short.get(source, 0.0), long.get(source, 0.0))
                for source in {**short, **long}
            }

        kinds = {}
        for name, long in self.long.kinds.items():
            has = name.split("+")
            _, short = few.kind("caption" in has, "generated" in has)
            kinds[name] = KindWeights(
                mixed(short.intercept, long.intercept),
                all_mixed(short.weights, long.weights),
                all_mixed(short.background, long.background),
            )
        return EvidenceModel(
            kinds,
            few.size,
            mixed(few.size_exponent, self.long.size_exponent),
            mixed(few.cutoff, self.long.cutoff),
            mixed(few.tail_cutoff, self.long.tail_cutoff),
            {
                language: mixed(offset, self.long.caption_offsets.get(language, 0.0))
                for language, offset in few.caption_offsets.items()
            },
            mixed(few.described_cutoff, self.long.described_cutoff),
            mixed(few.concept_weight, self.long.concept_weight),
        )


def without(model: EvidenceModel, *sources: Source) -> EvidenceModel:
    """The model with some sources ignored, as `--mode cm` does."""
    kinds = {
        name: replace(
            kind,
            weights={key: value for key, value in kind.weights.items() if key not in sources},
        )
        for name, kind in model.kinds.items()
        if not set(name.split("+")) & set(sources)
    }
    described = 0.0 if "generated" in sources else model.described_cutoff
    return replace(model, kinds=kinds, described_cutoff=described)


_TANGENT_AT = -0.5  # log-odds at which the bound touches: between those of good hits and others
_SHARE = float(1.0 / (1.0 + np.exp(-_TANGENT_AT)))


@dataclass(frozen=True, slots=True)
class NamedConcepts:
    """The classifiers of the things that one query names.

    A thing may have several senses, of which the likeliest counts: `senses[t]` rows of `weights`
    belong to thing t. `background` is what unrelated images score, without the weight.
    """

    weights: Vectors  # (K, D) for rows of an index
    biases: Vectors  # (K,)
    senses: tuple[int, ...]
    background: float = 0.0
    weight: float = 1.0

    def weighted(self, weight: float) -> NamedConcepts:
        """The same with another weight."""
        return replace(self, weight=weight)

    def scores(self, rows: Vectors) -> Floats:
        """(N, D) -> (N,) what they add to the scores of images; at most 0.

        Each depends on its row alone: a matrix product may sum a row differently according to its
        neighbours.
        """
        wide = self.weights.astype(np.float64)
        products = [np.einsum("nd,d->n", rows, row, dtype=np.float64) for row in wide]
        return self.of_products(np.stack(products, 1))

    def of_products(self, products: NDArray[np.floating[Any]]) -> Floats:
        """(N, K) rows @ weights.T -> (N,) the same."""
        likeliest = np.maximum.reduceat(products + self.biases, self._starts, axis=1)
        return np.asarray(-self.weight * np.logaddexp(0.0, -likeliest).sum(axis=1), np.float64)

    def bound(self) -> tuple[Vectors, float]:
        """(D,) v and c such that no row scores more than v . row + c.

        log P is concave in the log-odds, so it lies below its tangents; what has several senses
        is bounded by 0.
        """
        single = [at for at, count in zip(self._starts, self.senses, strict=True) if count == 1]
        slope = self.weight * (1.0 - _SHARE)
        touching = np.log(_SHARE) - (1.0 - _SHARE) * _TANGENT_AT
        constant = self.weight * touching * len(single) + slope * float(self.biases[single].sum())
        return np.asarray(slope * self.weights[single].sum(axis=0), np.float32), float(constant)

    @property
    def _starts(self) -> list[int]:
        return [0, *accumulate(self.senses)][:-1]


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
        return frozenset(source for kind in self.model.kinds.values() for source in kind.weights)

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
