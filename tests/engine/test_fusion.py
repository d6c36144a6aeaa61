"""CLM fusion: the convex combination, and that the threshold algorithm never errs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.engine.fusion import Fused, Side, best_fused, combine, fuse
from capsearch.engine.records import Match


def side(scores: dict[str, float]) -> dict[str, Match]:
    return {image_id: Match(image_id, score, 0) for image_id, score in scores.items()}


def as_side(matches: dict[str, Match], floor: float) -> Side:
    """A ranking that gives its best `count`, and exact scores on demand."""
    ranked = sorted(matches.values(), key=lambda one: (-one.score, one.image_id))
    return Side(
        top=lambda count: ranked[:count],
        exact=lambda ids: {one: matches[one] for one in ids if one in matches},
        floor=floor,
    )


def test_a_fused_score_is_the_convex_combination_of_both_sides():
    [fused] = fuse(side({"a": 0.9}), side({"a": 0.4}), weight=0.25, floor=0.0)
    assert fused.score == 0.25 * 0.9 + 0.75 * 0.4


def test_an_image_without_captions_scores_the_floor_on_the_caption_side():
    [fused] = fuse({}, side({"a": 0.4}), weight=0.5, floor=0.1)
    assert fused == Fused("a", 0.5 * 0.1 + 0.5 * 0.4, None, Match("a", 0.4, 0))


def test_an_image_without_a_vector_scores_zero_on_the_image_side():
    [fused] = fuse(side({"a": 0.4}), {}, weight=0.5, floor=0.1)
    assert fused.score == 0.5 * 0.4


def test_ties_break_by_image_id():
    fused = fuse({}, side({"b": 0.5, "c": 0.5, "a": 0.5}), weight=0.5, floor=0.0)
    assert [one.image_id for one in fused] == ["a", "b", "c"]


@pytest.mark.parametrize("weight", [-0.01, 1.01])
def test_a_weight_outside_zero_to_one_is_refused(weight: float):
    with pytest.raises(ValueError, match=r"weight must lie in \[0, 1\]"):
        fuse({}, {}, weight, floor=0.0)


def test_nothing_fused_with_nothing_is_nothing():
    assert fuse({}, {}, 0.5, 0.0) == ()
    assert best_fused(as_side({}, 0.0), as_side({}, 0.0), 0.5, 10) == ()


def test_the_weight_decides_which_side_leads():
    cl, cm = side({"said": 1.0, "seen": 0.0}), side({"said": 0.0, "seen": 1.0})
    assert fuse(cl, cm, weight=0.6, floor=0.0)[0].image_id == "said"
    assert fuse(cl, cm, weight=0.4, floor=0.0)[0].image_id == "seen"


def test_a_image_that_leads_neither_side_can_lead_the_fusion():
    # 100 images are better on one side only; "both" is second-rate on each, best on the sum.
    cl = side({f"cl{n:03}": 0.6 for n in range(100)} | {"both": 0.5})
    cm = side({f"cm{n:03}": 0.6 for n in range(100)} | {"both": 0.5})
    [best] = best_fused(as_side(cl, 0.0), as_side(cm, 0.0), 0.5, 1)
    assert (best.image_id, best.score) == ("both", combine(0.5, 0.5, 0.5))


def test_an_equal_score_deeper_down_wins_by_its_id():
    # "z" is seen at once; "m" ties with it, 1/2 * 0.5 + 1/2 * 0.5 = 1/2 * 1, but hides behind
    # 100 equal scores on both sides.
    cl = side({f"a{n:03}": 0.5 for n in range(100)} | {"m": 0.5, "z": 1.0})
    cm = side({f"b{n:03}": 0.5 for n in range(100)} | {"m": 0.5, "z": 0.0})
    [best] = best_fused(as_side(cl, 0.0), as_side(cm, 0.0), 0.5, 1)
    assert best.image_id == "m"


# Few distinct values over many images: ties everywhere, on both sides of the cut.
SCORES = st.sampled_from([-1.0, -0.5, -0.1, 0.0, 0.1, 0.25, 0.5, 1.0]) | st.floats(-1, 1, width=32)
RANKINGS = st.dictionaries(st.integers(0, 400).map(lambda n: f"i{n:03}"), SCORES, max_size=300)


@given(
    cl=RANKINGS,
    cm=RANKINGS,
    weight=st.sampled_from([0.0, 0.3, 0.5, 1.0]) | st.floats(0, 1),
    floor=st.sampled_from([-0.2, 0.0, 0.1, 0.5]),
    count=st.integers(1, 120),
)
def test_the_best_fused_are_those_of_fusing_everything(cl, cm, weight, floor, count):
    everything = fuse(side(cl), side(cm), weight, floor)
    best = best_fused(as_side(side(cl), floor), as_side(side(cm), 0.0), weight, count)
    assert best == everything[:count]
