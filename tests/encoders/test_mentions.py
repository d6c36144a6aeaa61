"""What sentences name, whatever the inflection, in three languages."""

from __future__ import annotations

import pytest

from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import mentioned, names_one_of


def named(text: str, language: str) -> set[str]:
    """The broadest concepts of each name in a text."""
    return {one for ids in mentioned(text, language) for one in concepts.broadest(ids)}


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("Two cats on a couch.", "en", {"cat", "couch"}),  # the last word before the period
        ("Cat", "en", {"cat"}),
        ("a man rides a horse", "en", {"man", "riding-horse"}),
        ("buses, knives and feet", "en", {"bus", "knife", "foot"}),
        ("the children are running", "en", {"child", "running"}),
        ("两只猫和一辆自行车", "zh", {"cat", "bicycle"}),
        ("他坐在椅子上", "zh", {"sitting", "chair"}),
        ("一隻貓", "zh", {"cat"}),
        ("穿着T恤的男人", "zh", {"wearing", "t-shirt", "man"}),
        ("ソファの上の猫", "ja", {"couch", "cat"}),
        ("男性が馬に乗っています。", "ja", {"man", "riding-horse"}),
        ("赤い車", "ja", {"red", "car"}),
        ("zyzzyva", "en", set()),
    ],
)
def test_names_are_found_in_every_inflection(text: str, language: str, expected: set[str]) -> None:
    assert named(text, language) == expected


@pytest.mark.parametrize(
    ("text", "language", "absent"),
    [
        ("a hot dog", "en", "dog"),
        ("a man is cooking in a busy place of business", "en", "chef"),
        ("she is traveling by train", "en", "tourist"),
        ("a fence in a field", "en", "fencing-sport"),
        ("a kite flying high", "en", "fly-insect"),
        ("窗边的桌子", "zh", "archery-target"),  # a Japanese 的
        ("水里的鱼", "zh", "newt"),
        ("桌子上面", "zh", "noodles"),
        ("花が生けてあります", "ja", "ant"),
        ("犬が走っている", "ja", "walking"),  # a Chinese 走
        ("鳥のように飛ぶ", "ja", "sea-urchin-food"),
    ],
)
def test_words_that_only_look_like_a_name_are_none(text: str, language: str, absent: str) -> None:
    assert absent not in {one for ids in mentioned(text, language) for one in ids}


def test_a_text_that_is_a_name_means_it_whatever_it_is_in_sentences() -> None:
    assert "fly-insect" in named("fly", "en")
    assert "fly-insect" not in named("birds fly by", "en")


def test_a_name_has_the_ids_of_everything_below_it() -> None:
    (animals,) = mentioned("some animals", "en")
    assert animals >= concepts.narrower("animal")


def test_names_of_one_of_some_concepts() -> None:
    assert names_one_of("a picture of cats", "en", {"cat"})
    assert names_one_of("動物の写真", "ja", {"cat"})
    assert not names_one_of("a violin", "en", {"cat"})
