"""How well captions suit an image: the cosine of two vectors, one of the image, one of the words.

The image's vector is its pooled feature, whitened; a caption's vector is the sum of its words',
which were fitted so that captions come near their images (ridge regression; a linear relative of
CCA, Gong et al. 2014). A decoder's probabilities say how people write, so the likeliest caption is
often one that suits many images; the match prefers the one that suits this image.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.captioners.decoders import Weights
from capsearch.encoders.captioners.search import Beam, Hypotheses
from capsearch.encoders.captioners.vocabulary import END
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import unit

PART = "match"  # what the names of its arrays start with
WHITENING = "image_W"  # its array that must not be rounded to int8


@dataclass(frozen=True, slots=True)
class CaptionMatch:
    """Ranks the candidates of a beam search by their score + weight * their match."""

    arrays: Weights
    weight: float

    def image_vectors(self, pooled: Vectors) -> Vectors:
        """(N, F) -> (N, K), of length 1."""
        return unit(pooled @ self.arrays[WHITENING].T + self.arrays["image_b"])

    def caption_vectors(self, positions: NDArray[np.int64], language: str) -> Vectors:
        """(N, M, T) captions of a language -> (N, M, K), of length 1."""
        words = self.arrays[f"{language}_W"][positions]  # (N, M, T, K)
        words[positions == END] = 0.0
        return unit(words.sum(axis=2) + self.arrays[f"{language}_b"])

    def matches(self, images: Vectors, found: Hypotheses, language: str) -> Vectors:
        """(N, M) cosines of the candidates with their images."""
        return cosines(self.caption_vectors(found.positions, language), images)

    def best(self, images: Vectors, found: Hypotheses, language: str, beam: Beam) -> Hypotheses:
        """The best candidate of each image."""
        scores = beam.scores(found.log_probability, found.length)
        scores = scores + self.weight * self.matches(images, found, language)
        return found.at(scores.argmax(axis=1)[:, None])


def cosines(captions: Vectors, others: Vectors) -> Vectors:
    """(N, M, K) captions of N images and (N, K) vectors of length 1 -> (N, M)."""
    return np.asarray((captions @ others[:, :, None])[:, :, 0], np.float32)
