"""Sentences to tokens, the same way at training and at search.

A tokenizer is part of the model. The model folder stores its version and (for Chinese) its
dictionary, so that a newer package cannot change the tokens of an older model.

Folded tokens find words as words, the same for queries, captions, tags and file names. Nobody says
in which language a file name or a tag is, so the script decides: letters and digits become stemmed
words without case and accents, Han and kana become characters (Simplified) and pairs of
neighbouring characters, as search engines index Chinese and Japanese. A character stands before the
pair it begins, so that any part of a text folds to a part of the text's tokens.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import Any, NamedTuple

from Stemmer import Stemmer

from capsearch.encoders.text.languages import HAN, KANA, normalise, simplify
from capsearch.engine.errors import MissingExtra, UnknownLanguage
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
    """jieba's most probable cut of Simplified text, with a pinned dictionary; Latin in lower case.

    None means jieba's whole dictionary, with which training starts: it needs the extra `train`.
    `pinned` then reduces it to the words of the captions, and the model's folder stores these, so
    that searching needs no dictionary but the model's. rjieba cuts; tests compare it with jieba.
    """

    dictionary: Dictionary | None = None
    language: str = "zh"
    version: str = "zh-jieba0.42.1-t2s-2"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Words in order, without punctuation."""
        text = simplify(normalise(text))[:MAX_CHARACTERS].lower()
        # Without the HMM, text outside the dictionary becomes single characters; the HMM would
        # guess words that are in no vocabulary.
        return tuple(word for word in self._cutter.cut(text, hmm=False) if _WORD.search(word))

    def pinned(self, used: set[str]) -> ChineseTokenizer:
        """This tokenizer, its dictionary pruned to the words in `used`."""
        frequencies = self._words.words
        words = {word: frequencies[word] for word in sorted(used) if frequencies.get(word)}
        return ChineseTokenizer(Dictionary(words, self._words.total))

    @cached_property
    def _words(self) -> Dictionary:
        return _whole_dictionary() if self.dictionary is None else self.dictionary

    @cached_property
    def _cutter(self) -> Any:
        cutter = _rjieba().Jieba.empty()
        rest = self._words.total
        for word, frequency in self._words.words.items():
            if _CUT_BY_JIEBA.fullmatch(word):
                cutter.add_word(word, frequency, "")
                rest -= frequency
        # What is left of the total: an entry that no text contains, since texts are split at it.
        cutter.add_word(" ", rest, "")
        return cutter


# The characters that jieba joins to words; rjieba also joins rare ones (CJK extensions).
_CUT_BY_JIEBA = re.compile(r"[\u4E00-\u9FD5a-zA-Z0-9+#&._%-]+")


@cache
def _rjieba() -> Any:
    """The compiled part of rjieba: importing the package would load a whole dictionary first."""
    package = find_spec("rjieba")
    assert package is not None  # a dependency
    module = PathFinder.find_spec("rjieba.rjieba", package.submodule_search_locations)
    assert module is not None and module.loader is not None
    compiled = module_from_spec(module)
    module.loader.exec_module(compiled)
    return compiled


@cache
def _whole_dictionary() -> Dictionary:
    """jieba's dictionary in lower case (T恤 -> t恤), since text is lower-cased before it is cut."""
    package = find_spec("jieba")
    if package is None or package.origin is None:
        raise MissingExtra("cutting Chinese text without a model's dictionary", "train")
    words: dict[str, int] = {}
    total = 0
    with Path(package.origin).with_name("dict.txt").open(encoding="utf-8") as lines:
        for line in lines:
            word, count, _ = line.split(" ")
            lower, frequency = word.lower(), int(count)
            words[lower] = max(frequency, words.get(lower, 0))
            total += frequency
    return Dictionary(words, total)


class Word(NamedTuple):
    """A word of a sentence: as it stands there, and its dictionary form where they differ."""

    surface: str
    form: str = ""
    kind: str = ""  # its part of speech, where it is known

    @property
    def base(self) -> str:
        """The dictionary form."""
        return self.form or self.surface


@dataclass(frozen=True)
class JapaneseTokenizer:
    """MeCab (fugashi) with unidic-lite, reduced; words in their dictionary form (寝て -> 寝る)."""

    language: str = "ja"
    version: str = "ja-unidic-lite1.0.8-1"

    def tokens(self, text: str) -> tuple[str, ...]:
        """Dictionary forms in order, without punctuation."""
        return self.tokens_of(japanese_words(text))

    def tokens_of(self, words: Sequence[Word]) -> tuple[str, ...]:
        """The tokens of a text that is already cut."""
        return tuple(word.base for word in words if _WORD.search(word.base))


def japanese_words(text: str) -> tuple[Word, ...]:
    """All words of a text and its punctuation, with dictionary forms and parts of speech."""
    return tuple(
        Word(node.surface, node.feature.orthBase or "", f"{node.feature.pos1}-{node.feature.pos2}")
        for node in mecab()(normalise(text)[:MAX_CHARACTERS].lower())
    )


@cache
def mecab() -> Any:
    """MeCab with its dictionary, loaded once."""
    import fugashi
    from capsearch_unidic import ARGUMENTS

    return fugashi.Tagger(ARGUMENTS)


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


MAX_FOLDED = 4000
_RUN = re.compile(r"[^\W_]+")
_LONG_VOWEL = "ー"  # in words of kana; by itself it is of no language
_KATAKANA = re.compile("[\u30a1-\u30fa\u30fc-\u30ff]+")
_NAME_NOTHING = """
    a an the of in on at to is are was were be and or with by for from it its this that there
    jpg jpeg png gif img dsc dscn dscf dcim pict
"""
_STOP = frozenset(_NAME_NOTHING.split())  # they occur everywhere


def fold(text: str) -> tuple[str, ...]:
    """The tokens of a text, in order."""
    plain = simplify(normalise(text)[:MAX_FOLDED]).lower()
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
    plain = simplify(normalise(text)[:MAX_FOLDED]).lower()
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
