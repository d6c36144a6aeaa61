"""What sentences name: concepts of the concept table, and other nouns, verbs and adjectives.

COCO-CN section III: tags are human tags and the nouns, verbs and adjectives of captions. Names of
concepts go first, longer ones before shorter ones ("hot dog" is no dog). Parts of speech: jieba for
Chinese, MeCab for Japanese; for English, where no tagger is installed, all but function words.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from Stemmer import Stemmer

from capsearch.encoders.concepts.mentions import (
    Word,
    english_words,
    japanese_words,
    longest_name,
    means_nothing,
)
from capsearch.encoders.languages import normalise, simplify
from capsearch.engine.errors import UnknownLanguage


@dataclass(frozen=True, slots=True)
class Named:
    """What a sentence names: ids of concepts, and other content words with their spelling."""

    concepts: tuple[str, ...]
    words: Mapping[str, str]  # dictionary form -> spelling


def named_in(text: str, language: str) -> Named:
    """What a sentence of a language names; UnknownLanguage for one without a word splitter."""
    if language not in _SPLITTERS:
        raise UnknownLanguage(f"no words in '{language}'; there is {', '.join(_SPLITTERS)}")
    words = _SPLITTERS[language](text)
    found: dict[str, None] = {}
    others: dict[str, str] = {}
    at = 0
    while at < len(words):
        ids, length = longest_name(words, at, language)
        if ids:
            found[ids[0]] = None
        elif _may_be_tag(words[at], language):
            key, spelling = _KEYS[language](words[at])
            others[key] = spelling
        at += length
    return Named(tuple(found), others)


def _may_be_tag(word: Word, language: str) -> bool:
    return _CONTENT[language](word) and not means_nothing(word.base, language)


def _is_english_content(word: Word) -> bool:
    return not word.surface.isdigit()


def _is_chinese_content(word: Word) -> bool:
    """Nouns; of verbs and adjectives only those of two characters or more, as in COCO-CN."""
    if word.kind[:1] == "n":
        return True
    return word.kind[:1] in ("a", "v") and len(_without_particle(word)) > 1


def _is_japanese_content(word: Word) -> bool:
    kind, _, detail = word.kind.partition("-")
    return kind in _JAPANESE_CONTENT and detail not in _JAPANESE_AUXILIARY


def _chinese(text: str) -> list[Word]:
    cut = _jieba().lcut(normalise(simplify(text)).lower(), HMM=False)
    return [Word(word, kind=flag) for word, flag in cut if re.search(r"\w", word)]


def _without_particle(word: Word) -> str:
    """坐在 -> 坐."""
    verb = word.kind[:1] in ("a", "v") and len(word.surface) > 1
    return word.surface[:-1] if verb and word.surface[-1] in "在着了" else word.surface


def _english_key(word: Word) -> tuple[str, str]:
    return Stemmer("english", 0).stemWord(word.surface), word.surface


def _chinese_key(word: Word) -> tuple[str, str]:
    form = _without_particle(word)
    return form, form


def _japanese_key(word: Word) -> tuple[str, str]:
    return word.base, word.base


@cache
def _jieba() -> Any:
    import jieba
    import jieba.posseg

    jieba.setLogLevel(60)
    return jieba.posseg.POSTokenizer(jieba.Tokenizer())


_SPLITTERS: Mapping[str, Callable[[str], list[Word]]] = {
    "en": english_words,
    "zh": _chinese,
    "ja": japanese_words,
}
_CONTENT: Mapping[str, Callable[[Word], bool]] = {
    "en": _is_english_content,
    "zh": _is_chinese_content,
    "ja": _is_japanese_content,
}
# The key that words of one meaning share, and how the word is spelled.
_KEYS: Mapping[str, Callable[[Word], tuple[str, str]]] = {
    "en": _english_key,
    "zh": _chinese_key,
    "ja": _japanese_key,
}
_JAPANESE_CONTENT = frozenset({"名詞", "動詞", "形容詞", "形状詞"})
_JAPANESE_AUXILIARY = frozenset({"非自立可能", "数詞", "助動詞語幹"})
