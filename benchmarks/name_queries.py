"""Queries that ask for a concept: by its name, by other names, in a phrase, in other spellings."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from capsearch.encoders.concepts import Concept
from capsearch.encoders.concepts.counting import plural, with_article

# How people ask. But for the first of each language they were written before the patterns of
# `encoders.requests` were last changed and never used to change them, and captions for training
# (`encoders.concepts.phrases`) have none of them. They measure what is not in any table: when one
# fails, do not add a pattern for it.
PHRASES: Mapping[str, tuple[str, ...]] = {
    "en": (
        "where is the {}?",
        "I'm trying to find {a}",
        "give me everything with {a}",
        "didn't we take a photo of {a} once?",
        "anything with {s} in it",
        "I remember a picture where you can see {a}",
        "would love to see {s}",
        "the one with the {}",
    ),
    "zh": (
        "有{}的照片",
        "我记得拍过{}",
        "找一下{}",
        "给我看看有{}的那张",
        "跟{}有关的图片",
        "想要一张{}",
        "{}的照片在哪",
        "里面有{}的",
    ),
    "ja": (
        "{}の写真を見せて",
        "{}を撮ったことがあるはず",
        "{}が出てくる写真",
        "{}っぽい画像を出して",
        "{}に関する写真",
        "{}の写真どこだっけ",
        "{}のやつ",
        "{}が写ってるのが見たい",
    ),
}
_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {0x20: 0x3000}
_HALF_WIDTH = {
    unicodedata.normalize("NFKC", chr(code)): chr(code) for code in range(0xFF61, 0xFFA0)
}
_MARKS = "\u3099\u309a"  # voiced and half-voiced, combining
_SPACING = str.maketrans(_MARKS, "\u309b\u309c")
_V_ROW = {"ヴァ": "バ", "ヴィ": "ビ", "ヴェ": "ベ", "ヴォ": "ボ", "ヴ": "ブ"}


def names(concept: Concept, language: str) -> tuple[str, ...]:
    """The commonest name."""
    return (concept.name(language),)


def synonyms(concept: Concept, language: str) -> tuple[str, ...]:
    """The other names."""
    return concept.names[language][1:]


def phrased(concept: Concept, language: str) -> tuple[str, ...]:
    """The commonest name in questions and requests."""
    name = concept.name(language)
    forms = {"a": with_article(name), "s": plural(name)} if language == "en" else {}
    return tuple(phrase.format(name, **forms) for phrase in PHRASES[language])


def spellings(concept: Concept, language: str) -> tuple[str, ...]:
    """The commonest name written differently: case, number, width, Traditional, ヴァ as バ."""
    name = concept.name(language)
    variants = dict.fromkeys(spell(name) for spell in SPELLINGS[language])
    return tuple(variant for variant in variants if variant != name)


def full_width(text: str) -> str:
    """ｖｉｏｌｉｎ for violin."""
    return text.translate(_FULL_WIDTH)


def half_width(text: str) -> str:
    """ﾊﾞｲｵﾘﾝ for バイオリン."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(_HALF_WIDTH.get(character, character) for character in decomposed)


def spacing_marks(text: str) -> str:
    """ハ゛イオリン for バイオリン, as some programs write voiced kana."""
    return "".join(_apart(character) for character in text)


def _apart(character: str) -> str:
    decomposed = unicodedata.normalize("NFD", character)
    return decomposed.translate(_SPACING) if decomposed[-1:] in _MARKS else character


def without_v(text: str) -> str:
    """バイオリン for ヴァイオリン."""
    for kana, plain in _V_ROW.items():
        text = text.replace(kana, plain)
    return text


def traditional(text: str) -> str:
    """Traditional for Simplified Chinese."""
    return str(_to_traditional().convert(text))


@cache
def _to_traditional() -> Any:
    import opencc

    return opencc.OpenCC("s2t")


SPELLINGS: Mapping[str, tuple[Callable[[str], str], ...]] = {
    "en": (plural, str.upper, full_width),
    "zh": (traditional, full_width),
    "ja": (half_width, spacing_marks, without_v, full_width),
}
QUERIES: Mapping[str, Callable[[Concept, str], tuple[str, ...]]] = {
    "names": names,
    "synonyms": synonyms,
    "templates": phrased,
    "spellings": spellings,
}


def asked(concepts: Mapping[str, Concept], language: str, kind: str) -> Iterator[tuple[str, str]]:
    """(concept id, query) of all queries of a kind."""
    for concept_id, concept in concepts.items():
        for text in QUERIES[kind](concept, language):
            yield concept_id, text
