"""Concept classifiers: distilled from a tagger, kept beside a calibration, chosen by a text."""

import numpy as np
import pytest

from capsearch.encoders.models.calibration import ConceptClassifiers
from capsearch.encoders.text.concepts.mentions import mentioned

IDS = ("animal", "cat", "couch", "pug")
RANDOM = np.random.default_rng(0)


def classifiers(ids=IDS):
    weights = np.arange(len(ids) * 3, dtype=np.float32).reshape(len(ids), 3) / 10
    return ConceptClassifiers(ids, weights, np.linspace(-1, 1, len(ids)).astype(np.float32))


@pytest.mark.parametrize(
    ("text", "language", "senses"),
    [
        ("a cat on a couch", "en", ((1,), (2,))),
        ("两只猫", "zh", ((1,),)),
        ("ソファの上の猫", "ja", ((2,), (1,))),
        ("an animal", "en", ((0,),)),
        ("a dog", "en", ((3,),)),  # no classifier of its own: what is narrower
        ("a violin and the sea", "en", ()),
    ],
)
def test_a_text_has_the_classifiers_of_what_it_names(text, language, senses):
    assert classifiers().senses(mentioned(text, language)) == senses


def test_what_names_nothing_known_has_none():
    assert classifiers().named(mentioned("a violin", "en")) is None


def test_many_texts_score_as_each_of_them_does():
    images = RANDOM.standard_normal((5, 3)).astype(np.float32)
    texts = ["a cat on a couch", "a dog", "a violin"]
    table = classifiers().scores(texts, "en", images)
    for text, row in zip(texts, table, strict=True):
        one = classifiers().named(mentioned(text, "en"))
        expected = np.zeros(5) if one is None else one.scores(images)
        assert row == pytest.approx(expected, abs=1e-5)


def test_they_are_read_back_as_they_were(tmp_path):
    assert ConceptClassifiers.load(tmp_path) is None
    classifiers().save(tmp_path)
    found = ConceptClassifiers.load(tmp_path)
    assert found.ids == IDS
    np.testing.assert_allclose(found.weights, classifiers().weights, atol=0.01)
    np.testing.assert_allclose(found.biases, classifiers().biases, atol=0.01)
