"""Folded tokens for finding words as words, the same for queries, captions, tags and file names.

Nobody says in which language a file name or a tag is, so the script decides: letters and digits
become stemmed words without case and accents, Han and kana become characters (Simplified) and pairs
of neighbouring characters, as search engines index Chinese and Japanese. A character stands before
the pair it begins, so that any part of a text folds to a part of the text's tokens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from Stemmer import Stemmer

from capsearch.encoders.text.languages import HAN, KANA, normalise, simplify

MAX_CHARACTERS = 4000
_RUN = re.compile(r"[^\W_]+")
_LONG_VOWEL = "ー"  # in words of kana; by itself it is of no language
_KATAKANA = re.compile("[\u30a1-\u30fa\u30fc-\u30ff]+")
# Words that occur everywhere and name nothing.
_STOP = frozenset(
    [
        "a",
        "an",
        "the",
        "of",
        "in",
        "on",
        "at",
        "to",
        "is",
        "are",
        "was",
        "were",
        "be",
        "and",
        "or",
        "with",
        "by",
        "for",
        "from",
        "it",
        "its",
        "this",
        "that",
        "there",
        "jpg",
        "jpeg",
        "png",
        "gif",
        "img",
        "dsc",
        "dscn",
        "dscf",
        "dcim",
        "pict",
    ]
)


def fold(text: str) -> tuple[str, ...]:
    """The tokens of a text, in order."""
    plain = simplify(normalise(text)[:MAX_CHARACTERS]).lower()
    return tuple(token for run in _RUN.findall(_without_accents(plain)) for token in _tokens(run))


def keywords(text: str) -> tuple[str, ...]:
    """What a query looks for: its tokens, each once, without characters that stand in a pair."""
    plain = fold(text)
    pairs = {token for token in plain if len(token) == 2 and _is_cjk(token[0])}
    paired = {character for pair in pairs for character in pair}
    return tuple(token for token in dict.fromkeys(plain) if token not in paired)


def word_count(text: str) -> int:
    """About how many words a query has, without those that name nothing.

    A run of katakana is one word; others in Han and kana have two characters on average.
    """
    plain = simplify(normalise(text)[:MAX_CHARACTERS]).lower()
    others, words = _KATAKANA.subn(" ", plain)
    for run in _RUN.findall(others):
        for part, cjk in _by_script(run):
            words += -(-len(part) // 2) if cjk else part not in _STOP
    return words


def _without_accents(text: str) -> str:
    """é as e; kana keep their voicing marks, which are letters there."""
    decomposed = unicodedata.normalize("NFD", text)
    kept = "".join(c for c in decomposed if not "\u0300" <= c <= "\u036f")
    return unicodedata.normalize("NFC", kept)


def _tokens(run: str) -> Iterator[str]:
    for part, cjk in _by_script(run):
        if not cjk:
            if part not in _STOP:
                yield Stemmer("english", 0).stemWord(part)
        else:
            for at, character in enumerate(part):
                yield character
                if at + 1 < len(part):
                    yield part[at : at + 2]


def _by_script(run: str) -> Iterator[tuple[str, bool]]:
    """Parts of one script: 东京tower2020 -> 东京, tower2020."""
    start = 0
    for at in range(1, len(run) + 1):
        if at == len(run) or _is_cjk(run[at]) != _is_cjk(run[start]):
            yield run[start:at], _is_cjk(run[start])
            start = at


def _is_cjk(character: str) -> bool:
    return character == _LONG_VOWEL or bool(HAN.match(character) or KANA.match(character))
