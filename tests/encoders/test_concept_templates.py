"""Captions made of names: right grammar where it is easy to be wrong, and the same every time."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.encoders.data.templates import (
    CHINESE,
    CHINESE_KINDS,
    FORMS,
    JAPANESE,
    JAPANESE_KINDS,
    captions,
    counted,
    photo_captions,
    phrase_sets,
    phrases,
    plural,
    with_article,
)
from capsearch.encoders.text.concepts import all_concepts, by_id, fold, kind_of
from capsearch.engine.records import LANGUAGES

CONCEPTS = sorted(all_concepts())


def test_every_concept_has_a_kind_with_phrases_in_three_languages() -> None:
    for concept in all_concepts().values():
        assert set(phrases(f"kind {kind_of(concept)}")) == set(LANGUAGES), concept.id


def test_every_phrase_names_the_concept() -> None:
    for by_language in phrase_sets().values():
        assert set(by_language) == set(LANGUAGES)
        for of_language in by_language.values():
            assert all("X" in phrase.format("X", a="X") for phrase in of_language)


def test_measure_words_belong_to_concepts_and_kinds_that_exist() -> None:
    assert {*CHINESE, *JAPANESE} <= set(CONCEPTS)
    assert {*CHINESE_KINDS, *JAPANESE_KINDS} <= {
        name.removeprefix("kind ") for name in phrase_sets()
    }
    assert sum(FORMS.values()) == pytest.approx(1)


@pytest.mark.parametrize(
    ("concept", "kind"),
    [
        ("house-wren", "bird"),
        ("dolphin", "animal"),
        ("mapo-tofu", "dish"),
        ("orange-juice", "drink"),
        ("violin", "instrument"),
        ("castle", "place"),
        ("great-wall", "landmark"),
        ("ukiyo-e", "style"),
        ("receipt", "document"),
        ("hourglass", "thing"),
    ],
)
def test_the_kind_of_a_concept(concept: str, kind: str) -> None:
    assert kind_of(by_id(concept)) == kind


@given(st.sampled_from(CONCEPTS), st.sampled_from(LANGUAGES), st.integers())
def test_equal_seeds_give_equal_captions(concept: str, language: str, seed: int) -> None:
    one = captions(by_id(concept), language, Random(seed), 3)
    assert one == captions(by_id(concept), language, Random(seed), 3)
    assert len(one) == 3
    assert all("{" not in caption for caption in one)


def test_the_commonest_name_is_used_most_then_synonyms_then_broader_terms() -> None:
    found = photo_captions([by_id("violin")], "en", Random(1), 2000)
    words = {"violin": "violin", "fiddle": "violin", "string": "string-instrument"}
    named = [next(word for word in words if word in one.text) for one in found]
    uses = Counter(named)
    assert uses["violin"] > uses["fiddle"] > uses["string"] > 0
    assert [one.concept for one in found] == [words[word] for word in named]


def test_bare_names_are_among_the_captions() -> None:
    texts = captions(by_id("dolphin"), "ja", Random(1), 1000)
    assert 0.2 < sum(text in by_id("dolphin").names["ja"] for text in texts) / 1000 < 0.4


def test_a_name_that_may_not_be_used_is_in_no_caption() -> None:
    without = {fold("fiddle"), fold("violin")}
    assert captions(by_id("violin"), "en", Random(1), 500, without) == ()
    found = photo_captions([by_id("violin")], "en", Random(1), 500, without)
    assert 0 < len(found) < 100  # the broader term is left
    assert {one.concept for one in found} == {"string-instrument"}


@pytest.mark.parametrize(
    ("concept", "language", "expected"),
    [
        ("dog", "zh", {"只", "条"}),
        ("horse", "zh", {"匹"}),
        ("violin", "zh", {"把"}),
        ("house-wren", "ja", {"羽"}),
        ("dolphin", "ja", {"匹"}),
        ("ship", "ja", {"隻"}),
    ],
)
def test_the_measure_word_fits(concept: str, language: str, expected: set[str]) -> None:
    one = by_id(concept)
    found = {counted(one, kind_of(one), "", language, Random(seed))[1] for seed in range(40)}
    assert found == expected


def test_what_is_not_counted_has_no_number() -> None:
    for language in LANGUAGES:
        assert counted(by_id("ukiyo-e"), "style", "X", language, Random(1)) == ""


@pytest.mark.parametrize(
    ("name", "several"),
    [
        ("dog", "dogs"),
        ("puppy", "puppies"),
        ("monkey", "monkeys"),
        ("finch", "finches"),
        ("Arctic fox", "Arctic foxes"),
        ("house mouse", "house mice"),
        ("drums", "drums"),
        ("octopus", "octopuses"),
        ("bus", "buses"),
        ("fish", "fish"),
    ],
)
def test_plurals(name: str, several: str) -> None:
    assert plural(name) == several


@pytest.mark.parametrize(
    "expected",
    ["a dog", "an apple", "a unicycle", "an umbrella", "a ukulele", "an hourglass", "an SUV",
     "a European goldfinch", "drums", "French fries", "a cactus", "a bus"],
)  # fmt: skip
def test_articles(expected: str) -> None:
    name = expected.removeprefix("an ").removeprefix("a ")
    assert with_article(name) == expected


def test_of_a_thing_and_its_depiction_half_the_captions_name_both() -> None:
    shown = [by_id("elephant"), by_id("sketch")]
    texts = [one.text for one in photo_captions(shown, "en", Random(1), 1000)]
    both = [text for text in texts if "sketch" in text or "drawing" in text or "drawn" in text]
    assert 400 < len(both) < 600
    assert not any("sketch" in text and "elephant" not in text for text in texts[:3])


def test_a_depiction_alone_is_captioned_like_any_concept() -> None:
    assert photo_captions([by_id("sketch")], "en", Random(1), 3)
    assert photo_captions([], "en", Random(1), 3) == ()
