"""The Chinese word segmentation that the models were trained with, whatever library computes it.

Nothing here calls jieba: a replacement has to give the same tokens for these sentences, or the
tokenizer needs a new version and the models need training.
"""

import pytest

from capsearch.encoders.models import registry
from capsearch.encoders.text.tokenizers import ChineseTokenizer, Dictionary

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
