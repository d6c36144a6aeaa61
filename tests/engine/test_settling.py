"""Pages are cut from one ranking, however many steps it takes to settle them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from capsearch.engine.bounds import (
    DEEPER,
    OVERSAMPLING,
    Best,
    Candidates,
    InParts,
    Pool,
    Ranked,
    Scored,
    settle,
)
from capsearch.engine.evidence import (
    CalibratedEvidence,
    Evidence,
    EvidenceModel,
    KindWeights,
    SingleSource,
)
from capsearch.engine.query import EncodedQuery

CM = EncodedQuery(SingleSource("image"), np.ones(1, np.float32))
SCORES = {f"i{n:03}": 1 - n / 100 for n in range(100)}


def pool(depth: int, missed: frozenset[str] = frozenset()) -> Pool[str]:
    """The best `depth` but those missed; none outside scores more than the last of these."""
    ids = [one for one in list(SCORES)[:depth] if one not in missed]
    evidence = Evidence.of(len(ids), image=np.array([SCORES[one] for one in ids]))
    bound = -np.inf if depth >= len(SCORES) else list(SCORES.values())[depth - 1]
    return Pool(rank(CM, evidence, ids), bound)


def rank(query: EncodedQuery, evidence: Evidence, ids: list[str]) -> list[Ranked[str]]:
    return Scored.of(query.fusion, ids, ids, evidence, {}).ranked(query.min_score)


def ids(ranked) -> list[str]:
    return [one.image_id for one in ranked]


def test_ties_rank_by_id_and_what_is_below_the_cut_off_is_left_out():
    query = EncodedQuery(SingleSource("image"), np.ones(1, np.float32), min_score=0.5)
    evidence = Evidence.of(4, image=np.array([0.5, 0.9, 0.4, 0.9]))
    ranked = rank(query, evidence, ["a", "c", "x", "b"])
    assert [(hit.image_id, hit.row) for hit in ranked] == [("b", 3), ("c", 1), ("a", 0)]


def test_a_step_goes_deeper_until_the_page_is_settled():
    depths = []

    def gather(depth: int) -> list[Pool[str]]:
        depths.append(depth)
        return [pool(depth)]

    assert ids(settle(CM, 5, 8, gather))[:5] == list(SCORES)[:5]
    assert depths == [8, 8 * DEEPER]  # the first settles 8 / OVERSAMPLING
    assert 8 // OVERSAMPLING < 5 <= 8 * DEEPER // OVERSAMPLING


def test_pages_neither_repeat_nor_drop_a_document_that_a_first_step_missed():
    def gather(depth: int) -> list[Pool[str]]:
        return [pool(depth, frozenset({"i000"}) if depth == 8 else frozenset())]

    whole = ids(settle(CM, 1000, 8, gather))
    pages = [ids(settle(CM, stop, 8, gather))[stop - 5 : stop] for stop in range(5, 101, 5)]
    assert [one for page in pages for one in page] == whole
    assert sorted(whole) == sorted(SCORES) and whole[:3] == ["i001", "i002", "i000"]


def test_pages_do_not_depend_on_how_many_parts_of_a_step_were_needed():
    """The second part has a document that should have been in the first."""

    def gather(depth: int) -> Iterator[Pool[str]]:
        found = pool(depth, frozenset({"i001"}))
        yield Pool(found.ranked[:4], found.ranked[4].score)
        yield pool(depth)

    whole = ids(settle(CM, 1000, 16, gather))
    for size in (1, 2, 3, 7):
        stops = range(size, 101, size)
        pages = [ids(settle(CM, stop, 16, gather))[stop - size : stop] for stop in stops]
        assert [one for page in pages for one in page] == whole[: len(stops) * size]
    assert whole[:6] == ["i000", "i002", "i003", "i004", "i001", "i005"]


@pytest.mark.parametrize("stop", [1, 3, 50])
def test_once_no_other_document_can_pass_the_cut_off_all_are_settled(stop):
    query = EncodedQuery(SingleSource("image"), np.ones(1, np.float32), min_score=0.97)
    depths = []

    def gather(depth: int) -> list[Pool[str]]:
        depths.append(depth)
        found = pool(depth)
        return [Pool([one for one in found.ranked if one.score >= 0.97], found.bound)]

    assert ids(settle(query, stop, 8, gather)) == ["i000", "i001", "i002", "i003"]
    assert depths == [8]


def in_parts(read: list[list[str]], error: float = 0.0, first: int = 8) -> InParts[str]:
    """The best `depth`, each bounded by its score and an error; `read` gets what is scored."""

    def find(depth: int) -> Candidates:
        found = list(SCORES)[:depth]
        bounds = np.array([SCORES[one] + error for one in found])
        outside = -np.inf if depth >= len(SCORES) else float(bounds[-1])
        return Candidates(np.array(found[::-1], str), bounds[::-1], outside)

    def score(keys):
        read.append(keys.tolist())
        evidence = Evidence.of(len(keys), image=np.array([SCORES[one] for one in keys.tolist()]))
        return rank(CM, evidence, keys.tolist())

    return InParts(find, score, first)


def test_candidates_that_can_score_most_are_scored_first_and_others_not_at_all():
    read: list[list[str]] = []
    assert ids(settle(CM, 5, 80, in_parts(read)))[:5] == list(SCORES)[:5]
    assert [len(part) for part in read] == [8] and sorted(read[0]) == list(SCORES)[:8]


def test_parts_grow_until_no_other_candidate_can_score_more():
    read: list[list[str]] = []
    assert ids(settle(CM, 5, 80, in_parts(read, error=0.105)))[:5] == list(SCORES)[:5]
    # The fifth scores 1 - 4/100. After 8 others reach 1 - 8/100 + .105; after 16, less than it.
    assert [len(part) for part in read] == [8, 8]


@pytest.mark.parametrize("error", [0.0, 0.03, 0.2])
def test_nothing_is_scored_twice_and_the_whole_ranking_comes_out(error):
    read: list[list[str]] = []
    assert ids(settle(CM, 1000, 8, in_parts(read, error))) == list(SCORES)
    assert sorted(one for part in read for one in part) == list(SCORES)


def test_where_a_part_settles_nothing_more_candidates_are_found_first():
    depths = []
    gather = in_parts([], error=0.5)
    find = gather.find

    def counted(depth: int) -> Candidates:
        depths.append(depth)
        return find(depth)

    gather.find = counted
    settle(CM, 5, 40, gather)
    assert depths == [40, 160]  # and not all 40 before


def test_no_candidates_at_all_are_an_answer():
    found = Candidates(np.array([], str), np.empty(0), -np.inf)
    assert settle(CM, 5, 8, InParts[str](lambda _: found, lambda _: [], 8)) == []


def test_candidates_of_which_nothing_is_known_are_one_part():
    keys = np.arange(100)
    [(part, behind)] = Candidates(keys, None, -np.inf).parts(8)
    assert (part.tolist(), behind) == (keys.tolist(), -np.inf)


def test_what_one_source_found_has_at_most_what_others_have_outside_by_the_other():
    """Log-odds: 2 CM + 3 words - 1. A document found twice by a source counts by the best."""
    model = EvidenceModel({"": KindWeights(-1.0, {"image": 2.0, "words": 3.0}, {})}, 1, 0.0, 0.0)
    image = Best(np.array(["b", "a", "b"]), np.array([0.5, 0.9, 0.6]), 0.4)
    words = Best(np.array(["c"]), np.array([0.2]), 0.0)
    fusion = CalibratedEvidence(model, {}, 1)
    candidates = Candidates.of(fusion, {"image": image, "words": words})
    assert candidates.keys.tolist() == ["a", "b", "c"]
    assert candidates.bounds == pytest.approx([2 * 0.9 - 1, 2 * 0.6 - 1, 2 * 0.4 + 3 * 0.2 - 1])
    assert candidates.outside == pytest.approx(2 * 0.4 - 1)
    assert Candidates.of(fusion, {"image": image}, complete=True).outside == -np.inf
