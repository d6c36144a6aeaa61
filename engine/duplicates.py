"""Near-duplicates: pictures so alike that they are probably one picture saved twice."""

from __future__ import annotations

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.protocols import VectorIndex
from capsearch.engine.records import Match
from capsearch.engine.vectors import likes_of

# Cosine. A resized or recompressed copy of a photograph stays above, the next frame of the
# same scene mostly below.
NEAR_DUPLICATE = 0.97


def near_duplicates(
    images: VectorIndex, image_id: str, threshold: float = NEAR_DUPLICATE, limit: int = 12
) -> tuple[Match, ...]:
    """At most `limit` other pictures whose vectors lie within `threshold`, closest first.

    Ties break by image id. InvalidQuery for a picture the index does not hold.
    """
    vector = images.vector(image_id)
    if vector is None:
        raise InvalidQuery(f"no picture with id {image_id!r} in this index")
    close = images.search(likes_of(vector), limit + 1)  # the picture itself is among them
    return tuple(one for one in close if one.score >= threshold and one.image_id != image_id)[
        :limit
    ]
