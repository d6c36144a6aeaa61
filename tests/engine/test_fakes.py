"""The toy encoders mean what they say; the toy stores keep the stores' contracts."""

from __future__ import annotations

import sys
from math import sqrt
from pathlib import Path

import pytest

from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.fakes import (
    FakeCatalog,
    FakeImageEncoder,
    FakeTextEncoder,
    FakeVectorIndex,
    colour_image,
)

sys.path.insert(0, str(Path(__file__).parent.parent / "indexer"))
from store_contracts import CatalogContract, VectorIndexContract


class TestFakeVectorIndex(VectorIndexContract):
    def build(self, rows):
        return FakeVectorIndex(rows)


class TestFakeCatalog(CatalogContract):
    def build(self, records, captions, tags):
        return FakeCatalog({record.id: record for record in records}, captions, tags)

    def number(self, catalog, at):
        return at + 1


@pytest.mark.parametrize(
    ("text", "language"), [("a red car", "en"), ("红色的车", "zh"), ("赤い車", "ja")]
)
def test_three_languages_meet_the_same_image(text, language):
    eyes, words = FakeImageEncoder(), FakeTextEncoder()
    red, blue = eyes.project(eyes.features([colour_image("red"), colour_image("blue")]))
    assert words.detect(text) == language
    encoded = words.encode([text], language)
    assert (encoded.visual[0] @ red, encoded.visual[0] @ blue) == (1, 0)
    car = words.as_documents(words.encode(["a car"], "en").caption)[0]
    assert encoded.caption[0] @ car == pytest.approx(1 / sqrt(2))


def test_words_without_meaning_are_not_known():
    encoded = FakeTextEncoder().encode(["red", "zyzzyva"], "en")
    assert encoded.known == (True, False)
    assert not encoded.visual[1].any() and not encoded.caption[1].any()


def test_an_unknown_language_is_refused():
    with pytest.raises(UnknownLanguage):
        FakeTextEncoder().encode(["rouge"], "fr")


def test_another_turn_is_another_projection_over_the_same_eyes():
    old, new = FakeImageEncoder(), FakeImageEncoder(turn=1)
    features = old.features([colour_image("red")])
    assert old.digest == new.digest
    assert old.project(features) @ new.project(features).T == 0
