"""Vectors for large synthetic collections: mixtures of a model's real ones, with noise.

The base is the model's document bank, a few hundred real images and captions. A row is a mixture of
three of them and of random directions, so that there are as many different rows as are asked for.
`NOISE` makes queries score on the mixtures as they do on real images (trio: 6,937 photos of
validation and test; the best, tenth and hundredth score of 162 sentences are .37, .31 and .25).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from capsearch.benchmarks import synthetic
from capsearch.encoders.calibration.stored import stored_evidence
from capsearch.encoders.evidence import DocumentBank
from capsearch.encoders.models import Model
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import strip_bias, unit

NOISE = 1.4  # length of the random part beside a mixture of length 1
CAPTIONS_PER_IMAGE = 3
_BLOCK = 8192  # images
_MIXED = 3  # documents of the bank in each row
_DIRECTIONS = 4096


@dataclass(frozen=True)
class ScaleVectors:
    """`count` images and their captions, the same ones on every machine."""

    model: Model
    count: int

    def images(self) -> Iterator[Vectors]:
        """(n, D) rows of images, block by block."""
        bank = self._bank.images
        for start in range(0, self.count, _BLOCK):
            yield self._mixtures(bank, start, self._sizes(start), salt=0)

    def captions(self) -> Iterator[Vectors]:
        """(n * CAPTIONS_PER_IMAGE, C) rows of captions, those of one image side by side."""
        bank = self._bank.captions[self._partner]
        for start in range(0, self.count, _BLOCK):
            each = [
                self._mixtures(bank, start, self._sizes(start), salt)
                for salt in range(1, 1 + CAPTIONS_PER_IMAGE)
            ]
            yield np.stack(each, axis=1).reshape(-1, bank.shape[1])

    def _sizes(self, start: int) -> int:
        return min(_BLOCK, self.count - start)

    def _mixtures(self, bank: Vectors, start: int, count: int, salt: int) -> Vectors:
        """Rows of the images from `start`: the bank's rows are the same for images and captions."""
        chosen = np.random.default_rng([start])
        picks = chosen.integers(0, len(bank), (count, _MIXED))
        weights = chosen.dirichlet(np.ones(_MIXED), count).astype(np.float32)
        noise = np.random.default_rng([start, salt]).integers(0, _DIRECTIONS, (count, 2))
        base, directions = unit(strip_bias(bank)), _directions(bank.shape[1] - 1)
        rows = np.empty((count, bank.shape[1]), np.float32)
        mixed = weights[:, :1] * base[picks[:, 0]]
        for at in range(1, _MIXED):
            mixed += weights[:, at : at + 1] * base[picks[:, at]]
        mixed = unit(mixed)
        mixed += NOISE / np.sqrt(2, dtype=np.float32) * directions[noise[:, 0]]
        mixed += NOISE / np.sqrt(2, dtype=np.float32) * directions[noise[:, 1]]
        rows[:, :-1] = unit(mixed)
        rows[:, -1] = (weights * bank[:, -1][picks]).sum(axis=1)  # hubness penalties mix as well
        return rows

    @cached_property
    def _bank(self) -> DocumentBank:
        return stored_evidence(self.model).bank

    @cached_property
    def _partner(self) -> NDArray[np.int64]:
        """For each image of the bank the caption that answers queries as the image does."""
        visual, caption = query_vectors(self.model)
        profiles = [self._bank.images @ visual.T, self._bank.captions @ caption.T]
        images, captions = (unit(one - one.mean(axis=1, keepdims=True)) for one in profiles)
        return np.asarray((images @ captions.T).argmax(axis=1))


def query_vectors(model: Model) -> tuple[Vectors, Vectors]:
    """(Q, D) and (Q, C): the synthetic sentences of all languages against images and captions."""
    encoded = [
        model.text.encode(synthetic.sentences(language), language)
        for language in synthetic.WORDS
        if language in model.text.languages
    ]
    return (
        np.concatenate([one.visual for one in encoded]),
        np.concatenate([one.caption for one in encoded]),
    )


@cache
def _directions(width: int) -> Vectors:
    return synthetic.vectors(_DIRECTIONS, width, seed=width)
