"""Near-duplicates: images so alike that they are probably one image saved twice."""

from __future__ import annotations

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.protocols import VectorIndex
from capsearch.engine.records import Match
from capsearch.engine.vectors import similarity_query

# Cosine. A resized or recompressed copy of a photograph stays above, the next frame of the
# same scene mostly below.
NEAR_DUPLICATE = 0.97


def near_duplicates(
    images: VectorIndex, image_id: str, threshold: float = NEAR_DUPLICATE, limit: int = 12
) -> tuple[Match, ...]:
    """At most `limit` other images whose vectors lie within `threshold`, closest first.

    Ties break by image id. InvalidQuery for an image the index does not hold.
    """
    vector = images.vector(image_id)
    if vector is None:
        raise InvalidQuery(f"no image with id {image_id!r} in this index")
    close = images.search(similarity_query(vector), limit + 1)  # the image itself is among them
    return tuple(one for one in close if one.score >= threshold and one.image_id != image_id)[
        :limit
    ]
