"""What sentences name: concepts and other content words."""

import pytest

from capsearch.encoders.data.tag_labels import named_in
from capsearch.engine.errors import UnknownLanguage


@pytest.mark.parametrize(
    ("text", "language", "concept"),
    [
        ("Two cats on a chair.", "en", "cat"),
        ("The men are running", "en", "man"),
        ("一只猫坐在椅子上", "zh", "cat"),
        ("一隻貓坐在椅子上", "zh", "cat"),  # Traditional
        ("他坐在那里", "zh", "sitting"),
        ("椅子に猫が座っている", "ja", "cat"),
        ("赤い車", "ja", "red"),
    ],
)
def test_names_are_found_in_every_language_and_inflection(text, language, concept):
    assert concept in named_in(text, language).concepts


def test_the_longest_name_counts():
    found = named_in("a man eats a hot dog next to a dog", "en").concepts
    assert {"hot-dog", "dog"} <= set(found)
    assert "dog" not in named_in("a man eats a hot dog", "en").concepts


def test_other_content_words_keep_their_spelling():
    assert named_in("a zorbly quux", "en").words == {"zorbl": "zorbly", "quux": "quux"}


@pytest.mark.parametrize("text", ["There is one of these in a picture", "", "12 of them"])
def test_function_words_and_generic_words_are_no_tags(text):
    found = named_in(text, "en")
    assert (found.concepts, dict(found.words)) == ((), {})


def test_single_characters_are_tags_only_as_nouns():
    assert "穿" not in named_in("穿", "zh").words  # a verb of one character, as in COCO-CN


def test_a_language_without_a_word_splitter_is_an_error():
    with pytest.raises(UnknownLanguage, match="no words in 'fr'; there is en, zh, ja"):
        named_in("un chat", "fr")
