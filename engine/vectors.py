"""Vector arithmetic that every side of the search shares.

Vectors have one coordinate more than their space: a query ends with 1, a document (an image or a
caption in an index) with minus its hubness penalty (`encoders.models.hubness`). The inner product
is then the cosine less the penalty, and any store that ranks by inner product ranks by that.

Near-duplicates: images so alike that they are probably one image saved twice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.evidence import SingleSource
from capsearch.engine.protocols import Backend, Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters, Vectors

Rows: TypeAlias = NDArray[Any]  # (N, W), float16 or float32
Slots: TypeAlias = NDArray[np.int64]  # row numbers


def unit(vectors: NDArray[Any]) -> Vectors:
    """Scaled to length 1 along the last axis; a zero vector stays zero."""
    norms = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.maximum(norms, 1e-12), np.float32)


def as_query(vectors: Vectors) -> Vectors:
    """(N, D) unit vectors -> (N, D + 1) queries; a zero vector stays zero and scores nothing."""
    return np.concatenate([vectors, vectors.any(axis=1, keepdims=True)], axis=1, dtype=np.float32)


def as_document(vectors: Vectors, penalties: NDArray[np.float32]) -> Vectors:
    """(N, D) unit vectors and their (N,) hubness penalties -> (N, D + 1) rows of an index."""
    return np.concatenate([vectors, -penalties[:, None]], axis=1, dtype=np.float32)


def strip_bias(vectors: Vectors) -> Vectors:
    """Queries or documents without their last coordinate: (..., D + 1) -> (..., D)."""
    return vectors[..., :-1]


def similarity_query(document: Vectors) -> Vectors:
    """An image of an index (D + 1,) as a query for similar ones: plain cosine, no penalty."""
    return np.append(strip_bias(document), np.float32(0.0))


def blend(image: Vectors, text: Vectors, image_weight: float) -> Vectors:
    """An image query and a text query (D + 1,) as one of unit length.

    The penalty counts as much as the text does. What cancels out becomes zero.
    """
    mixed = image_weight * image + (1.0 - image_weight) * text
    norm = float(np.linalg.norm(strip_bias(mixed)))
    return np.asarray(mixed / norm if norm > 1e-6 else np.zeros_like(mixed), np.float32)


# Cosine. A resized or recompressed copy of an image stays above, the next frame of the same
# scene mostly below.
NEAR_DUPLICATE = 0.97


def near_duplicates(
    backend: Backend, image_id: str, threshold: float = NEAR_DUPLICATE, limit: int = 12
) -> tuple[Found, ...]:
    """At most `limit` other images whose vectors lie within `threshold`, closest first.

    Ties break by image id. InvalidQuery for an image the backend does not hold.
    """
    vector = backend.vector(image_id)
    if vector is None:
        raise InvalidQuery(f"no image with id {image_id!r} in this index")
    query = EncodedQuery(SingleSource("image"), image=similarity_query(vector), min_score=threshold)
    close = backend.search(query, Filters(), limit + 1)  # the image itself is among them
    return tuple(hit for hit in close if hit.document.record.id != image_id)[:limit]


def as_float32(rows: Rows) -> NDArray[np.float32]:
    """Rows as float32. For float16 four times as quick as `astype`; infinities become large."""
    if rows.dtype != np.float16:
        return np.asarray(rows, np.float32)
    bits = np.ascontiguousarray(rows).view(np.int16).astype(np.int32) << 13
    bits &= np.int32(-0x70002000)  # the sign, and exponent and fraction where float32 has them
    values = bits.view(np.float32)
    values *= np.float32(2.0**112)  # what the exponents' offsets, 127 and 15, differ by
    return values


def blocks(rows: Rows, slots: Slots, size: int = 4096) -> Iterable[Rows]:
    """The rows at `slots`, in that order, at most `size` at a time."""
    for start in range(0, len(slots), size):
        yield rows[slots[start : start + size]]


def image_scores(query: EncodedQuery, rows: Rows, slots: Slots) -> NDArray[np.float64]:
    """(n,) what images score: inner products with a query's image vector, and what it names."""
    assert query.image is not None
    scores = exact_scores(query.image, rows, slots)
    if query.named is None:
        return scores
    parts = [query.named.scores(as_float32(block)) for block in blocks(rows, slots, size=256)]
    return np.asarray(scores + np.concatenate([np.empty(0), *parts]))


def exact_scores(query: Vectors, rows: Rows, slots: Slots) -> NDArray[np.float64]:
    """(n,) inner products that depend on query and row alone.

    A matrix product may sum a row differently according to its neighbours; products summed
    row by row in float64 and rounded to float32 cannot.
    """
    wide = query.astype(np.float64)
    parts = [
        np.einsum("nd,d->n", as_float32(block).astype(np.float64), wide)
        for block in blocks(rows, slots, size=32)  # stays in the cache, and in malloc's arena
    ]
    return np.concatenate([np.empty(0), *parts]).astype(np.float32).astype(np.float64)
