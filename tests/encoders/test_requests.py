"""Requests become what they ask for, and descriptions pass unchanged."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.encoders.data.templates import phrases, with_article
from capsearch.encoders.text.concepts import all_concepts, by_id
from capsearch.encoders.text.requests import subject
from capsearch.engine.records import LANGUAGES


@pytest.mark.parametrize(
    ("request_text", "language", "asked_for"),
    [
        ("where is the cat?", "en", "cat"),
        ("Where's my red bicycle", "en", "red bicycle"),
        ("Show me some pictures of a violin, please!", "en", "a violin"),
        ("could you please find me photos with two dogs in them?", "en", "two dogs"),
        ("cat pictures", "en", "cat"),
        ("who is riding a horse?", "en", "riding a horse"),
        ("which photos have snow", "en", "snow"),
        ("有猫的照片", "zh", "猫"),
        ("有貓的照片嗎？", "zh", "猫"),
        ("请帮我找一张小提琴的图片", "zh", "小提琴"),
        ("猫在哪儿？", "zh", "猫"),
        ("猫 图片", "zh", "猫"),
        ("能给我看看麻婆豆腐吗", "zh", "麻婆豆腐"),
        ("照片里有一只大象", "zh", "一只大象"),
        ("猫の写真を見せて", "ja", "猫"),
        ("バイオリンが写っている写真を探しています。", "ja", "バイオリン"),
        ("お城の画像はありますか？", "ja", "お城"),
        ("猫はどこ？", "ja", "猫"),
        ("猫 画像", "ja", "猫"),
    ],
)
def test_a_request_becomes_what_it_asks_for(
    request_text: str, language: str, asked_for: str
) -> None:
    assert subject(request_text, language) == asked_for


@pytest.mark.parametrize(
    ("description", "language"),
    [
        ("a man taking pictures", "en"),
        ("show jumping", "en"),
        ("OK sign", "en"),
        ("pictures on a wall", "en"),
        ("old wedding photos", "en"),
        ("a vase that has some flowers in it", "en"),
        ("I love New York", "en"),
        ("看书的女孩", "zh"),
        ("墙上的照片", "zh"),
        ("女人在看孩子的照片", "zh"),
        ("黑白照片", "zh"),
        ("卫星照片", "zh"),
        ("请柬", "zh"),
        ("一张世界地图", "zh"),
        ("一些人拿着相机拍照片", "zh"),
        ("一只猫在哪里睡觉", "zh"),
        ("壁に飾られた写真", "ja"),
        ("白黒写真", "ja"),
        ("昔の写真", "ja"),
        ("自画像", "ja"),
        ("誰もいない部屋", "ja"),
        ("犬がボールを探しています", "ja"),
        ("キリンが柵から首を出しています。", "ja"),
        ("男性が猫に本を見せている", "ja"),
    ],
)
def test_a_description_passes_unchanged(description: str, language: str) -> None:
    assert subject(description, language) == description


@pytest.mark.parametrize(
    ("nothing_else", "language"),
    [
        ("photos", "en"),
        ("show me pictures", "en"),
        ("照片", "zh"),
        ("写真", "ja"),
        ("?", "en"),
        ("", "zh"),
    ],
)
def test_a_request_for_nothing_else_still_has_words(nothing_else: str, language: str) -> None:
    assert subject(nothing_else, language).strip() in (nothing_else, "pictures")


def test_names_of_concepts_are_no_requests_but_for_photographs_of_something() -> None:
    for one in all_concepts().values():
        for language, names in one.names.items():
            for name in names:
                assert subject(name, language) == name or "写真" in name or "photo" in name


@given(
    st.sampled_from(["violin", "dolphin", "castle", "sitar", "mushroom"]),
    st.sampled_from(LANGUAGES),
)
def test_the_requests_of_training_are_understood(concept: str, language: str) -> None:
    name = by_id(concept).name(language)
    for phrase in phrases("request")[language]:
        asked_for = subject(phrase.format(name, a=with_article(name)), language)
        assert asked_for in (name, with_article(name))


@given(st.text(), st.sampled_from([*LANGUAGES, "de"]))
def test_any_text_keeps_something_to_search_for(text: str, language: str) -> None:
    found = subject(text, language)
    assert bool(found.strip()) == bool(text.strip()) or found == text


def test_a_pasted_text_is_no_request() -> None:
    long = "show me " + "a cat and " * 100
    assert subject(long, "en") == long
