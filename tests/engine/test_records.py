"""The nouns: what they compute about themselves."""

from __future__ import annotations

import dataclasses
from datetime import date

import numpy as np
import pytest

from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Filters, ImageRecord, SearchResult


def test_captions_from_a_model_are_generated_and_all_others_are_not():
    assert Caption("a cat", "en", "model:trio").generated
    assert not Caption("a cat", "en", "sidecar").generated
    assert not Caption("a cat", "en", "remodel:x").generated


def test_a_image_opens_at_the_first_of_its_paths():
    assert ImageRecord("id", ("/a.jpg", "/b.jpg"), 1, 1, 1, "JPEG").path == "/a.jpg"


def test_the_empty_filter_is_false_and_any_condition_makes_it_true():
    assert not Filters()
    assert Filters(folders=("/a",))
    assert Filters(taken_until=date(2024, 1, 1))
    assert Filters(written_by="people")


def test_records_cannot_be_changed():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Query("cat").limit = 3  # type: ignore[misc]


def test_queries_with_images_compare_without_asking_arrays_for_a_truth_value():
    pixels = np.zeros((2, 2, 3), np.uint8)
    assert Query("cat", image=pixels) == Query("cat", image=pixels + 1)


def test_results_compare_by_what_was_found_and_not_by_how_long_it_took():
    quick, slow = {"encode": 1.0}, {"encode": 2.0}
    first = SearchResult((), False, "en", "clm", 0.5, timings_ms=quick)
    assert first == SearchResult((), False, "en", "clm", 0.5, timings_ms=slow)
