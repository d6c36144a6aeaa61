"""Folded tokens: one form for what is written in many ways, in three languages and file names."""

from __future__ import annotations

import pytest

from capsearch.encoders.text.tokenizers import MAX_FOLDED, fold, keywords, word_count


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Cats", "cat"),
        ("running dogs", "run dog"),
        ("Café MÜLLER", "cafe muller"),
        ("ｃａｔ", "cat"),  # full width
        ("圖書館", "图书馆"),  # Traditional and Simplified
        ("ｶﾞﾗｽ", "ガラス"),  # half-width kana
        ("東京", "东京"),
        ("IMG_2034.JPG", "2034"),
        ("my_cat-photo.png", "my cat photo"),
        ("the cat on the mat", "cat mat"),
    ],
)
def test_both_fold_to_the_same_tokens(one, other):
    assert fold(one) == fold(other) != ()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("猫", ("猫",)),
        ("一只猫", ("一", "一只", "只", "只猫", "猫")),
        ("东京tower2020", ("东", "东京", "京", "tower2020")),
        ("赤い車", ("赤", "赤い", "い", "い车", "车")),
        ("ガカ", ("ガ", "ガカ", "カ")),  # voicing marks are letters
        ("ケーキ", ("ケ", "ケー", "ー", "ーキ", "キ")),
        ("cat, 犬!", ("cat", "犬")),
        ("the of DSC jpg", ()),
        ("?!", ()),
        ("", ()),
    ],
)
def test_letters_become_words_and_han_and_kana_characters_and_pairs(text, tokens):
    assert fold(text) == tokens


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("猫", "一只猫"),
        ("黑猫", "一只黑猫在睡觉"),
        ("タワー", "東京タワーの夜"),
        ("red car", "a red car"),
    ],
)
def test_a_part_of_a_text_folds_to_a_part_of_its_tokens(part, whole):
    tokens, found = fold(part), fold(whole)
    assert any(found[at : at + len(tokens)] == tokens for at in range(len(found)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("red red car", ("red", "car")),
        ("一只猫", ("一只", "只猫")),  # single characters occur everywhere
        ("猫", ("猫",)),
        ("猫 dog", ("猫", "dog")),
        ("the", ()),
    ],
)
def test_a_query_looks_for_each_word_once_and_for_pairs_rather_than_characters(text, words):
    assert keywords(text) == words


def test_very_long_texts_are_cut():
    assert len(fold("cat " * MAX_FOLDED)) == MAX_FOLDED // len("cat ")


def test_names_that_cannot_be_decoded_are_folded_all_the_same():
    assert fold("caf\udce9 cat")[-1] == "cat"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("", 0),
        ("cat", 1),
        ("The teddy bear", 2),
        ("猫", 1),
        ("消防栓", 2),
        ("テディベア", 1),
        ("歯ブラシ", 2),
        ("スケートボード", 1),
        ("赤いバスとバイク", 4),
        ("一只猫趴在笔记本电脑上", 6),
        ("iPhone手机壳", 3),
    ],
)
def test_words_of_a_query_are_counted_in_every_script(text, count):
    assert word_count(text) == count
