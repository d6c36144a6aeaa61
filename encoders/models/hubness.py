"""Hubness penalty: images and captions that are similar to every query score less.

In a space of many dimensions some points are similar to far too many others. Such hubs appear
in the results of unrelated queries (Radovanović et al. 2010). As in querybank normalisation
(QB-Norm, Bogolin et al. 2022), a query bank measures how similar a document is to queries in
general, and a part of that is subtracted from its score. Our query bank is the training captions,
summarised as some thousand cluster centres. The penalty is stored as the last coordinate of the
document's vector (`engine.vectors`): it is computed when images and captions are indexed, and
encoding a query does not need it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.models.model_folder import Arrays, save_arrays
from capsearch.engine.errors import UnknownModel
from capsearch.engine.records import Vectors

FILE = "query_bank.safetensors"


@dataclass(frozen=True, slots=True)
class QueryBank:
    """Cluster centres of captions in both spaces, and the fraction of captions in each cluster.

    A centre is the mean of unit vectors, so it is shorter if its captions are less similar.
    """

    visual: Vectors  # (K, D)
    sentence: Vectors  # (K, S)
    log_shares: NDArray[np.float32]  # (K,) log of the fraction of captions in each cluster

    @classmethod
    def load(cls, folder: Path) -> QueryBank:
        """The query bank in a model folder; UnknownModel if there is none."""
        if not (folder / FILE).is_file():
            raise UnknownModel(
                f"{folder} has no {FILE}: it was trained by an older capsearch; train it again"
            )
        stored = Arrays(folder / FILE)
        return cls(stored["visual"], stored["sentence"], stored["log_shares"])

    def save(self, folder: Path) -> None:
        """Write it into a model folder."""
        save_arrays(
            folder / FILE,
            {"visual": self.visual, "sentence": self.sentence, "log_shares": self.log_shares},
        )


@dataclass(frozen=True, slots=True)
class HubnessPenalty:
    """The penalty as a function of a document's similarity to the query bank.

    penalty = weight * (max(similarity, floor) - mean)

    Calibration fits the parameters on validation. `mean` is the average similarity there, so
    penalties are centred on zero and may be negative. Without the `floor`, images unlike any
    caption would get a large bonus.
    """

    weight: float
    inverse_temperature: float  # of the soft maximum over the query bank
    mean: float
    floor: float = -1.0

    def at(self, similarity: NDArray[np.float32]) -> NDArray[np.float32]:
        """(N,) penalties of documents with these similarities to the query bank."""
        above = np.maximum(similarity, self.floor) - self.mean
        return np.asarray(self.weight * above, np.float32)


NO_PENALTY = HubnessPenalty(weight=0.0, inverse_temperature=1.0, mean=0.0)


@dataclass(frozen=True)
class Hubness:
    """Computes the hubness penalties of vectors that are added to an index."""

    penalty: HubnessPenalty
    folder: Path  # of the query bank
    centres: Callable[[QueryBank], Vectors]  # the query bank in the space of the vectors

    def penalties(self, vectors: Vectors) -> NDArray[np.float32]:
        """(N,) the penalty of each of (N, D) unit vectors."""
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
