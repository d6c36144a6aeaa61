"""Words that a captioner writes, by language, and how captions are split into them and joined.

Words, not pieces of words: a decoder knows the language it writes, so each step chooses among the
words of this language alone, and a caption takes no more steps than it has words.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import write_text
from capsearch.encoders.languages import normalise, simplify

END = 0  # the word that ends a caption: row 0, and the first output of every language
WORDS_FILE = "words.json"
_COMMAS = {"zh": "，、", "ja": "、"}  # kept, since long sentences need them
_COMMA = re.compile("[,，、，]")
# Words that sentences repeat: articles, prepositions, particles, measure words. All others say what
# is there, and a caption that says it twice is mostly wrong.
_FUNCTION_WORDS = {
    "en": "a an the in of on and or with to at by for from is are his her its their one two some "
    "another other each that which while as up down",
    "zh": "， 、 的 地 得 着 了 过 是 有 在 和 与 上 下 里 中 前 后 旁 边 旁边 放 他 她 "
    "它 人 个 只 一 一个 一只 一辆 一台 一张 一位 一名 一座 一些 一条 一头 一把 一匹 "
    "一边 一盘 一份 一群 一块 一片 一排 两个 两只 几个 许多 很多",
    "ja": "、 の て で を が に と は も や へ た いる い ます まし ある あり れ られ し "
    "さ せ な だ です から まで など たり つ 人 匹 頭 羽 台 本 枚 つつ 一 二 1 2 お そう",
}


@dataclass(frozen=True)
class CaptionVocabulary:
    """Rows of a decoder's embedding: END, one start token for each language, then the words.

    The start token tells the decoder which language to write ("artificial token").
    """

    words: Mapping[str, tuple[str, ...]] = field(repr=False)
    _known: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        known = {
            language: {word: at for at, word in enumerate(words, start=1)}
            for language, words in self.words.items()
        }
        object.__setattr__(self, "_known", known)

    def __len__(self) -> int:
        return 1 + len(self.words) + sum(map(len, self.words.values()))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, in the order of their start tokens."""
        return tuple(self.words)

    def start(self, language: str) -> int:
        """The row of a language's start token."""
        return 1 + self.languages.index(language)

    def outputs(self, language: str) -> NDArray[np.int64]:
        """(W + 1,) rows that a decoder chooses from: END and the words of a language."""
        first = 1 + len(self.words)
        for one, words in self.words.items():
            if one == language:
                return np.append(END, np.arange(first, first + len(words)))
            first += len(words)
        raise KeyError(language)

    def repeatable(self, language: str) -> NDArray[np.bool_]:
        """(W + 1,) which of `outputs` a caption may well have twice."""
        often = {*_FUNCTION_WORDS.get(language, "").split()}
        return np.array([True, *(word in often for word in self.words[language])])

    def only(self, *languages: str) -> CaptionVocabulary:
        """The words of some languages."""
        return CaptionVocabulary({one: self.words[one] for one in languages})

    def encode(self, tokens: Sequence[str], language: str) -> NDArray[np.int64] | None:
        """Positions in `outputs`, END last; None for tokens with an unknown word."""
        known = self._known[language]
        if not tokens or any(token not in known for token in tokens):
            return None
        return np.array([*(known[token] for token in tokens), END], np.int64)

    def decode(self, positions: Iterable[int], language: str) -> str:
        """A caption from positions in `outputs`, up to END."""
        words = []
        for position in positions:
            if position == END:
                break
            words.append(self.words[language][position - 1])
        return join_words(words, language)

    def save(self, folder: Path) -> None:
        """Write the table of a model folder."""
        write_text(folder / WORDS_FILE, json.dumps(self.words, ensure_ascii=False, indent=0) + "\n")

    @staticmethod
    def load(folder: Path) -> CaptionVocabulary:
        """The table that `save` wrote."""
        stored = json.loads((folder / WORDS_FILE).read_text("utf-8"))
        return CaptionVocabulary({language: tuple(words) for language, words in stored.items()})


def build_vocabulary(
    captions: Mapping[str, Sequence[Sequence[str]]], min_count: int, size: int
) -> CaptionVocabulary:
    """The words of tokenised captions that occur `min_count` times, at most `size` a language."""
    words = {}
    for language, sentences in captions.items():
        counts = Counter(token for sentence in sentences for token in sentence)
        ranked = sorted(counts.items(), key=lambda one: (-one[1], one[0]))
        words[language] = tuple(word for word, count in ranked[:size] if count >= min_count)
    return CaptionVocabulary(words)


def split_words(text: str, language: str, commas: bool = False) -> tuple[str, ...]:
    """A caption's words as written, in lower case, without punctuation.

    `commas` keeps the commas of Chinese and Japanese.
    """
    plain = normalise(simplify(text) if language == "zh" else text).lower()
    if language == "en":
        return tuple(re.findall(r"[a-z0-9]+(?:['’-][a-z0-9]+)*", plain))
    kept = _COMMAS.get(language, "") if commas else ""
    plain = _COMMA.sub(kept[:1] or " ", plain)
    cut = _jieba().cut(plain, HMM=False) if language == "zh" else map(str, _mecab()(plain))
    return tuple(word for word in cut if re.search(r"\w", word) or (word in kept and word))


def join_words(words: Sequence[str], language: str) -> str:
    """A caption from its words; English starts with a capital letter."""
    if language == "en":
        text = " ".join(words)
        return text[:1].upper() + text[1:]
    text = ""
    for word in words:
        between = " " if text and text[-1].isascii() and word[0].isascii() else ""  # Latin words
        text += between + word
    return text.strip("，、 ")


@cache
def _jieba() -> Any:
    import jieba

    jieba.setLogLevel(60)
    return jieba.Tokenizer()


@cache
def _mecab() -> Any:
    import fugashi
    import unidic_lite

    return fugashi.Tagger(f'-d "{unidic_lite.DICDIR}" -Owakati')
