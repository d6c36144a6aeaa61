"""Tolls: what a picture or caption pays for lying near every question.

In a space of many dimensions some points are near to far too many others, and such hubs stand
in everybody's results (Radovanović et al. 2010). As in querybank normalisation (Bogolin et al.
2022), a bank of questions tells how near something lies to questions in general, and a share
of that is taken off its score. Our bank is the training captions, as some thousand centres.
It is needed where pictures and captions are made ready for an index, not to read a question.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.storage import Arrays, save_arrays
from capsearch.engine.errors import UnknownModel
from capsearch.engine.records import Vectors

FILE = "bank.safetensors"


@dataclass(frozen=True, slots=True)
class Bank:
    """Questions in general: centres of captions in both spaces, and each one's share of them.

    Centres are means of unit vectors, so they are shorter the looser the captions lie.
    """

    visual: Vectors  # (K, D)
    sentence: Vectors  # (K, S)
    log_shares: NDArray[np.float32]  # (K,)

    @classmethod
    def load(cls, folder: Path) -> Bank:
        """A model's bank; UnknownModel where it has none."""
        if not (folder / FILE).is_file():
            raise UnknownModel(
                f"{folder} has no {FILE}: it was made by an older capsearch; train it again"
            )
        stored = Arrays(folder / FILE)
        return cls(stored["visual"], stored["sentence"], stored["log_shares"])

    def save(self, folder: Path) -> None:
        """Write it beside a model's other arrays."""
        save_arrays(
            folder / FILE,
            {"visual": self.visual, "sentence": self.sentence, "log_shares": self.log_shares},
        )


@dataclass(frozen=True, slots=True)
class Toll:
    """How dearly nearness to questions is paid for; validation chose the numbers.

    `sharpness` is how much more the nearest questions count than the others, `usual` the
    nearness that costs nothing: most pay or get a few hundredths. Nothing counts as further
    away than `least`: a picture of a kind that nobody asks for shall not be paid for that.
    """

    share: float
    sharpness: float
    usual: float
    least: float = -1.0

    def at(self, near: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N,) what is paid at such a nearness."""
        return np.asarray(self.share * (np.maximum(near, self.least) - self.usual), np.float32)


FREE = Toll(share=0.0, sharpness=1.0, usual=0.0)


@dataclass(frozen=True)
class Gate:
    """Where vectors pay on their way into an index."""

    toll: Toll
    folder: Path  # of the bank
    centres: Callable[[Bank], Vectors]  # the bank's captions in the vectors' space

    def tolls(self, vectors: Vectors) -> NDArray[np.float32]:
        """(N,) what each pays."""
        if not self.toll.share:
            return np.zeros(len(vectors), np.float32)
        centres, log_shares = self._opened
        return self.toll.at(nearness(vectors, centres, log_shares, self.toll.sharpness))

    @cached_property
    def _opened(self) -> tuple[Vectors, NDArray[np.float32]]:
        bank = Bank.load(self.folder)
        return self.centres(bank), bank.log_shares


def nearness(
    vectors: Vectors, centres: Vectors, log_shares: NDArray[np.float32], sharpness: float
) -> NDArray[np.float32]:
    """(N,) a soft maximum of the cosines with the bank, as high as if all lay at that cosine."""
    exponents = sharpness * (vectors @ centres.T) + log_shares  # (N, K)
    highest = exponents.max(axis=1, keepdims=True)
    sums = np.exp(exponents - highest).sum(axis=1)
    return np.asarray((highest[:, 0] + np.log(sums)) / sharpness, np.float32)
