"""Matrices of scores are the search engine's own scores of the built-in model."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.scores import (
    CaptionRows,
    Documents,
    best_of_captions,
    calibration_of,
    encode_queries,
    score_matrix,
)
from capsearch.encoders.text.requests import subject
from capsearch.engine.fakes import FakeBackend
from capsearch.engine.query import Query
from capsearch.engine.records import GENERATED, Caption, Document, ImageRecord, Tag
from capsearch.engine.search import SearchEngine

COUNT = 60
QUERIES = ("a cat on a laptop", "violin", "show me dogs", "zxqv")
WRITTEN = {0: "a cat", 1: "a dog", 5: "people in the snow", 7: "a violin"}
GENERATED_CAPTIONS = {1: "一只狗", 2: "厨房", 7: "小提琴"}


@pytest.fixture(scope="module")
def model() -> Model:
    return registry.load(None)


def rows(model: Model, texts: Mapping[int, str], language: str) -> CaptionRows:
    encoded = model.text.encode(list(texts.values()), language)
    return CaptionRows(model.text.as_documents(encoded.caption), np.array([*texts]))


@pytest.fixture(scope="module")
def documents(model: Model) -> Documents:
    """Images of the model's bank, some captioned by people, some by models, some tagged."""
    stored = calibration_of(model, "en")
    assert stored is not None
    shown = {1: "dog", 7: "violin", 9: "cat"}
    tags = [
        [Tag("", "en", 0.8, f"{GENERATED}toy", shown[row])] if row in shown else []
        for row in range(COUNT)
    ]
    return Documents(
        stored.bank.images[:COUNT],
        rows(model, WRITTEN, "en"),
        "en",
        {"zh": rows(model, GENERATED_CAPTIONS, "zh")},
        tags,
    )


@pytest.fixture(scope="module")
def engine(model: Model, documents: Documents) -> SearchEngine:
    ids = [f"{row:02}" for row in range(COUNT)]
    people, models = Caption("", "en", "csv"), Caption("", "zh", f"{GENERATED}toy")
    captions = [
        (ids[row], caption, vector)
        for caption, some in ((people, documents.captions), (models, documents.generated["zh"]))
        for row, vector in zip(some.images.tolist(), some.vectors, strict=True)
    ]
    records = [ImageRecord(one, (f"/{one}.jpg",), 1, 1, 1, "JPEG") for one in ids]
    tagged = [
        Document(record, tags=tuple(tags))
        for record, tags in zip(records, documents.tags, strict=True)
    ]
    backend = FakeBackend(
        dict(zip(ids, tagged, strict=True)),
        dict(zip(ids, documents.images, strict=True)),
        captions,
    )
    return SearchEngine(backend, model.image, model.text)


def searched(engine: SearchEngine, query: Query) -> dict[int, float]:
    return {int(hit.image_id): hit.score for hit in engine.search(query).hits}


def matrix_row(model: Model, documents: Documents, text: str, **how: object) -> np.ndarray:
    queries = encode_queries(model.text, [subject(text, "en")], "en")
    return score_matrix(model, queries, documents, **how)[0]


@pytest.mark.parametrize("text", QUERIES)
def test_calibrated_evidence_is_what_a_search_shows(model, documents, engine, text):
    hits = searched(engine, Query(text, language="en", limit=COUNT, min_score=0.0))
    log_odds = matrix_row(model, documents, text)
    assert len(hits) == COUNT
    for row, probability in hits.items():
        assert 1 / (1 + np.exp(-log_odds[row])) == pytest.approx(probability, abs=1e-6)


@pytest.mark.parametrize("text", QUERIES[:4:2])
def test_images_alone_are_ranked_by_cosine_and_what_the_query_names(model, documents, engine, text):
    query = Query(text, language="en", mode="cm", limit=COUNT, min_score=0.0)
    scores = matrix_row(model, documents, text, mode="cm")
    assert list(searched(engine, query)) == np.argsort(-scores, kind="stable").tolist()
    cosines = matrix_row(model, documents, text, mode="cm", weight=0.0)
    assert not np.allclose(scores, cosines)  # both name something


def test_captions_alone_find_only_images_that_have_one(model, documents, engine):
    people = Documents(documents.images, documents.captions, "en")
    scores = matrix_row(model, people, "a cat", mode="cl")
    assert set(np.flatnonzero(~np.isnan(scores)).tolist()) == set(WRITTEN)
    hits = searched(engine, Query("a cat", language="en", mode="cl", limit=COUNT))
    for row in WRITTEN.keys() - GENERATED_CAPTIONS.keys():
        assert scores[row] == pytest.approx(hits[row], abs=1e-6)


def test_a_weight_is_the_convex_combination_with_a_floor(model, documents, engine):
    people = Documents(documents.images, documents.captions, "en")
    scores = matrix_row(model, people, "a cat", weight=0.3)
    hits = searched(engine, Query("a cat", language="en", weight=0.3, limit=COUNT))
    for row in set(range(COUNT)) - GENERATED_CAPTIONS.keys():
        assert scores[row] == pytest.approx(hits[row], abs=1e-6)


def test_the_best_caption_of_each_image_counts_in_any_order():
    scores = np.array([[0.1, 0.9, 0.3, -np.inf]], np.float32)
    best = best_of_captions(scores, np.array([2, 0, 2, 1]), 4)
    np.testing.assert_array_equal(best, np.array([[0.9, np.nan, 0.3, np.nan]], np.float32))
