"""CIDEr-D of sampled captions as a reward: against the references of one image at a time.

pycocoevalcap counts document frequencies in the captions that it is given, a batch here; these
are of all training references, and words are positions in a vocabulary. A test compares both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Sentence = Sequence[int] | NDArray[np.int64]
_NGrams = Mapping[tuple[int, ...], float]
_ORDERS = (1, 2, 3, 4)
_SIGMA = 6.0  # of the length penalty


@dataclass(frozen=True, slots=True)
class _Weighted:
    """The tf-idf of a sentence's n-grams by order, their norms, and its bigrams."""

    weights: tuple[_NGrams, ...]
    norms: tuple[float, ...]
    bigrams: int

    def similarity(self, reference: _Weighted) -> float:
        """CIDEr-D of this sentence against one reference, from 0 to 10."""
        penalty = math.exp(-((self.bigrams - reference.bigrams) ** 2) / (2 * _SIGMA**2))
        total = 0.0
        for mine, theirs, *norms in zip(
            self.weights, reference.weights, self.norms, reference.norms, strict=True
        ):
            common = sum(
                min(weight, theirs[one]) * theirs[one]
                for one, weight in mine.items()
                if one in theirs
            )
            total += common / (norms[0] * norms[1]) if norms[0] and norms[1] else 0.0
        return 10.0 * penalty * total / len(_ORDERS)


class CiderReward:
    """CIDEr-D with the document frequencies of many images' references."""

    def __init__(self, references: Sequence[Sequence[Sentence]]) -> None:
        """`references[i]`: the sentences of image i, their ends included."""
        self._references = references
        counts: Counter[tuple[int, ...]] = Counter()
        for sentences in references:
            counts.update({one for sentence in sentences for one in _ngrams(sentence)})
        images = sum(bool(sentences) for sentences in references)
        self._idf = {one: math.log(images / count) for one, count in counts.items()}
        self._unseen = math.log(max(images, 1))

    def scores(self, image: int, sentences: Sequence[Sentence]) -> NDArray[np.float64]:
        """(K,) the mean over the image's references for each sentence."""
        references = [self._weighted(one) for one in self._references[image]]
        written = [self._weighted(one) for one in sentences]
        return np.array(
            [np.mean([one.similarity(reference) for reference in references]) for one in written]
        )

    def _weighted(self, sentence: Sentence) -> _Weighted:
        weights: tuple[dict[tuple[int, ...], float], ...] = tuple({} for _ in _ORDERS)
        for one, count in _ngrams(sentence).items():
            weights[len(one) - 1][one] = count * self._idf.get(one, self._unseen)
        norms = tuple(math.sqrt(sum(value**2 for value in part.values())) for part in weights)
        return _Weighted(weights, norms, max(len(sentence) - 1, 0))


def _ngrams(sentence: Sentence) -> Counter[tuple[int, ...]]:
    words = tuple(int(word) for word in sentence)
    return Counter(
        words[at : at + order] for order in _ORDERS for at in range(len(words) - order + 1)
    )
