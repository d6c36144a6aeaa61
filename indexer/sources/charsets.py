"""Decoding text of unknown encoding, as editors and cameras in China, Japan and Europe write it.

Each candidate encoding stands for the language it was made for. Its decoding is scored by the log
probability of the characters in that language, and the most probable one is taken: text read with
the wrong encoding consists of rare characters.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import log

from capsearch.encoders.languages import HAN, KANA, simplify
from capsearch.indexer.sources.frequent_characters import CHINESE, JAPANESE

_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_ISO_2022_JP = (b"\x1b$B", b"\x1b$@")  # escapes into kanji; the text between them is ASCII
_CONTROLS = re.compile(r"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")
_SCORED_CHARACTERS = 2000  # enough to decide; the rest is decoded only

# Natural logarithms of the probability of one character.
_ASCII_LETTER, _SPACE, _ASCII_SIGN, _CONTROL = -3.2, -2.0, -5.0, -25.0
_CJK_SIGN, _HIRAGANA, _KATAKANA, _HALF_WIDTH_KANA = -5.0, -5.2, -6.3, -12.0
_LISTED_HAN = -0.2  # the share of the frequent characters among Han, to be divided by Zipf's law
_LEVEL_1, _LEVEL_2, _RARE, _FOREIGN = -11.0, -14.0, -17.0, -16.0
_ACCENT_IN_WORD, _ACCENT_ELSEWHERE, _LATIN_SIGN, _TYPOGRAPHIC = -5.5, -10.0, -11.0, -7.5
_INCOMPLETE = -12.0  # the last character lacks a byte, as in a field that was cut
_CJK_SIGNS = frozenset("、。,，．！？：；「」『』（）“”‘’…—～・ー《》【】　")
_LAST_LATIN = "\u024f"
_LATIN_TYPOGRAPHY = frozenset("’‘“”–—…«»°¡¿£€·")


def read_text(data: bytes) -> str:
    """The text, decoded by its byte order mark, as UTF-8, or by the most probable encoding.

    ASCII is ASCII even where it could be UTF-16 without a byte order mark, as in "Bush hid the
    facts".
    """
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            return data.decode(encoding, errors="replace")
    if any(escape in data for escape in _ISO_2022_JP):
        return data.decode("iso2022_jp", errors="replace")
    text = _utf8(data)
    return _most_probable(data) if text is None else text


def _utf8(data: bytes) -> str | None:
    """UTF-8 that may be cut within its last character; None for what only looks like UTF-8.

    That is text with control characters, as UTF-16 has, or with letters of three and more
    alphabets, as GB 18030 with the right bytes has.
    """
    text = _decoded(data, "utf-8")
    if text is None or _CONTROLS.search(text.rstrip("\0")) or len(_alphabets(text)) > 2:
        return None
    return text if len(text.encode()) == len(data) or not text.isascii() else None


def _alphabets(text: str) -> set[str]:
    """CYRILLIC, GREEK, ...: the first words of the names of letters with two bytes in UTF-8."""
    return {unicodedata.name(c, "?").split()[0] for c in text if "\x7f" < c < "\u0800"}


def _decoded(data: bytes, encoding: str) -> str | None:
    """The text without an incomplete last character; None if the bytes are invalid."""
    try:
        return codecs.getincrementaldecoder(encoding)().decode(data)
    except UnicodeDecodeError:
        return None


def _most_probable(data: bytes) -> str:
    best, best_score = data.decode("latin-1"), float("-inf")
    for candidate in _CANDIDATES:
        text = _decoded(data, candidate.encoding)
        if text is None:
            continue
        score = candidate.prior + candidate.score(text[:_SCORED_CHARACTERS])
        if len(text) <= _SCORED_CHARACTERS and len(text.encode(candidate.encoding)) < len(data):
            score += _INCOMPLETE
        if score > best_score:
            best, best_score = text, score
    return best


def _sum(of: Callable[[str], float]) -> Callable[[str], float]:
    return lambda text: sum(map(of, text))


@cache
def _simplified_chinese(c: str) -> float:
    if not HAN.match(c):
        return _beside_han(c)
    return _ranked(c, CHINESE) or _by_level(c, "gb2312", b"\xd8")


@cache
def _traditional_chinese(c: str) -> float:
    if not HAN.match(c):
        return _beside_han(c)
    return _ranked(simplify(c), CHINESE) or _by_level(c, "big5", b"\xc9")


@cache
def _japanese(c: str) -> float:
    if "\uff61" <= c <= "\uff9f":
        return _HALF_WIDTH_KANA
    if KANA.match(c):
        return _HIRAGANA if c < "\u30a0" else _KATAKANA
    if not HAN.match(c):
        return _beside_han(c)
    listed = _ranked(c, JAPANESE)
    return listed - 1.0 if listed else _by_level(c, "euc_jp", b"\xd0")  # -1: a third is kanji


def _beside_han(c: str) -> float:
    """ASCII, full-width letters and punctuation in Chinese and Japanese text."""
    return _CJK_SIGN if c in _CJK_SIGNS or "\uff01" <= c <= "\uff5e" else _ascii(c)


def _ascii(c: str) -> float:
    if c > "\x7f":
        return _FOREIGN
    if c.isalpha():
        return _ASCII_LETTER
    if c < " ":
        return _SPACE if c in "\n\r\t" else _CONTROL
    return _SPACE if c == " " else _ASCII_SIGN


def _ranked(c: str, frequent: str) -> float | None:
    """Zipf's law with Mandelbrot's shift for a character of the list; None for another."""
    rank = _ranks(frequent).get(c)
    return None if rank is None else _LISTED_HAN - log((rank + 10) * log(len(frequent) / 10))


@cache
def _ranks(frequent: str) -> dict[str, int]:
    return {c: rank for rank, c in enumerate(frequent)}


def _by_level(c: str, charset: str, level_2: bytes) -> float:
    """The standards order characters in levels: common ones first, from `level_2` on others."""
    try:
        encoded = c.encode(charset)
    except UnicodeEncodeError:
        return _RARE
    return _LEVEL_1 if len(encoded) == 2 and encoded < level_2 else _LEVEL_2


def _european(text: str) -> float:
    """Latin text: most letters are ASCII, accented ones stand among them."""
    score, before = 0.0, " "
    for c in text:
        score += _european_letter(c, before)
        before = c
    return score


def _european_letter(c: str, before: str) -> float:
    if c <= "\x7f":
        return _ascii(c)
    if c in _LATIN_TYPOGRAPHY:
        return _TYPOGRAPHIC
    if not c.isalpha():
        return _LATIN_SIGN
    if c > _LAST_LATIN:
        return _FOREIGN
    beside_ascii = before <= "\x7f" and (before.isalpha() or before.isspace() or before in "'-(")
    # An accented capital within a word is as improbable as one that follows another accent.
    return _ACCENT_IN_WORD if beside_ascii and not _misplaced(c, before) else _ACCENT_ELSEWHERE


def _misplaced(c: str, before: str) -> bool:
    return c.isupper() and before.islower()


def _any_language(text: str) -> float:
    scores = (_sum(of)(text) for of in (_simplified_chinese, _traditional_chinese, _japanese))
    return max(*scores, _european(text))


@dataclass(frozen=True, slots=True)
class _Candidate:
    encoding: str
    score: Callable[[str], float]
    prior: float = 0.0


_CANDIDATES = (
    _Candidate("cp1252", _european),
    _Candidate("cp932", _sum(_japanese)),  # Shift-JIS with the characters of Windows
    _Candidate("gb18030", _sum(_simplified_chinese)),
    _Candidate("cp950", _sum(_traditional_chinese), -1.0),  # Big5 with those of Windows
    _Candidate("euc_jp", _sum(_japanese), -1.0),
    _Candidate("utf-16-le", _any_language, -3.0),
    _Candidate("utf-16-be", _any_language, -3.0),
)
