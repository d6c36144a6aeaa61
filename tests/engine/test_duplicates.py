"""Near-duplicates: what counts as one, and in which order."""

from __future__ import annotations

import numpy as np
import pytest

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.fakes import FakeBackend
from capsearch.engine.protocols import Found
from capsearch.engine.records import Document, ImageRecord, Vectors
from capsearch.engine.vectors import near_duplicates


def at_cosine(cosine: float, penalty: float = 0.3) -> Vectors:
    """An index's vector at this cosine to the first axis; likeness is free of penalties."""
    return np.array([cosine, np.sqrt(1 - cosine**2), -penalty], np.float32)


def index(**cosines: float) -> FakeBackend:
    return FakeBackend(
        {one: Document(ImageRecord(one, (f"/{one}",), 1, 1, 1, "JPEG")) for one in cosines},
        {one: at_cosine(cosine) for one, cosine in cosines.items()},
    )


def ids(found: tuple[Found, ...]) -> list[str]:
    return [one.document.record.id for one in found]


def test_only_images_at_or_above_the_threshold_count() -> None:
    images = index(a=1.0, copy=0.999, crop=0.98, other=0.5)
    assert ids(near_duplicates(images, "a", threshold=0.97)) == ["copy", "crop"]


def test_an_image_is_no_duplicate_of_itself() -> None:
    assert near_duplicates(index(a=1.0), "a") == ()


def test_equal_copies_come_in_the_order_of_their_ids() -> None:
    found = near_duplicates(index(a=1.0, c=1.0, b=1.0), "a")
    assert (ids(found), [one.score for one in found]) == (["b", "c"], [1.0, 1.0])


def test_the_limit_counts_the_others_only() -> None:
    assert ids(near_duplicates(index(b=1.0, a=1.0, c=1.0, d=1.0), "d", limit=2)) == ["a", "b"]


def test_an_unknown_image_is_refused() -> None:
    with pytest.raises(InvalidQuery, match="no image with id 'x'"):
        near_duplicates(index(a=1.0), "x")
