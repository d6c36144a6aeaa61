"""Sentences to tokens, the same way at training and at search.

A tokenizer is part of the model. The model folder stores its version and (for Chinese) its
dictionary, so that a newer package cannot change the tokens of an older model.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from Stemmer import Stemmer

from capsearch.encoders.text.languages import normalise, simplify
from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.protocols import Tokenizer

MAX_CHARACTERS = 2000  # longer than any sentence; a pasted book must not stall a query
_WORD = re.compile(r"\w", re.UNICODE)


@dataclass(frozen=True)
class EnglishTokenizer:
    """Lower case, clitics split ("dog's" -> dog 's), then Porter2 stems ("dogs" -> dog)."""

    language: str = "en"
    version: str = "en-porter2-1"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Stems of the words and numbers of a sentence."""
        text = normalise(text)[:MAX_CHARACTERS].lower().replace("’", "'")
        words = _ENGLISH.findall(_CLITIC.sub(r" \1", text))
        # A new one per call: creation takes microseconds, and threads must not share one.
        return tuple(Stemmer("english", 0).stemWords(words))


_CLITIC = re.compile(r"('(?:s|re|ve|ll|d|m)|n't)\b")
_ENGLISH = re.compile(r"'(?:s|re|ve|ll|d|m)\b|n't\b|\d+(?:\.\d+)?|\w+", re.UNICODE)


@dataclass(frozen=True)
class Dictionary:
    """Words with their frequencies, and the total of the whole dictionary.

    A pinned dictionary has fewer words but the same total. Probabilities are frequency / total:
    with a smaller total, texts would be cut into shorter words.
    """

    words: Mapping[str, int] = field(repr=False)
    total: int


@dataclass(frozen=True)
class ChineseTokenizer:
    """jieba with a pinned dictionary, on Simplified text; Latin words are lower-cased.

    None means jieba's whole dictionary, with which training starts. `pinned` then reduces it to
    the words of the captions, which loads in 20 ms instead of 500.
    """

    dictionary: Dictionary | None = None
    language: str = "zh"
    version: str = "zh-jieba0.42.1-t2s-2"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Words in order, without punctuation."""
        text = simplify(normalise(text))[:MAX_CHARACTERS].lower()
        # Without the HMM, text outside the dictionary becomes single characters; the HMM would
        # guess words that are in no vocabulary.
        return tuple(w for w in self._jieba.cut(text, HMM=False) if _WORD.search(w))

    def pinned(self, used: set[str]) -> ChineseTokenizer:
        """This tokenizer, its dictionary pruned to the words in `used`."""
        frequencies = self._jieba.FREQ
        words = {word: frequencies[word] for word in sorted(used) if frequencies.get(word)}
        return ChineseTokenizer(Dictionary(words, self._jieba.total))

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
    """Lower-cased words and prefixes (T恤 -> t恤), since text is lower-cased before it is cut."""
    lowered: dict[str, int] = {}
    for word, frequency in words.items():
        lower = word.lower()
        lowered[lower] = max(frequency, lowered.get(lower, 0))
    return lowered


def _prefixes(words: Mapping[str, int]) -> dict[str, int]:
    """The dictionary in jieba's form: every prefix of a word has an entry, 0 if it is no word."""
    table = dict(words)
    for word in words:
        for end in range(1, len(word)):
            table.setdefault(word[:end], 0)
    return table


@dataclass(frozen=True)
class JapaneseTokenizer:
    """MeCab (fugashi) with unidic-lite; words in their dictionary form (寝て -> 寝る)."""

    language: str = "ja"
    version: str = "ja-unidic-lite1.0.8-1"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Dictionary forms in order, without punctuation."""
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
    """The tokenizer of a language; `dictionary` is the stored, pinned one, if the model has one."""
    if language not in TOKENIZERS:
        raise UnknownLanguage(f"no tokenizer for '{language}'; there is {', '.join(TOKENIZERS)}")
    if dictionary is not None and language == "zh":
        return ChineseTokenizer(Dictionary(dictionary["words"], int(dictionary["total"])))
    return TOKENIZERS[language]()
