"""Text of unknown encoding: short strings of each encoding become what was written.

Issue 11, 8. Of the captions of test-xtd10, cut to 5 to 40 characters, all 4,394 in GB 18030, Big5,
Shift-JIS and EUC-JP are read as written, and 3,622 of 3,626 in UTF-16 without a byte order mark.
"""

from __future__ import annotations

import pytest

from capsearch.indexer.sources.charsets import read_text

SIMPLIFIED = [
    "毕业照二〇一九",
    "外婆在厨房包饺子",
    "一只猫趴在笔记本电脑上",
    "张伟和李娜的婚礼",
    "故宫博物院太和殿",
    "两个孩子在公园里放风筝。",
    "杭州西湖断桥残雪",
    "我们的第一次露营，2018年夏天",
    "爸爸妈妈在黄山迎客松前合影留念",
    "办公室年会抽奖",
]
TRADITIONAL = [
    "畢業典禮合照",
    "外婆在廚房包餃子",
    "一隻貓趴在筆記型電腦上",
    "臺北市政府前跨年煙火",
    "九份老街的燈籠",
    "陽明山賞櫻花",
    "兩個孩子在公園裡放風箏。",
    "爸爸媽媽結婚三十週年",
    "日月潭邊的纜車站",
    "阿里山小火車與雲海，攝於清晨",
]
WITH_KANA = [
    "運動会のリレー",
    "ノートパソコンの上の猫",
    "おばあちゃんの誕生日",
    "京都の紅葉",
    "赤い服を着た女性が歩いている",
    "東京タワーと桜",
    "ディズニーランドにて",
    "夏休みの海水浴、鎌倉の由比ヶ浜",
    "サッカーをする少年たち",
    "ラーメンと餃子",
]
WITHOUT_KANA = [
    "東京駅前広場",
    "卒業式集合写真",
    "運動会徒競走",
    "家族旅行記念撮影",
    "富士山五合目",
    "京都清水寺紅葉",
    "北海道新幹線",
    "花火大会二〇一九年",
    "七五三記念写真",
    "鎌倉大仏前",
]
EUROPEAN = [
    "un café à Paris",
    "Größe der Straße",
    "Grüße aus München",
    "El niño en la montaña",
    "São Paulo à noite",
    "L’été à la plage",
    "Smörgåsbord i Malmö",
    "Où est le château ?",
    "Crème brûlée",
    "naïve façade",
    "“Starry night” – detail",
    "Zürich, 20 °C",
]
MIXED = [
    "a red bus in London",
    "Grandma at the beach",
    "un café à Paris",
    "一只猫趴在笔记本电脑上",
    "故宫博物院太和殿",
    "ノートパソコンの上の猫",
    "卒業式集合写真",
    "臺北市政府前跨年煙火",
]
CASES = {
    "gb18030": SIMPLIFIED,
    "big5": TRADITIONAL,
    "cp932": [*WITH_KANA, *WITHOUT_KANA],
    "euc_jp": [*WITH_KANA, *WITHOUT_KANA],
    "cp1252": EUROPEAN,
    "utf-16-le": MIXED,
    "utf-16-be": MIXED,
    "utf-8": MIXED,
}
# (text, encoding) that the bytes do not tell: each is also a plausible text in another encoding.
LIMITS = [
    ("桌子上放有", "utf-16-le"),  # as ASCII: LhP[, a line break, N>e, a tab, g
    ("雪が全然積", "utf-16-be"),  # UTF-8: 爺0LQhq6zM
]


@pytest.mark.parametrize(
    ("text", "encoding"), [(text, encoding) for encoding, all in CASES.items() for text in all]
)
def test_short_text_is_decoded_from_its_encoding(text, encoding):
    """Issue 11, 8."""
    assert read_text(text.encode(encoding)) == text


@pytest.mark.parametrize(("text", "encoding"), LIMITS)
def test_some_short_strings_are_read_with_another_encoding(text, encoding):
    """Issue 11, 8: documented limits, not wishes."""
    assert read_text(text.encode(encoding)) != text


@pytest.mark.parametrize("encoding", ["utf-8", "gb18030", "big5", "cp932", "euc_jp"])
def test_a_field_cut_within_its_last_character_keeps_the_others(encoding):
    """Issue 11, 8: IPTC fields end after a number of bytes, not of characters."""
    assert read_text("日本東京車站的人".encode(encoding)[:-1]) == "日本東京車站的"


def test_a_whole_file_in_an_old_encoding_is_decoded():
    rows = [f"IMG_{n}.jpg,{text}" for n, text in enumerate(TRADITIONAL)]
    lines = "\n".join(("file,caption", *rows))
    assert read_text(lines.encode("big5")) == lines


def test_iso_2022_jp_is_recognised_by_its_escapes():
    assert read_text("運動会".encode("iso2022_jp")) == "運動会"


@pytest.mark.parametrize("text", ["кошка на окне", "γάτα", "고양이", "ภาพ", "", "a\tb\n"])
def test_utf8_in_other_alphabets_stays_utf8(text):
    assert read_text(text.encode()) == text


@pytest.mark.parametrize("data", [b"\xff\xfe\xff", bytes(range(128, 256)), b"\x81" * 7, b"\0\0\0"])
def test_bytes_that_are_no_text_are_decoded_to_something(data):
    read_text(data).encode()
