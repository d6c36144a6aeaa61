"""What a query names, recognised in image vectors."""

from dataclasses import replace
from math import log

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.engine.evidence import EvidenceModel, KindWeights, NamedConcepts
from capsearch.engine.fakes import FakeBackend, FakeImageEncoder, FakeTextEncoder
from capsearch.engine.query import EncodedQuery, Query
from capsearch.engine.search import SearchEngine

CAT, DOG = np.array([4.0, 0.0], np.float32), np.array([0.0, 4.0], np.float32)
NONE = np.zeros(2, np.float32)


def named(weights, biases=None, senses=None, **settings):
    table = np.array(weights, np.float32)
    count = np.zeros(len(table), np.float32) if biases is None else np.array(biases, np.float32)
    return NamedConcepts(table, count, senses or (1,) * len(table), **settings)


def sigmoid(log_odds):
    return 1 / (1 + np.exp(-log_odds))


def test_each_thing_adds_the_log_of_its_probability():
    found = named([CAT, DOG], [1.0, -2.0]).scores(np.array([[1.0, 0.5]], np.float32))
    assert found == pytest.approx([log(sigmoid(4 + 1)) + log(sigmoid(2 - 2))])


def test_of_several_senses_the_likeliest_counts():
    row = np.array([[1.0, 0.5]], np.float32)
    assert named([CAT, DOG], senses=(2,)).scores(row) == pytest.approx([log(sigmoid(4))])


def test_the_weight_multiplies_and_the_background_stays():
    one = named([CAT], background=-3.0).weighted(0.5)
    assert one.scores(NONE[None]) == pytest.approx([0.5 * log(1 / 2)])
    assert one.background == -3.0


def test_a_score_depends_on_its_row_alone():
    rows = np.random.default_rng(0).standard_normal((100, 2)).astype(np.float32)
    one = named([CAT, DOG], [0.1, 0.2])
    assert one.scores(rows)[::7].tolist() == one.scores(rows[::7]).tolist()


numbers = st.floats(-8, 8, width=32)


@given(
    st.lists(st.tuples(numbers, numbers, numbers), min_size=1, max_size=5),
    st.tuples(numbers, numbers),
    st.floats(0, 2),
    st.booleans(),
)
def test_no_image_scores_more_than_the_bound(classifiers, row, weight, several):
    table = np.array(classifiers, np.float32)
    senses = (len(table),) if several else (1,) * len(table)
    one = named(table[:, :2], table[:, 2], senses, weight=weight)
    vector, constant = one.bound()
    rows = np.array([row], np.float32)
    assert one.scores(rows)[0] <= float(rows[0] @ vector) + constant + 1e-4


def test_the_bound_touches_where_log_odds_are_minus_a_half():
    one = named([CAT])
    vector, constant = one.bound()
    row = np.array([-0.125, 0.0], np.float32)
    assert one.scores(row[None])[0] == pytest.approx(float(row @ vector) + constant, abs=1e-6)


def test_candidates_are_found_by_the_bound_of_cosine_and_concepts():
    query = EncodedQuery(None, image=DOG, named=named([CAT]))
    vector, constant = query.image_bound()
    row = np.array([0.3, 0.2], np.float32)
    score = float(row @ DOG) + query.named.scores(row[None])[0]
    assert score <= float(row @ vector) + constant
    assert EncodedQuery(None, image=DOG).image_bound() == (DOG, 0.0)


MODEL = EvidenceModel({"": KindWeights(0.0, {"image": 1.0}, {"image": -1.0})}, 1, 0.0, 0.0)


def engine_of(model):
    class Naming(FakeTextEncoder):
        def understand(self, text, language=None):
            thing = named([np.eye(self.dimension, dtype=np.float32)[0]], background=-0.25)
            return replace(super().understand(text, language), model=model, named=thing)

    return SearchEngine(FakeBackend(()), FakeImageEncoder(), Naming())


def test_a_calibrated_query_has_its_weight_and_its_background():
    plain = engine_of(MODEL).encoded(Query("a red thing"))
    assert plain.named is None
    found = engine_of(replace(MODEL, concept_weight=0.5)).encoded(Query("a red thing"))
    assert found.named.weight == 0.5
    assert found.fusion.background["image"] == pytest.approx(
        plain.fusion.background["image"] - 0.5 * 0.25
    )


def test_plain_scores_and_captions_alone_name_nothing():
    engine = engine_of(replace(MODEL, concept_weight=0.5))
    for query in (Query("a red thing", weight=0.5), Query("a red thing", mode="cl")):
        assert engine.encoded(query).named is None
