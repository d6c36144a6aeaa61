"""Kana with the wrong marks, and words with several spellings."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.encoders.text.languages import normalise, repair, respell, spellings

KNOWN = frozenset(("バイオリン", "コンピューター", "イルカ", "カー", "アイスクリーム"))


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("ハ゛イオリン", "バイオリン"),
        ("ハ゜ン", "パン"),
        ("ふ゛と゛う", "ぶどう"),
        ("ﾊﾞｲｵﾘﾝ", "バイオリン"),
        ("ソ−セ−ジ", "ソーセージ"),
        ("スマ—トフォン", "スマートフォン"),
        ("カレ− ライス", "カレー ライス"),
    ],
)
def test_wrong_marks_are_repaired(written: str, meant: str) -> None:
    assert normalise(written) == meant


@pytest.mark.parametrize("text", ["ロック-ポップ", "東京—大阪", "犬−猫", "5−3", "゛", "中国—日本"])
def test_dashes_and_marks_elsewhere_stay(text: str) -> None:
    assert repair(text) == text


@given(st.text())
def test_repaired_text_stays_as_it_is(text: str) -> None:
    assert repair(repair(text)) == repair(text)


@pytest.mark.parametrize(
    ("written", "known"),
    [
        ("ヴァイオリン", "バイオリン"),
        ("コンピュータ", "コンピューター"),
        ("コンピュータとヴァイオリン", "コンピューターとバイオリン"),
        ("アイス・クリーム", "アイスクリーム"),
        ("いるか", "イルカ"),
        ("バイオリン", "バイオリン"),
    ],
)
def test_an_unknown_spelling_becomes_a_known_one(written: str, known: str) -> None:
    assert respell(written, KNOWN.__contains__) == known


@pytest.mark.parametrize("text", ["ルイ・ヴィトン", "ねこ", "猫とヴェール", "violin", ""])
def test_what_has_no_known_spelling_stays(text: str) -> None:
    assert respell(text, KNOWN.__contains__) == text


def test_spellings_of_a_word() -> None:
    assert tuple(spellings("ヴェスパ")) == ("ベスパ", "ベスパー")
    assert tuple(spellings("モーター・カー")) == (
        "モーター・カー", "モーター・カ", "モーターカー", "モーターカ"
    )  # fmt: skip
