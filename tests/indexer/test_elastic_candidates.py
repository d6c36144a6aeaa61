"""What candidates of a cluster can score at most, by what they were found by; no server needed."""

from __future__ import annotations

import numpy as np
import pytest
from backend_contract import CL, CM, ZERO, X, Y, calibrated

from capsearch.engine.bounds import Candidates, Ranked
from capsearch.engine.evidence import CalibratedEvidence, EvidenceModel, KindWeights
from capsearch.engine.query import EncodedQuery
from capsearch.indexer.elastic import requests
from capsearch.indexer.elastic import requests as matches
from capsearch.indexer.elastic import search as ranking
from capsearch.indexer.elastic.documents import MAX_RESULT_WINDOW
from capsearch.indexer.elastic.requests import Matches, Words
from capsearch.indexer.elastic.search import OVERSAMPLING, Search, best_by_tags

ERROR = 1e-3
OKAPI = Words("words", ("okapi",), (3.0,), 4.0, ("okapi",), 2, outside=0.25)
NONE = Matches()
TAGS = CalibratedEvidence(
    EvidenceModel({"": KindWeights(0.0, {"tag": 4.0}, {})}, size=1, size_exponent=0.0, cutoff=0.0),
    {},
    documents=1,
)


def hit(image_id: str, score: float, *names: str) -> dict:
    return {"_score": score, "fields": {"id": [image_id]}, "matched_queries": list(names)}


class FakeBackend:
    """Has an answer for each search, and counts documents and captioned ones."""

    def __init__(self, *answers: list[dict], images: int = 1000, captioned: int = 1000) -> None:
        self.answers, self.counts = answers, {"image": images, "caption": captioned}
        self.asked: list[dict] = []
        self.counted = 0

    def ask_all(self, searches):
        self.asked += searches
        return [{"hits": {"hits": hits}} for hits in self.answers]

    def ask(self, **_):
        self.counted += 1
        return {"aggregations": {name: {"doc_count": n} for name, n in self.counts.items()}}


def found(backend: FakeBackend, query: EncodedQuery, depth: int, known: Matches = NONE):
    candidates = Search(backend, query, known, [requests.SEARCHABLE]).candidates(depth)
    bounds = dict(zip(candidates.keys.tolist(), candidates.bounds.tolist(), strict=True))
    return bounds, candidates.outside


def test_ids_and_scores_travel_and_no_rows():
    backend = FakeBackend([], [], [], [], images=0, captioned=0)
    known = Matches(OKAPI, concepts=(frozenset({"cat"}),))
    found(backend, EncodedQuery(calibrated(), X, Y), 3, known)
    assert [set(one) & {"knn", "query"} for one in backend.asked] == [{"knn"}] * 2 + [{"query"}] * 2
    for one in backend.asked:
        assert (one["source"], one["stored_fields"], one["docvalue_fields"]) == (
            False, "_none_", ["id"],
        )  # fmt: skip
    assert [one["size"] for one in backend.asked] == [OVERSAMPLING * 3] * 2 + [2, 3]


def test_an_image_scores_what_it_was_found_with_and_others_what_the_last_of_the_depth_has():
    hits = [hit("a", 1.9), hit("b", 1.5), hit("c", 1.25), hit("d", 0.5)]
    bounds, outside = found(FakeBackend(hits), EncodedQuery(CM, X), 2)
    scores = {"a": 0.9, "b": 0.5, "c": 0.25, "d": -1}  # 1 / (1 - -1) = .5
    assert bounds == pytest.approx({one: score + ERROR for one, score in scores.items()})
    assert outside == pytest.approx(0.5 + ERROR)


def test_a_caption_may_be_in_the_language_that_adds_most():
    query = EncodedQuery(CL, caption=X, caption_offsets={"en": -0.1, "ja": 0.2})
    bounds, outside = found(FakeBackend([hit("a", 1.5), hit("b", 1.25)]), query, 1)
    assert bounds == pytest.approx({"a": 0.7 + ERROR, "b": 0.45 + ERROR})
    assert outside == pytest.approx(0.7 + ERROR)


def test_what_was_found_by_one_vector_has_at_most_the_last_score_by_the_other():
    """Log-odds: 2 CM - 1, with a caption 2 CM + 4 CL - 2, or 2 CM + 3 CL - 3."""
    backend = FakeBackend([hit("a", 1.9), hit("x", 1.1)], [hit("b", 1.8), hit("y", 1.4)])
    bounds, outside = found(backend, EncodedQuery(calibrated(), X, Y), 1)
    cm, cl = 0.9 + ERROR, 0.8 + ERROR
    assert bounds["a"] == bounds["b"] == outside == pytest.approx(2 * cm + 4 * cl - 2)
    assert bounds["y"] == pytest.approx(2 * cm + 4 * (0.4 + ERROR) - 2)


def test_where_all_captions_were_found_others_have_none():
    backend = FakeBackend([hit("a", 1.9), hit("x", 1.5)], [hit("b", 1.8)], captioned=1)
    bounds, outside = found(backend, EncodedQuery(calibrated(), X, Y), 1)
    cm = 0.9 + ERROR
    assert bounds["a"] == outside == pytest.approx(2 * cm - 1)
    assert bounds["b"] == pytest.approx(2 * cm + 4 * (0.8 + ERROR) - 2)
    assert backend.counted == 1


def test_nothing_is_counted_where_enough_was_found():
    backend = FakeBackend([hit("a", 1.9), hit("x", 1.5)])
    found(backend, EncodedQuery(CM, X), 1)
    assert backend.counted == 0


def test_no_document_is_outside_where_all_were_found():
    _, outside = found(FakeBackend([hit("a", 1.9)], images=1), EncodedQuery(CM, X), 4)
    assert outside == -np.inf


def test_where_a_graph_reaches_nothing_anything_may_be_outside():
    _, outside = found(FakeBackend([]), EncodedQuery(CM, X), 4)
    assert outside == np.inf


def test_words_of_a_hit_are_known_and_others_have_those_that_nothing_was_searched_by():
    backend = FakeBackend([hit("a", 1.5), hit("b", 1.5)], [hit("b", 1.5, "words:0")])
    query = EncodedQuery(calibrated(), X, words=("okapi", "zoo"))
    bounds, outside = found(backend, query, 1, Matches(OKAPI))
    cm = 2 * (0.5 + ERROR) - 1
    assert bounds == pytest.approx({"a": cm + 5 * 0.25, "b": cm + 5 * 3 / 4})
    assert outside == pytest.approx(cm + 5 * 0.25)


def test_what_was_found_by_words_has_its_own_score_by_the_image():
    backend = FakeBackend([hit("a", 1.5), hit("b", 1.4)], [hit("c", 1.125, "words:0")])
    query = EncodedQuery(calibrated(), X, words=("okapi", "zoo"))
    bounds, outside = found(backend, query, 1, Matches(OKAPI))
    assert bounds["c"] == pytest.approx(2 * (0.125 + ERROR) - 1 + 5 * 3 / 4)
    assert outside == pytest.approx(2 * (0.5 + ERROR) - 1 + 5 * 0.25)  # as without words
    assert backend.asked[-1]["rescore"]["window_size"] == 2


def test_words_alone_are_not_scored_by_a_vector():
    backend = FakeBackend([hit("c", 0.0, "words:0")], images=1)
    query = EncodedQuery(calibrated(), ZERO, words=("okapi", "zoo"))
    bounds, _ = found(backend, query, 1, Matches(OKAPI))
    assert bounds == pytest.approx({"c": 0 - 1 + 5 * 3 / 4})
    assert "rescore" not in backend.asked[-1]


def test_tags_count_by_the_mean_of_what_is_named():
    cut_off = 1 + 2**-8  # what the 8 bits of a value may lack
    backend = FakeBackend([hit("a", 0.8), hit("b", 0.6)], [hit("a", 0.5)])
    known = Matches(concepts=(frozenset({"cat"}), frozenset({"couch"})))
    bounds, outside = found(backend, EncodedQuery(TAGS, concepts=known.concepts), 2, known)
    assert bounds == pytest.approx(
        {"a": 4 * (0.8 + 0.5) / 2 * cut_off, "b": 4 * (0.6 + 0) / 2 * cut_off}
    )
    assert outside == pytest.approx(4 * (0.6 + 0) / 2 * cut_off)


def test_no_tag_is_surer_than_sure():
    assert best_by_tags([[hit("a", 1.0)]], 2).most.tolist() == [1.0]


def test_answers_stay_within_what_elasticsearch_allows():
    assert OVERSAMPLING * ranking.MAX_DEPTH <= 10_000  # num_candidates
    assert 2 * matches.MAX_WORD_HITS <= MAX_RESULT_WINDOW


def test_before_all_documents_are_compared_graphs_are_searched_as_deep_as_they_allow(monkeypatch):
    depths = []

    def find(_, depth: int) -> Candidates:
        depths.append(depth)
        return Candidates(np.array([], str), np.empty(0), np.inf)

    monkeypatch.setattr(Search, "candidates", find)
    monkeypatch.setattr(Search, "_score", lambda *_: [])
    monkeypatch.setattr(Search, "_all", lambda _: [Ranked(1.0, "a", None, 0)])
    search = Search(FakeBackend(), EncodedQuery(CM, X), NONE, [])
    assert [one.image_id for one in search.ranked(10)] == ["a"]
    assert depths == [100, 400, 1600, ranking.MAX_DEPTH]


def test_a_query_is_shortened_for_the_graph_and_keeps_its_direction_but_for_what_is_cut_off():
    plain = np.full(400, 1 / 20, np.float32)
    shorter = requests.for_graph(plain)
    assert shorter / plain == pytest.approx(np.full(400, shorter[0] / plain[0]))
    cut = requests.for_graph(np.append(plain, np.float32(1)))
    assert cut[-1] == pytest.approx(3.026 / np.sqrt(401), rel=1e-3)  # standard deviations
    assert plain[-1] == np.float32(1 / 20)
