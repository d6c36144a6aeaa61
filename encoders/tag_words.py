"""What sentences name: concepts of the concept table, and other nouns, verbs and adjectives.

COCO-CN section III: tags are human tags and the nouns, verbs and adjectives of captions. Names of
concepts are found as sequences of words, longest first ("hot dog" is no dog), whatever their
inflection. Parts of speech: jieba for Chinese, MeCab for Japanese; for English, where no tagger is
installed, everything but a list of function words.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from Stemmer import Stemmer

from capsearch.encoders import concepts
from capsearch.encoders.languages import normalise, simplify
from capsearch.engine.errors import UnknownLanguage

LONGEST_NAME = 4  # words of a concept's name


class Word(NamedTuple):
    """A word of a sentence: its dictionary form, its spelling, and whether it may be a tag."""

    form: str
    spelling: str
    content: bool


@dataclass(frozen=True, slots=True)
class Named:
    """What a sentence names: ids of concepts, and other content words with their spelling."""

    concepts: tuple[str, ...]
    words: Mapping[str, str]  # dictionary form -> spelling


def named_in(text: str, language: str) -> Named:
    """What a sentence of a language names; UnknownLanguage for one without a word splitter."""
    if language not in _SPLITTERS:
        raise UnknownLanguage(f"no words in '{language}'; there is {', '.join(_SPLITTERS)}")
    words = _SPLITTERS[language](simplify(text) if language == "zh" else text)
    names = _names(language)
    found: dict[str, None] = {}
    others: dict[str, str] = {}
    at = 0
    while at < len(words):
        length = _longest_name(words, at, names)
        if length:
            found[names[_forms(words[at : at + length])]] = None
        elif words[at].content:
            others[words[at].form] = words[at].spelling
        at += max(length, 1)
    return Named(tuple(found), others)


def _longest_name(words: Sequence[Word], at: int, names: Mapping[tuple[str, ...], str]) -> int:
    for length in range(min(LONGEST_NAME, len(words) - at), 0, -1):
        if _forms(words[at : at + length]) in names:
            return length
    return 0


def _forms(words: Sequence[Word]) -> tuple[str, ...]:
    return tuple(word.form for word in words)


@cache
def _names(language: str) -> Mapping[tuple[str, ...], str]:
    """Names of concepts in one language as sequences of dictionary forms."""
    candidates: defaultdict[tuple[str, ...], list[concepts.Concept]] = defaultdict(list)
    for concept in concepts.all_concepts().values():
        for name in concept.names[language]:
            forms = _forms(_SPLITTERS[language](name))
            if 0 < len(forms) <= LONGEST_NAME and not _meaningless(forms, language):
                candidates[forms].append(concept)
                if language == "ja" and concept.table == "attributes" and len(forms) == 1:
                    candidates[(forms[0] + "い",)].append(concept)  # 赤 -> 赤い
    # Names may share their dictionary forms: animal, anime.
    likeliest = {forms: min(found, key=concepts.sense) for forms, found in candidates.items()}
    return {forms: one.id for forms, one in likeliest.items() if one.id not in _NOT_SHOWN}


def _meaningless(forms: tuple[str, ...], language: str) -> bool:
    """True for one word that is usually no name: a can, the top."""
    return len(forms) == 1 and forms[0] in _no_tags(language)


def _english(text: str) -> list[Word]:
    spellings = re.findall(r"[a-z0-9]+", normalise(text).lower().replace("'s", ""))
    forms = Stemmer("english", 0).stemWords([_PLURALS.get(one, one) for one in spellings])
    return [
        Word(form, spelling, form not in _no_tags("en") and not spelling.isdigit())
        for form, spelling in zip(forms, spellings, strict=True)
    ]


def _chinese(text: str) -> list[Word]:
    """Of verbs and adjectives only those of two characters or more, as in COCO-CN."""
    words = []
    for word, flag in _jieba().lcut(normalise(text).lower(), HMM=False):
        noun, described = flag[:1] == "n", flag[:1] in "av" and len(word) > 1
        if word.strip() and flag[:1] != "x":
            form = word[:-1] if described and word[-1] in "在着了" else word  # 坐在 -> 坐
            content = (noun or described) and len(form) > (not noun) and word not in _no_tags("zh")
            words.append(Word(form, form, content))
    return words


def _japanese(text: str) -> list[Word]:
    words = []
    for word in _mecab()(normalise(text).lower()):
        kind, form = word.feature.pos1, word.feature.orthBase or word.surface
        if kind == "補助記号":
            continue
        content = kind in _JAPANESE_CONTENT and word.feature.pos2 not in _JAPANESE_AUXILIARY
        words.append(Word(form, form, content and form not in _no_tags("ja")))
    return words


@cache
def _jieba() -> Any:
    import jieba
    import jieba.posseg

    jieba.setLogLevel(60)
    return jieba.posseg.POSTokenizer(jieba.Tokenizer())


@cache
def _mecab() -> Any:
    import fugashi
    import unidic_lite

    return fugashi.Tagger(f'-d "{unidic_lite.DICDIR}"')


_SPLITTERS: Mapping[str, Callable[[str], list[Word]]] = {
    "en": _english,
    "zh": _chinese,
    "ja": _japanese,
}
_PLURALS = {"men": "man", "women": "woman", "children": "child", "people": "person"}
# Concepts that say how many or where, not what.
_NOT_SHOWN = frozenset(
    {
        *("single", "two-things", "three-things", "many", "several"),
        *("beside", "on-top", "in-front", "on-table", "behind", "lone-person"),
    }
)
_JAPANESE_CONTENT = frozenset({"名詞", "動詞", "形容詞", "形状詞"})
_JAPANESE_AUXILIARY = frozenset({"非自立可能", "数詞", "助動詞語幹"})


@cache
def _no_tags(language: str) -> frozenset[str]:
    """Dictionary forms of words that are never tags.

    `not_tags.tsv` beside this file: function words, and words that say nothing about what an
    image shows ("picture", "side").
    """
    with (Path(__file__).parent / "not_tags.tsv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["language"] == language]
    words = [word for row in rows for word in row["words"].split()]
    return frozenset(Stemmer("english", 0).stemWords(words) if language == "en" else words)
