"""Sentences to words, the same way at training and at search.

A tokenizer is part of the model: its name, its version and (for Chinese) its dictionary are
kept in `model.json`, so that a newer package cannot change how an old model reads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from Stemmer import Stemmer

from capsearch.encoders.languages import normalise, simplify
from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.protocols import Tokenizer

MAX_CHARACTERS = 2000  # more than any sentence; keeps a pasted book from stalling a query
_WORD = re.compile(r"\w", re.UNICODE)


@dataclass(frozen=True)
class EnglishTokenizer:
    """Lower case, clitics split ("dog's" -> dog 's), then Porter2 stems: dogs and dog are one."""

    language: str = "en"
    version: str = "en-porter2-1"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Stems of the words and numbers of a sentence."""
        text = normalise(text)[:MAX_CHARACTERS].lower().replace("’", "'")
        words = _ENGLISH.findall(_CLITIC.sub(r" \1", text))
        # One a call: it takes microseconds to make, and must not be shared between threads.
        return tuple(Stemmer("english", 0).stemWords(words))


_CLITIC = re.compile(r"('(?:s|re|ve|ll|d|m)|n't)\b")
_ENGLISH = re.compile(r"'(?:s|re|ve|ll|d|m)\b|n't\b|\d+(?:\.\d+)?|\w+", re.UNICODE)


@dataclass(frozen=True)
class Dictionary:
    """Words with their frequencies, and the total they were counted in.

    The total stays that of the whole dictionary: it sets how much one word more costs, so a
    smaller one would cut the same text into shorter words.
    """

    words: Mapping[str, int] = field(repr=False)
    total: int


@dataclass(frozen=True)
class ChineseTokenizer:
    """jieba with a pinned dictionary, on Simplified text; Latin words are kept, lower-cased.

    None takes jieba's own dictionary, which training starts from (`pinned` then keeps what
    the captions used: 20 ms to load, not 500).
    """

    dictionary: Dictionary | None = None
    language: str = "zh"
    version: str = "zh-jieba0.42.1-t2s-2"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Words in order; punctuation is left out."""
        text = simplify(normalise(text))[:MAX_CHARACTERS].lower()
        # Without the HMM, text outside the dictionary falls apart into known characters
        # instead of guessed words that no vocabulary holds.
        return tuple(w for w in self._jieba.cut(text, HMM=False) if _WORD.search(w))

    def pinned(self, used: set[str]) -> ChineseTokenizer:
        """This tokenizer with only the words that some text used."""
        frequencies = self._jieba.FREQ
        kept = {word: frequencies[word] for word in sorted(used) if frequencies.get(word)}
        return ChineseTokenizer(Dictionary(kept, self._jieba.total))

    @cached_property
    def _jieba(self) -> Any:
        import jieba

        jieba.setLogLevel(60)
        cutter = jieba.Tokenizer()
        if self.dictionary is None:
            cutter.initialize()
            cutter.FREQ = _lower(cutter.FREQ)
        else:
            cutter.FREQ, cutter.total = _prefixes(self.dictionary.words), self.dictionary.total
            cutter.initialized = True
        return cutter


def _lower(words: Mapping[str, int]) -> dict[str, int]:
    """T恤 as t恤, with its prefixes: text is lower-cased before it is cut, so the words are too."""
    lowered: dict[str, int] = {}
    for word, frequency in words.items():
        small = word.lower()
        lowered[small] = max(frequency, lowered.get(small, 0))
    return lowered


def _prefixes(words: Mapping[str, int]) -> dict[str, int]:
    """jieba's own form of a dictionary: every prefix of a word has an entry, 0 if no word."""
    table = dict(words)
    for word in words:
        for end in range(1, len(word)):
            table.setdefault(word[:end], 0)
    return table


@dataclass(frozen=True)
class JapaneseTokenizer:
    """MeCab (fugashi) with unidic-lite; words in their dictionary form, so 寝て is 寝る."""

    language: str = "ja"
    version: str = "ja-unidic-lite1.0.8-1"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Dictionary forms in order; punctuation is left out."""
        text = normalise(text)[:MAX_CHARACTERS].lower()
        words = ((w.feature.orthBase or w.surface) for w in self._mecab(text))
        return tuple(word for word in words if _WORD.search(word))

    @cached_property
    def _mecab(self) -> Any:
        import fugashi
        import unidic_lite

        return fugashi.Tagger(f'-d "{unidic_lite.DICDIR}"')


TOKENIZERS: Mapping[str, Callable[[], Tokenizer]] = {
    "en": EnglishTokenizer,
    "zh": ChineseTokenizer,
    "ja": JapaneseTokenizer,
}


def tokenizer(language: str, dictionary: Mapping[str, Any] | None = None) -> Tokenizer:
    """The tokenizer of a language; `dictionary` is the pinned one as stored, where it has one."""
    if language not in TOKENIZERS:
        raise UnknownLanguage(f"no tokenizer for '{language}'; there is {', '.join(TOKENIZERS)}")
    if dictionary is not None and language == "zh":
        return ChineseTokenizer(Dictionary(dictionary["words"], int(dictionary["total"])))
    return TOKENIZERS[language]()
