"""Cached sentence and word vectors are computed once and never confused."""

import numpy as np
import pytest

pytest.importorskip("torch")

from capsearch.encoders.data import features
from capsearch.encoders.data.features import (
    CachedSentenceEncoder,
    FeatureCache,
    cached_word_vectors,
)


class Lengths:
    """A sentence's vector is its length; remembers the sentences it encoded."""

    def __init__(self):
        self.encoded = []

    def encode(self, texts):
        self.encoded += texts
        return np.array([[len(text)] for text in texts], np.float32)


@pytest.fixture
def cache(tmp_path):
    return FeatureCache(tmp_path / "cache")


def encode(cache, encoder, texts, digest="one"):
    return CachedSentenceEncoder(encoder, digest, cache).encode(texts)[:, 0].tolist()


def test_a_sentence_is_encoded_once_across_runs(cache):
    encoder = Lengths()
    assert encode(cache, encoder, ["a", "bb", "a"]) == [1, 2, 1]
    assert encode(cache, encoder, ["ccc", "bb", "bad \ud800"]) == [3, 2, 5]
    assert encoder.encoded == ["a", "bb", "ccc", "bad \ud800"]


def test_another_encoder_has_its_own_vectors(cache):
    encode(cache, Lengths(), ["a"])
    other = Lengths()
    encode(cache, other, ["a"], digest="two")
    assert other.encoded == ["a"]


def test_progress_counts_only_uncached_sentences(cache, monkeypatch):
    monkeypatch.setattr(features, "BATCH_SIZE", 2)
    encode(cache, Lengths(), ["a"])
    reports = []
    reporting = CachedSentenceEncoder(
        Lengths(), "one", cache, lambda *counts: reports.append(counts)
    )
    reporting.encode(["a", "bb", "ccc", "dddd"])
    assert reports == [(2, 3), (3, 3)]


def test_word_vectors_are_computed_again_when_their_input_changes(cache):
    made = []

    def make():
        made.append(1)
        return np.full((2, 3), len(made), np.float32)

    for made_from, expected in ((("x",), 1), (("x",), 1), (("y",), 2)):
        rows = cached_word_vectors(cache, ("cat", "dog"), made_from, make)
        assert rows.shape == (2, 3)
        assert (rows == expected).all()
