"""What a sentence names: concepts of the table, whatever the inflection; longer names go first.

    mentioned("two cats on a chair", "en")   # the ids of cats, and of chairs

Words count, not characters: 走っている is 走る and no 走, あります no ant. Chinese is read
character by character where nobody has cut it into words: longer names go first there too.
"""

from __future__ import annotations

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path

from capsearch.encoders.text import concepts
from capsearch.encoders.text.languages import normalise
from capsearch.encoders.text.tokenizers import Word, japanese_words

_WORD = re.compile(r"[a-z0-9]+(?:['’-][a-z0-9]+)*")
_PART = re.compile(r"[a-z0-9]+|[^\W_]")
_MAX_WORDS, _MAX_CHARACTERS = 4, 12
_PUNCTUATION = "補助記号"
_INFLECTED = frozenset({"動詞", "形容詞", "助動詞"})
_ACTIONS = ("actions", "attributes")
_SHORTEST = 3  # letters of a word without its ending
# Concepts that say how many or where, not what.
_NOT_SHOWN = frozenset(
    {
        *("single", "two-things", "three-things", "four-things", "many", "several", "lone-person"),
        *("beside", "on-top", "in-front", "on-table", "behind", "inside", "outside", "at-bottom"),
        *("left-side", "right-side", "full", "piece", "middle", "edge", "pair", "couple"),
    }
)


def mentioned(
    text: str, language: str, words: Sequence[Word] | None = None
) -> tuple[frozenset[str], ...]:
    """What a text names: for each name in it, the ids of its concepts and of all below them.

    A text that is a name by itself means what has this name. `words` are those of a Japanese text
    that is already cut (`japanese_words`).
    """
    whole = _named(_folded([normalise(text)], language)[0], language)
    if whole:
        return (_under(whole),)
    words, longest = _words(text, language, words)
    found: dict[frozenset[str], None] = {}
    at = 0
    while at < len(words):
        ids, length = longest_name(words, at, language, longest)
        if ids:
            found[_under(ids)] = None
        at += length
    return tuple(found)


def names_one_of(text: str, language: str, ids: Collection[str]) -> bool:
    """Whether a text names one of these concepts, or something broader."""
    return any(not thing.isdisjoint(ids) for thing in mentioned(text, language))


def longest_name(
    words: Sequence[Word], at: int, language: str, longest: int = _MAX_WORDS
) -> tuple[tuple[str, ...], int]:
    """The concepts with the longest name that begins here, likeliest first, and its words.

    () and 1 for none.
    """
    if words[at].kind.startswith("接尾辞"):  # 2つの is no 角
        return (), 1
    for length in range(min(longest, len(words) - at), 0, -1):
        part = words[at : at + length]
        if _means_nothing(part, language):
            return (), length
        for spelling, verb in _SPELLINGS.get(language, _english_spellings)(part):
            ids = _named(spelling, language, verb)
            if ids and not means_nothing(spelling, language):
                return ids, length
    return (), 1


def means_nothing(word: str, language: str) -> bool:
    """True for function words, and for words that say nothing about what an image shows.

    `not_tags.tsv` beside the package: "the", "picture", "side"; in Japanese, dictionary forms.
    """
    return word in _meaningless(language)


def _means_nothing(words: Sequence[Word], language: str) -> bool:
    if len(words) == 1:
        return means_nothing(words[0].base, language)
    return language == "zh" and means_nothing("".join(one.surface for one in words), language)


@cache
def _meaningless(language: str) -> frozenset[str]:
    path = Path(__file__).parents[1] / "not_tags.tsv"
    with path.open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file, delimiter="\t") if row["language"] == language]
    words = [word for row in rows for word in row["words"].split()]
    plurals = [word + "s" for word in words] if language == "en" else []
    return frozenset(words + plurals)


def english_words(text: str) -> list[Word]:
    """The words of a sentence in lower case, without 's."""
    plain = normalise(text).lower().replace("’", "'").replace("'s", "")
    return [Word(_PLURALS.get(one, one)) for one in _WORD.findall(plain)]


def _words(text: str, language: str, words: Sequence[Word] | None) -> tuple[Sequence[Word], int]:
    """The words of a text, and how many of them a name has at most."""
    if language == "ja":
        cut = japanese_words(text) if words is None else words
        return [word for word in cut if not word.kind.startswith(_PUNCTUATION)], _MAX_WORDS
    if language == "zh":
        plain = _folded([normalise(text)], language)[0]
        return [Word(part) for part in _PART.findall(plain)], _MAX_CHARACTERS
    return english_words(text), _MAX_WORDS


Spellings = Iterator[tuple[str, bool]]  # how a name may be spelled, and whether it is a verb


def _chinese_spellings(words: Sequence[Word]) -> Spellings:
    spelling = "".join(word.surface for word in words)
    yield spelling, False
    # Words that jieba cut: 坐在 -> 坐, 餐桌上 -> 餐桌.
    if words[-1].kind and len(spelling) > 1 and spelling[-1] in "在着了上里":
        yield spelling[:-1], spelling[-1] in "在着了"


def _japanese_spellings(words: Sequence[Word]) -> Spellings:
    *before, last = words
    start = "".join(word.surface for word in before)
    kind = last.kind.partition("-")[0]
    verb = kind in _INFLECTED
    yield start + last.base, verb
    if before:
        yield start + last.surface, verb
    if kind == "形容詞":
        yield start + last.base.removesuffix("い"), False  # 赤い -> 赤


def _english_spellings(words: Sequence[Word]) -> Spellings:
    """As it stands; then with its last or first word in another form."""
    spellings = [word.surface for word in words]
    yield " ".join(spellings), False
    for at in dict.fromkeys((len(words) - 1, 0)):
        for other, verb in _uninflected(spellings[at]):
            yield " ".join([*spellings[:at], other, *spellings[at + 1 :]]), verb


def _uninflected(word: str) -> Spellings:
    """What an English word may be a form of: singulars, verbs, and their -ing forms."""
    for ending, singular in (("ies", "y"), ("ves", "f"), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= _SHORTEST - 1:
            yield word[: -len(ending)] + singular, False
    for base in _bases(word):
        yield base, True
    for base in _bases(word):
        yield base.removesuffix("e") + "ing", True
        yield base + base[-1] + "ing", True


def _bases(word: str) -> Iterator[str]:
    """cook of cooks, cooked and cooking; ride of riding; run of running."""
    for ending in ("ing", "ed", "s", ""):
        stem = word.removesuffix(ending)
        if word.endswith(ending) and len(stem) >= _SHORTEST:
            yield stem
            if ending in ("ing", "ed"):
                yield stem + "e"
                if stem[-1] == stem[-2]:
                    yield stem[:-1]
                if stem[-1] == "i":
                    yield stem[:-1] + "y"


_SPELLINGS: Mapping[str, Callable[[Sequence[Word]], Spellings]] = {
    "en": _english_spellings,
    "zh": _chinese_spellings,
    "ja": _japanese_spellings,
}
_PLURALS = {
    **{"men": "man", "women": "woman", "children": "child", "people": "person"},
    **{"buses": "bus", "busses": "bus", "knives": "knife", "feet": "foot", "teeth": "tooth"},
}


def _named(spelling: str, language: str, verb: bool = False) -> tuple[str, ...]:
    """The concepts with a name in a language, likeliest first; of a verb, actions first.

    English names are known in all languages, as iPhone is.
    """
    known = _ids_by_name(language).get(spelling, ())
    if not known and spelling.isascii() and language != "en":
        known = _ids_by_name("en").get(spelling, ())
    if verb:
        return tuple(sorted(known, key=lambda one: concepts.by_id(one).table not in _ACTIONS))
    return known


@cache
def _ids_by_name(language: str) -> Mapping[str, tuple[str, ...]]:
    """By folded name, likeliest first."""
    language = language if language in _SPELLINGS else "en"
    shown = [one for one in concepts.all_concepts().values() if one.id not in _NOT_SHOWN]
    names = [(name, one) for one in shown for name in one.names[language]]
    found: defaultdict[str, list[concepts.Concept]] = defaultdict(list)
    folded = _folded([name for name, _ in names], language)
    for name, (_, one) in zip(folded, names, strict=True):
        found[name.replace("'s", "")].append(one)
    return {name: _ranked(some, name, language) for name, some in found.items()}


def _folded(texts: Sequence[str], language: str) -> list[str]:
    """As they are compared: in lower case, Chinese in Simplified characters, Japanese not."""
    return concepts.folded(texts) if language == "zh" else [text.lower() for text in texts]


def _ranked(known: Sequence[concepts.Concept], name: str, language: str) -> tuple[str, ...]:
    if len(known) > 1:
        known = sorted(known, key=lambda one: concepts.sense(one, name, language))
    return tuple(one.id for one in known)


def _under(ids: Iterable[str]) -> frozenset[str]:
    return frozenset(chain.from_iterable(map(concepts.narrower, ids)))
