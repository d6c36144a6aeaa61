"""Queries: quoted phrases, what cannot be asked, and what says nothing."""

from __future__ import annotations

import numpy as np
import pytest

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.evidence import SingleSource
from capsearch.engine.query import EncodedQuery, Query, phrases


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a red car", ()),
        ('a "red car" outside', ("red car",)),
        ("a “red car” outside", ("red car",)),
        ("„rotes Auto“", ("rotes Auto",)),
        ("「赤い車」と『東京』", ("赤い車", "東京")),
        ('"red" and "blue"', ("red", "blue")),
        ('" "', ()),
        ('an "unfinished quotation', ()),
        ("the dog's 5\" toy", ()),
        ('" padded "', ("padded",)),
    ],
)
def test_quoted_parts_are_phrases(text, expected):
    assert phrases(text) == expected


@pytest.mark.parametrize(
    ("query", "message"),
    [
        (Query(), "nothing to search for"),
        (Query("  \n"), "nothing to search for"),
        (Query(like="blue", image=np.zeros((16, 16, 3), np.uint8)), "not two"),
        (Query("red", mode="cx"), "mode is one of clm, cm, cl, not 'cx'"),
        (Query(like="blue", mode="cl"), "captions are searched with words"),
        (Query("red", limit=0), "limit must be at least 1"),
        (Query("red", offset=-1), "offset at least 0"),
        (Query("red", weight=1.5), "CLM weight lies between 0 and 1, not 1.5"),
        (Query("red", image_weight=-0.5), "image's weight lies between 0 and 1"),
    ],
)
def test_a_query_that_cannot_be_answered_says_why(query: Query, message: str):
    with pytest.raises(InvalidQuery, match=message):
        query.check()


@pytest.mark.parametrize("query", [Query("red"), Query(like="a"), Query("red", weight=0.0)])
def test_a_query_with_text_or_an_image_can_be_answered(query):
    query.check()


def test_a_query_of_zeros_is_empty_unless_it_has_words():
    zero, one = np.zeros(3, np.float32), np.ones(3, np.float32)
    fusion = SingleSource()
    assert EncodedQuery(fusion).empty and EncodedQuery(fusion, zero, zero).empty
    assert not EncodedQuery(fusion, zero, one).empty
    assert not EncodedQuery(fusion, zero, words=("cat",)).empty
    assert not EncodedQuery(fusion, zero, phrases=(("cat",),)).empty
