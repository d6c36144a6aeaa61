"""Japanese spellings: kana written with the wrong marks, and words that have several spellings."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

_KATAKANA = re.compile(r"[\u30a1-\u30fa][\u30a1-\u30fc]+")  # ・ and ー within
_HIRAGANA = re.compile(r"[\u3041-\u3096ー]+")
_SPACING_MARK = re.compile(r"(?<=[\u3041-\u30fa\uff66-\uff9d])[\u309b\u309c]")
_COMBINING = {"\u309b": "\u3099", "\u309c": "\u309a"}
# Signs that look like ー and are typed for it. Neither - nor ―, which stand between words.
_DASH = re.compile(r"(?<=[\u30a1-\u30fa])[\u2010\u2013\u2014\u2212](?=[\u30a1-\u30fc]|\W|$)")
_V_ROW = {"ヴァ": "バ", "ヴィ": "ビ", "ヴェ": "ベ", "ヴォ": "ボ", "ヴュ": "ビュ", "ヴ": "ブ"}


def repair(text: str) -> str:
    """ハ゛ as バ, which NFKC would take apart, and ソ−ス as ソース."""
    composed = _SPACING_MARK.sub(lambda mark: _COMBINING[mark[0]], text)
    return _DASH.sub("ー", composed)


def respell(text: str, known: Callable[[str], bool]) -> str:
    """The text with katakana words that are not known in a spelling that is, if there is one.

    ヴァイオリン is バイオリン, コンピュータ is コンピューター. A text in hiragana alone may be
    one in katakana: いるか is イルカ.
    """
    if _HIRAGANA.fullmatch(text) and not known(text):
        katakana = "".join(_to_katakana(character) for character in text)
        return katakana if known(katakana) else text
    return _KATAKANA.sub(lambda word: _known_spelling(word[0], known), text)


def _known_spelling(word: str, known: Callable[[str], bool]) -> str:
    if known(word):
        return word
    return next((one for one in spellings(word) if known(one)), word)


def spellings(word: str) -> Iterator[str]:
    """Other spellings of a word in katakana, the likeliest first."""
    plain = word
    for kana, other in _V_ROW.items():
        plain = plain.replace(kana, other)
    joined = plain.replace("・", "")
    for one in dict.fromkeys((plain, joined)):
        yield one
        yield one[:-1] if one.endswith("ー") else f"{one}ー"


def _to_katakana(character: str) -> str:
    return chr(ord(character) + 0x60) if "\u3041" <= character <= "\u3096" else character
