"""What is known about documents for one query, before it becomes a score (engine.fusion)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Caption, Contributions, Source

Floats: TypeAlias = NDArray[np.float64]
SOURCES: tuple[Source, ...] = (
    "image", "caption", "generated", "words", "generated_words", "tag",
)  # fmt: skip
# What a document has by a source of which nothing is known: no score, or a share of nothing.
ABSENT: Mapping[Source, float] = {
    "image": np.nan, "caption": np.nan, "generated": np.nan,
    "words": 0.0, "generated_words": 0.0, "tag": 0.0,
}  # fmt: skip
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
        return cls(**(values | {name: np.asarray(one, float) for name, one in known.items()}))

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
        max((value for one, value in confidences.items() if one in ids), default=0.0)
        for ids in concepts
    ]
    return sum(best) / len(best)


def word_weight(documents: int, containing: int) -> float:
    """The inverse document frequency of a word that so many of the documents contain."""
    return float(np.log1p(documents / (1.0 + containing)))


def is_rare(documents: int, containing: int) -> bool:
    """Whether a word says enough to count: it is in one of fifty documents at most, or in 100."""
    return 0 < containing <= max(100, min(documents // 50, MAX_RARE))
