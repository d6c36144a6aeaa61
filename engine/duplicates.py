"""Near-duplicates: images so alike that they are probably one image saved twice."""

from __future__ import annotations

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.fusion import SingleSource
from capsearch.engine.protocols import Backend, Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.engine.vectors import similarity_query

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
    return tuple(one for one in close if one.document.record.id != image_id)[:limit]
