"""What calibration fits: the weights of evidence, for each kind of document and length of query."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from capsearch.engine.records import Source

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
    the score of an image (engine.named).
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
                one: mixed(short.get(one, 0.0), long.get(one, 0.0)) for one in {**short, **long}
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
            one,
            weights={key: value for key, value in one.weights.items() if key not in sources},
        )
        for name, one in model.kinds.items()
        if not set(name.split("+")) & set(sources)
    }
    described = 0.0 if "generated" in sources else model.described_cutoff
    return replace(model, kinds=kinds, described_cutoff=described)
