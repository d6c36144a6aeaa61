"""Unit vectors, and the coordinate that questions and what an index holds have besides."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.engine.vectors import (
    as_document,
    as_query,
    blend,
    similarity_query,
    strip_bias,
    unit,
)


def test_rows_and_single_vectors_get_length_one():
    assert unit(np.array([3.0, 4.0])).tolist() == pytest.approx([3 / 5, 4 / 5])
    assert unit(np.array([[3.0, 4.0], [0.0, 2.0]]))[1].tolist() == [0, 1]


def test_a_zero_vector_stays_zero_and_the_given_one_is_not_changed():
    given = np.zeros(3, np.float32)
    assert unit(given).tolist() == [0, 0, 0]
    doubled = np.array([2.0, 0.0])
    unit(doubled)
    assert doubled.tolist() == [2, 0]


def rows(*values):
    return unit(np.array(values, np.float32))


def test_a_query_scores_a_document_by_cosine_less_the_penalty():
    questions, documents = rows([1, 0], [3, 4]), rows([0, 1], [1, 1], [1, 0])
    penalties = np.array([0.1, 0.0, -0.2], np.float32)
    scores = as_query(questions) @ as_document(documents, penalties).T
    np.testing.assert_allclose(scores, questions @ documents.T - penalties, atol=1e-6)


def test_a_zero_query_scores_zero_whatever_the_penalties():
    documents = as_document(rows([0, 1], [1, 0]), np.array([0.5, -0.5], np.float32))
    assert (as_query(np.zeros((1, 2), np.float32)) @ documents.T).tolist() == [[0, 0]]


def test_likeness_is_a_cosine_whatever_either_pays():
    one, other = as_document(rows([1, 0], [3, 4]), np.array([0.4, 0.3], np.float32))
    assert similarity_query(one) @ other == pytest.approx(3 / 5)
    assert similarity_query(one) @ one == pytest.approx(1.0)
    assert one[-1] == np.float32(-0.4)  # what was given stays as it was


@given(st.floats(0, 1))
def test_a_blend_has_unit_length_and_the_penalty_weight_of_its_text(share):
    image = similarity_query(as_document(rows([1, 0]), np.array([0.4], np.float32))[0])
    words = as_query(rows([1, 1]))[0]
    mixed = blend(image, words, share)
    assert np.linalg.norm(strip_bias(mixed)) == pytest.approx(1.0, abs=1e-5)
    length = np.linalg.norm(share * strip_bias(image) + (1 - share) * strip_bias(words))
    assert mixed[-1] == pytest.approx((1 - share) / length, abs=1e-5)


def test_opposites_blend_to_nothing():
    image, words = similarity_query(np.array([1, 0, -0.3], np.float32)), as_query(rows([-1, 0]))[0]
    assert blend(image, words, 0.5).tolist() == [0, 0, 0]
