"""Language detection, normalisation and conversion to Simplified Chinese."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsearch.encoders.text.languages import detect, language_by_script, normalise, simplify

SIMPLIFIED = """
一位女性在厨房做料理
两名男性站在街边聊天
一家人围着餐桌吃饭
神秘的大门
真实的照片
黄色的花瓶里插着花
走廊里有一个瓶子
概念车
明朗的天空
一只敏捷的猫
翻书的僧人
谨慎的司机
大概有十个人在排队
孩子供奉在佛像前的水果
平台所有的灯都亮着
在田野里挖野菜的老人
打野球的少年
二〇二四年的春天
豚鼠和海豚
个人写真
日本料理店的门口
新干线列车
一个人在海边看日出
草地上的狗
猫
红色
女性
男性
料理
滑雪
桌子上有一杯咖啡和一本书
"""

TRADITIONAL = """
一位女性在廚房做料理
她拿着電話站在街上
裏面有兩隻貓
他説這裏的風景很美
沒有人的電車
穿着和服的女孩
衞生間裏有馬桶
一台黑色的電腦
飛行機器人
電子供應商
一小時計費的停車場
麵包丁沙拉
我們在海邊看夕日
自動車庫門
全部屋子都亮了
測試合格
新幹線
電車
料理
騎馬的人
"""

JAPANESE = """
自転車 桜 写真 駅 黒猫 信号機 時計 子供 野球場 飛行機 自動車 駐車場 腕時計 砂浜 滝 弁当
人々 部屋 食卓 白黒写真 国際会議 学園祭 海辺 花畑 交差点 台所
"""


@pytest.mark.parametrize("text", (SIMPLIFIED + TRADITIONAL).split())
def test_chinese_is_never_detected_as_japanese(text):
    assert detect(text) == "zh"


@pytest.mark.parametrize("text", JAPANESE.split())
def test_words_in_han_that_only_japanese_uses_are_japanese(text):
    assert detect(text) == "ja"


@pytest.mark.parametrize(
    "text", ["ねこ", "カメラ", "猫がいる", "ﾈｺ", "東京タワー", "赤い車", "a red くるま"]
)
def test_text_with_any_kana_is_japanese(text):
    assert detect(text) == "ja"


@pytest.mark.parametrize("text", ["iPhone手机壳", "NBA球星", "红色 car", "T恤", "看🐱"])
def test_chinese_with_latin_letters_or_emoji_is_chinese(text):
    assert detect(text) == "zh"


@pytest.mark.parametrize("text", ["a cat", "", " ", "🐱", "123", "?!", "ＣＡＴ"])
def test_latin_letters_and_text_without_letters_are_english(text):
    assert detect(text) == "en"


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("猫がいる", "ja"),
        ("ㇰ", "ja"),
        ("一只猫", "zh"),
        ("写真", "zh"),
        ("a cat", "en"),
        ("", "en"),
    ],
)
def test_the_script_alone_reports_han_without_kana_as_chinese(text, language):
    assert language_by_script(text) == language


@pytest.mark.parametrize("text", ["写真 海", "海　写真"])
def test_a_japanese_word_between_spaces_makes_the_text_japanese(text):
    assert detect(text) == "ja"


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ("ＡＢＣ　１２", "ABC 12"),
        ("ｶﾒﾗ", "カメラ"),
        ("ﾊﾞｽ", "バス"),
        ("a\u200bb\ufeffc", "abc"),
        ("a\tb\r\n c\u2028d", "a b c d"),
        ("  a  ", "a"),
        ("cafe\u0301", "café"),
        ("e\u200d\u0301", "é"),
        ("a\x00b", "a b"),
        ("a\udc80b", "a b"),
        ("漢字", "漢字"),
        ("", ""),
    ],
)
def test_normalise_maps_equivalent_spellings_to_one(given_text, expected):
    assert normalise(given_text) == expected


@pytest.mark.parametrize(
    ("traditional", "simplified"),
    [
        ("一隻貓 on a 電腦 ねこ", "一只猫 on a 电脑 ねこ"),
        ("裏面有兩張乾淨的桌子", "里面有两张干净的桌子"),  # 乾 becomes 干 here
        ("乾隆皇帝", "乾隆皇帝"),  # and stays in a name: phrases go before characters
        ("她頭髮上的髮夾發光", "她头发上的发夹发光"),
        ("穿着運動鞋的後衛", "穿着运动鞋的后卫"),
        ("麵包、咖啡與鬱金香", "面包、咖啡与郁金香"),
        ("已经是简体", "已经是简体"),
        ("", ""),
    ],
)
def test_simplify_changes_the_script_and_nothing_else(traditional, simplified):
    assert simplify(traditional) == simplified


def test_simplify_passes_over_characters_that_utf_8_cannot_encode():
    assert simplify("貓\udc80電腦\ud800") == "猫\udc80电脑\ud800"


@given(st.text())
def test_normalising_twice_is_normalising_once(text):
    once = normalise(text)
    assert normalise(once) == once


@given(st.text(st.characters(categories=["Cc", "Cf", "Cs", "Mn", "Zs", "Lo", "Sk"])))
def test_normalised_text_with_odd_characters_is_stable_stripped_and_encodable(text):
    once = normalise(text)
    assert normalise(once) == once
    assert once == once.strip()
    once.encode("utf-8")


@given(st.text())
def test_every_text_has_a_language_code(text):
    assert re.fullmatch("[a-z]{2}|und", detect(text))
