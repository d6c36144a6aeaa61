"""Hubness penalty: images and captions near every query score less.

In a space of many dimensions some points are near to far too many others, and such hubs stand
in everybody's results (Radovanović et al. 2010). As in querybank normalisation (QB-Norm, Bogolin
et al. 2022), a bank of queries tells how similar a document is to queries in general, and part
of that is subtracted from its score. Our bank is the training captions, as some thousand cluster
centres. The penalty becomes a coordinate of the document's vector (`engine.vectors`), so it is
needed where images and captions are indexed, not to encode a query.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.model_folder import Arrays, save_arrays
from capsearch.engine.errors import UnknownModel
from capsearch.engine.records import Vectors

FILE = "query_bank.safetensors"


@dataclass(frozen=True, slots=True)
class QueryBank:
    """Queries in general: cluster centres of captions in both spaces, and the share of each.

    Centres are means of unit vectors, so they are shorter the looser their captions lie.
    """

    visual: Vectors  # (K, D)
    sentence: Vectors  # (K, S)
    log_shares: NDArray[np.float32]  # (K,) of the captions in each cluster

    @classmethod
    def load(cls, folder: Path) -> QueryBank:
        """A model's query bank; UnknownModel where it has none."""
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
class HubnessPenalty:
    """What a similarity to the query bank costs; calibration chose the numbers on validation.

    penalty = weight * (max(similarity, floor) - mean)

    `mean` is the average similarity on validation, so penalties are around zero and may be
    negative. The `floor` keeps images of a kind that no caption describes, far from every query,
    from being rewarded for that.
    """

    weight: float
    inverse_temperature: float  # of the soft maximum over the bank
    mean: float
    floor: float = -1.0

    def at(self, similarity: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N,) the penalty at such a similarity to the bank."""
        above = np.maximum(similarity, self.floor) - self.mean
        return np.asarray(self.weight * above, np.float32)


NO_PENALTY = HubnessPenalty(weight=0.0, inverse_temperature=1.0, mean=0.0)


@dataclass(frozen=True)
class Hubness:
    """The penalties of vectors on their way into an index."""

    penalty: HubnessPenalty
    folder: Path  # of the query bank
    centres: Callable[[QueryBank], Vectors]  # the bank in the vectors' space

    def penalties(self, vectors: Vectors) -> NDArray[np.float32]:
        """(N,) one for each of (N, D) unit vectors."""
        if not self.penalty.weight:
            return np.zeros(len(vectors), np.float32)
        centres, log_shares = self._bank
        similarity = bank_similarity(vectors, centres, log_shares, self.penalty.inverse_temperature)
        return self.penalty.at(similarity)

    @cached_property
    def _bank(self) -> tuple[Vectors, NDArray[np.float32]]:
        bank = QueryBank.load(self.folder)
        return self.centres(bank), bank.log_shares


def bank_similarity(
    vectors: Vectors,
    centres: Vectors,
    log_shares: NDArray[np.float32],
    inverse_temperature: float,
) -> NDArray[np.float32]:
    """(N,) the soft maximum (log-mean-exp) of each vector's cosines with the query bank."""
    exponents = inverse_temperature * (vectors @ centres.T) + log_shares  # (N, K)
    highest = exponents.max(axis=1, keepdims=True)
    sums = np.exp(exponents - highest).sum(axis=1)
    return np.asarray((highest[:, 0] + np.log(sums)) / inverse_temperature, np.float32)
