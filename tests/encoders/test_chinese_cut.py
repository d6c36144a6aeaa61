"""The Chinese word segmentation that the models were trained with, whatever library computes it.

They were trained on the cuts of jieba 0.42.1. Another library has to give the same tokens, or the
tokenizer needs a new version and the models need training.
"""

import re
import subprocess
import sys

import jieba
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsearch.encoders.models import registry
from capsearch.encoders.text import concepts, tokenizers
from capsearch.encoders.text.languages import normalise, simplify
from capsearch.encoders.text.tokenizers import MAX_CHARACTERS, ChineseTokenizer, Dictionary
from capsearch.engine.errors import MissingExtra

EXPECTED = {
    "一只黑色的猫趴在笔记本电脑上": "一只 黑色 的 猫 趴在 笔记本电脑 上",
    "两个男人在公园里打篮球": "两个 男人 在 公园 里 打篮球",
    "穿着红色T恤的小女孩在沙滩上奔跑": "穿着 红色 t恤 的 小女孩 在 沙滩 上 奔跑",
    "一辆公共汽车停在十字路口等红绿灯": "一辆 公共汽车 停 在 十字路口 等 红绿灯",
    "厨房的桌子上放着一盘水果和一杯咖啡": "厨房 的 桌子 上 放 着 一盘 水果 和 一杯 咖啡",
    "一群人站在雪地里，准备滑雪。": "一群 人 站 在 雪地 里 准备 滑雪",
    "餐桌上有披萨、沙拉和两瓶啤酒": "餐桌上 有 披萨 沙拉 和 两瓶 啤酒",
    "戴着头盔的摩托车手从山坡上飞驰而下": "戴 着 头盔 的 摩托车 手 从 山坡 上 飞驰 而 下",
    "一個老人騎著自行車經過火車站": "一个 老人 骑 著 自行车 经过 火车站",
    "拿着iPhone手机自拍的女孩": "拿 着 iphone 手机 自 拍 的 女孩",
    "棒球运动员挥动球棒击球": "棒球 运动员 挥动 球棒 击球",
    "2只长颈鹿在动物园里吃树叶": "2 只 长颈鹿 在 动物园 里 吃 树叶",
}
# Words that no training caption uses: the full dictionary has them, the model's does not.
OUTSIDE_CAPTIONS = {
    "研究生命起源": ("研究 生命 起源", "研究 生 命 起 源"),
    "南京市长江大桥": ("南京市 长江大桥", "南京 市 长 江 大桥"),
}


@pytest.fixture(scope="module")
def full():
    return ChineseTokenizer()


@pytest.fixture(scope="module")
def built_in():
    return registry.load().text.encoders["zh"].tokenizer


@pytest.mark.parametrize("text", EXPECTED)
def test_the_full_dictionary_gives_these_tokens(full, text):
    assert " ".join(full.tokens(text)) == EXPECTED[text]


@pytest.mark.parametrize("text", EXPECTED)
def test_the_built_in_model_gives_the_same(built_in, text):
    assert " ".join(built_in.tokens(text)) == EXPECTED[text]


@pytest.mark.parametrize("text", OUTSIDE_CAPTIONS)
def test_words_outside_the_training_captions_are_single_characters_in_the_model(
    full, built_in, text
):
    tokens = tuple(" ".join(tokenizer.tokens(text)) for tokenizer in (full, built_in))
    assert tokens == OUTSIDE_CAPTIONS[text]


class TestMostProbableCut:
    """A cut's probability is the product of its words' frequencies over the total."""

    def test_two_words_win_if_their_product_is_larger(self):
        # 30/100 * 40/100 = .12 against .10 for the whole
        cut = ChineseTokenizer(Dictionary({"黑色": 30, "猫": 40, "黑色猫": 10}, 100))
        assert cut.tokens("黑色猫") == ("黑色", "猫")

    def test_one_word_wins_if_it_is_more_frequent_than_that(self):
        # .13 against 30/100 * 40/100 = .12
        cut = ChineseTokenizer(Dictionary({"黑色": 30, "猫": 40, "黑色猫": 13}, 100))
        assert cut.tokens("黑色猫") == ("黑色猫",)

    def test_a_character_outside_the_dictionary_counts_as_one_occurrence(self):
        cut = ChineseTokenizer(Dictionary({"黑色": 3, "色猫": 2}, 100))
        # 黑色 + 猫: 3/100 * 1/100 beats 黑 + 色猫: 1/100 * 2/100
        assert cut.tokens("黑色猫") == ("黑色", "猫")


def jieba_with(dictionary: Dictionary | None) -> jieba.Tokenizer:
    """jieba with a pinned dictionary; None: with its own, in lower case."""
    jieba.setLogLevel(60)
    cutter = jieba.Tokenizer()
    if dictionary is None:
        cutter.initialize()
        words: dict[str, int] = {}
        for word, frequency in cutter.FREQ.items():  # with every prefix of a word, at 0
            words[word.lower()] = max(frequency, words.get(word.lower(), 0))
        cutter.FREQ = words
        return cutter
    cutter.FREQ = {word[:end]: 0 for word in dictionary.words for end in range(1, len(word))}
    cutter.FREQ |= dictionary.words
    cutter.total, cutter.initialized = dictionary.total, True
    return cutter


def cut_by(cutter: jieba.Tokenizer, text: str) -> tuple[str, ...]:
    text = simplify(normalise(text))[:MAX_CHARACTERS].lower()
    words = cutter.cut(text, HMM=False)
    return tuple(word for word in words if re.search(r"\w", word))


def chinese_names() -> list[str]:
    return [name for concept in concepts.all_concepts().values() for name in concept.names["zh"]]


# Words that the models know, single characters, and what lies outside jieba's classes of
# characters: CJK extensions, kana, Hangul, accents, marks and spaces.
PARTS = st.one_of(
    st.sampled_from([*EXPECTED, *OUTSIDE_CAPTIONS, *chinese_names()]),
    st.text("的一不上人有小大中子男女学生研究命起源长江桥猫狗趴", min_size=1, max_size=6),
    st.text("abcXYZ019+#&._%-T恤NBA", min_size=1, max_size=6),
    st.sampled_from(
        ["㐀", "𠀀", "鿖", "鿿", "〇", "ー", "カ", "한", "é", "，", " ", "\r\n", "🐱", "隻"]
    ),
    st.text(max_size=3),
)
TEXTS = st.lists(PARTS, max_size=8).map("".join)


@pytest.fixture(scope="module")
def jieba_built_in(built_in):
    return jieba_with(built_in.dictionary)


@pytest.fixture(scope="module")
def jieba_full():
    return jieba_with(None)


class TestTheSameAsJieba:
    @pytest.mark.parametrize("model", ["trio", "trio-accurate", "trio-fast"])
    def test_for_all_names_of_concepts(self, model):
        tokenizer = registry.load(model).text.encoders["zh"].tokenizer
        cutter, names = jieba_with(tokenizer.dictionary), chinese_names()
        assert len(names) > 9000
        assert [name for name in names if tokenizer.tokens(name) != cut_by(cutter, name)] == []

    def test_with_the_whole_dictionary(self, full, jieba_full):
        texts = [*EXPECTED, *OUTSIDE_CAPTIONS, *chinese_names()]
        assert [text for text in texts if full.tokens(text) != cut_by(jieba_full, text)] == []

    @settings(max_examples=300, deadline=None)
    @given(TEXTS)
    def test_for_any_text(self, built_in, jieba_built_in, full, jieba_full, text):
        assert built_in.tokens(text) == cut_by(jieba_built_in, text)
        assert full.tokens(text) == cut_by(jieba_full, text)

    @pytest.mark.parametrize("text", ["㐀㐁", "鿖猫", "猫㐀㐁"])
    def test_rare_characters_are_single_even_if_the_dictionary_joins_them(self, text):
        # jieba joins U+4E00 to U+9FD5 only.
        dictionary = Dictionary({"㐀㐁": 9, "鿖猫": 9, "猫": 5}, 100)
        tokens = ChineseTokenizer(dictionary).tokens(text)
        assert tokens == cut_by(jieba_with(dictionary), text) == tuple(text)


def test_searching_needs_no_jieba_and_loads_no_dictionary_of_a_library(tmp_path):
    script = (
        "import sys; from capsearch.encoders.models import registry;"
        "assert registry.load().text.encoders['zh'].tokenizer.tokens('猫和狗');"
        "print({'jieba', 'rjieba'} & set(sys.modules))"  # importing rjieba loads 349,045 words
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=tmp_path
    )
    assert done.stdout == "set()\n", done.stderr


def test_training_without_jieba_names_the_extra(monkeypatch):
    monkeypatch.setattr(tokenizers, "find_spec", lambda name: None)
    tokenizers._whole_dictionary.cache_clear()
    with pytest.raises(MissingExtra, match=r"capsearch\[train\]"):
        ChineseTokenizer().pinned({"猫"})
