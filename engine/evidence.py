"""What is known about documents for one query, before it becomes a score (engine.fusion)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Caption, Contributions, Source

Floats: TypeAlias = NDArray[np.float64]
SOURCES: tuple[Source, ...] = ("image", "caption", "generated", "words")
MAX_RARE = 2000  # documents; where a word has more, the vectors know it


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


def is_rare(documents: int, containing: int) -> bool:
    """Whether a word says enough to count: it is in one of fifty documents at most, or in 100."""
    return 0 < containing <= max(100, min(documents // 50, MAX_RARE))
