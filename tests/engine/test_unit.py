"""The one way vectors become unit vectors."""

from __future__ import annotations

import numpy as np
import pytest

from capsearch.engine.vectors import unit


def test_rows_and_single_vectors_get_length_one():
    assert unit(np.array([3.0, 4.0])).tolist() == pytest.approx([3 / 5, 4 / 5])
    assert unit(np.array([[3.0, 4.0], [0.0, 2.0]]))[1].tolist() == [0, 1]


def test_a_zero_vector_stays_zero_and_the_given_one_is_not_changed():
    given = np.zeros(3, np.float32)
    assert unit(given).tolist() == [0, 0, 0]
    doubled = np.array([2.0, 0.0])
    unit(doubled)
    assert doubled.tolist() == [2, 0]
