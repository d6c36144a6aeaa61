"""The toy encoders mean what they say; the toy backend passes the contract of backends."""

from __future__ import annotations

import sys
from math import sqrt
from pathlib import Path

import pytest

from capsearch.encoders.text import concepts
from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.fakes import (
    FakeBackend,
    FakeCaptioner,
    FakeImageEncoder,
    FakeTagger,
    FakeTextEncoder,
    colour_image,
)
from capsearch.engine.records import Caption, Tag

sys.path.insert(0, str(Path(__file__).parent.parent / "indexer"))
from backend_contract import BackendContract
from enriched_contract import EnrichedContract


class TestFakeBackend(BackendContract, EnrichedContract):
    def build(self, documents, vectors, captions):
        return FakeBackend({one.record.id: one for one in documents}, vectors, captions, concepts)


@pytest.mark.parametrize(
    ("text", "language"), [("a red car", "en"), ("红色的车", "zh"), ("赤い車", "ja")]
)
def test_three_languages_meet_the_same_image(text, language):
    encoder, words = FakeImageEncoder(), FakeTextEncoder()
    red, blue = encoder.project(encoder.features([colour_image("red"), colour_image("blue")]))
    assert words.detect(text) == language
    encoded = words.encode([text], language)
    assert (encoded.visual[0] @ red, encoded.visual[0] @ blue) == (1, 0)
    car = words.as_documents(words.encode(["a car"], "en").caption)[0]
    assert encoded.caption[0] @ car == pytest.approx(1 / sqrt(2))


def test_words_without_meaning_are_not_known():
    encoded = FakeTextEncoder().encode(["red", "zyzzyva"], "en")
    assert encoded.known == (True, False)
    assert not encoded.visual[1].any() and not encoded.caption[1].any()


def test_a_query_looks_for_each_word_once_and_a_phrase_keeps_them_all():
    encoder = FakeTextEncoder()
    assert encoder.words("Red, red car") == ("red", "red", "car")
    query = encoder.understand('Red, red "red red" car')
    assert query.keywords == ("red", "car") and query.phrases == (("red", "red"),)


def test_an_unknown_language_is_refused():
    with pytest.raises(UnknownLanguage):
        FakeTextEncoder().encode(["rouge"], "fr")


def test_another_turn_is_another_projection_over_the_same_eyes():
    old, new = FakeImageEncoder(), FakeImageEncoder(turn=1)
    features = old.features([colour_image("red")])
    assert old.digest == new.digest
    assert old.project(features) @ new.project(features).T == 0


def test_the_toy_tagger_names_the_colours_of_an_image():
    encoder = FakeImageEncoder()
    features = encoder.feature_maps([colour_image("red", "red", "red", "orange")])
    [tags] = FakeTagger(unlinked=frozenset({"red"})).tag(features)
    source = "model:toy-tags@1"
    assert tags == (
        Tag("red", "en", 0.75, source),
        Tag("orange", "en", 0.25, source, "orange-color"),
    )
    assert all(tag.generated and (not tag.concept or concepts.by_id(tag.concept)) for tag in tags)


def test_the_toy_captioner_describes_an_image_in_three_languages():
    features = FakeImageEncoder().feature_maps([colour_image("blue"), colour_image("red")])
    captioner = FakeCaptioner(languages=("en", "ja"))
    blue, _ = captioner.caption(features)
    source = "model:toy-captions@1"
    assert blue == (Caption("a blue image", "en", source), Caption("青の画像", "ja", source))
    assert captioner.captioned == 2


def test_a_backbone_without_a_feature_map_gives_no_captions():
    features = FakeImageEncoder(maps=False).feature_maps([colour_image("blue")])
    assert features.grid is None and len(features) == 1
    with pytest.raises(ValueError, match="feature map"):
        FakeCaptioner().caption(features)
