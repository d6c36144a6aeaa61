"""CLM: the fused ranking of CL and CM, without scoring the whole collection."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from capsearch.engine.records import Match


@dataclass(frozen=True, slots=True)
class Fused:
    """An image's fused score and its two sides; a side it does not have is None."""

    image_id: str
    score: float
    cl: Match | None
    cm: Match | None


def fuse(
    cl: Mapping[str, Match], cm: Mapping[str, Match], weight: float, floor: float
) -> tuple[Fused, ...]:
    """Convex combination, COCO-CN section IV-D: weight * CL + (1 - weight) * CM.

    An image missing from CL scores `floor` there, one missing from CM scores 0. Ties break
    by image id, so equal inputs give equal output on every machine.
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"weight must lie in [0, 1], not {weight}")
    fused = [
        Fused(
            image_id,
            combine(
                cl[image_id].score if image_id in cl else floor,
                cm[image_id].score if image_id in cm else 0.0,
                weight,
            ),
            cl.get(image_id),
            cm.get(image_id),
        )
        for image_id in cl.keys() | cm.keys()
    ]
    return tuple(sorted(fused, key=lambda one: (-one.score, one.image_id)))


def combine(cl: float, cm: float, weight: float) -> float:
    """One image's fused score."""
    return weight * cl + (1.0 - weight) * cm


@dataclass(frozen=True, slots=True)
class Side:
    """One ranking to fuse: its best `count` on demand, and exact scores of given images."""

    top: Callable[[int], Sequence[Match]]
    exact: Callable[[Sequence[str]], Mapping[str, Match]]
    floor: float


def best_fused(cl: Side, cm: Side, weight: float, count: int) -> tuple[Fused, ...]:
    """The `count` best images of the fused ranking.

    Fagin's threshold algorithm: an image that neither side lists within its first n scores
    at most what their n-th places combine to. Once `count` images reach that bound, nothing
    further down can overtake them. If both sides are exact, pages of one query therefore neither
    repeat nor drop a hit; an approximate side (HNSW, above 100,000 rows) may miss candidates.
    """
    depth = max(2 * count, 64)
    while True:
        top_cl, top_cm = cl.top(depth), cm.top(depth)
        candidates = sorted({match.image_id for match in (*top_cl, *top_cm)})
        fused = fuse(cl.exact(candidates), cm.exact(candidates), weight, cl.floor)
        exhausted = len(top_cl) < depth and len(top_cm) < depth
        bound = combine(
            _next_score(top_cl, depth, cl.floor), _next_score(top_cm, depth, 0.0), weight
        )
        if exhausted or (len(fused) >= count and fused[count - 1].score > bound):
            return fused[:count]
        depth *= 4


def _next_score(top: Sequence[Match], depth: int, floor: float) -> float:
    """The most an image outside `top` can score: the last place, or the floor when all are in."""
    return max(top[-1].score, floor) if len(top) == depth else floor
