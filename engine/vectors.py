"""Arithmetic that every side of the search shares."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.records import Vectors


def unit(vectors: NDArray[Any]) -> Vectors:
    """Scaled to length 1 along the last axis; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), np.float32)
