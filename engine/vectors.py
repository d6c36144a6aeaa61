"""Arithmetic that every side of the search shares.

Vectors in an index, and those they are asked with, have one coordinate more than their space:
a question ends with 1, a picture or caption with minus its toll, which is what it pays for
lying near every question (`encoders.tolls`). Their inner product is the cosine less the toll,
and any store that ranks by inner product ranks by that.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Vectors


def unit(vectors: NDArray[Any]) -> Vectors:
    """Scaled to length 1 along the last axis; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), np.float32)


def asked(meanings: Vectors) -> Vectors:
    """(N, D) unit vectors -> (N, D + 1) questions. Zero means nothing, and asks nothing."""
    return np.concatenate([meanings, meanings.any(axis=1, keepdims=True)], axis=1, dtype=np.float32)


def offered(meanings: Vectors, tolls: NDArray[np.float32]) -> Vectors:
    """(N, D) unit vectors and what each pays -> (N, D + 1) vectors for an index."""
    return np.concatenate([meanings, -tolls[:, None]], axis=1, dtype=np.float32)


def meaning(vectors: Vectors) -> Vectors:
    """Questions or vectors of an index without their last coordinate."""
    return vectors[..., :-1]


def likes_of(picture: Vectors) -> Vectors:
    """An index's vector (D + 1,) as the question what is like it: by cosine, without tolls."""
    return np.append(meaning(picture), np.float32(0.0))


def blend(picture: Vectors, words: Vectors, share: float) -> Vectors:
    """A picture's question and a sentence's (D + 1,) as one of unit length, `share` the picture's.

    Tolls count as much as the words do. What cancels out asks nothing.
    """
    mixed = share * picture + (1.0 - share) * words
    norm = float(np.linalg.norm(meaning(mixed)))
    return np.asarray(mixed / norm if norm > 1e-6 else np.zeros_like(mixed), np.float32)
