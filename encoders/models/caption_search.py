"""Beam search over the words of several languages at once; a beam of one is greedy search.

A captioner writes words, not pieces of words: a decoder knows the language it writes, so each step
chooses among the words of this language alone, and a caption takes no more steps than it has words.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import write_text
from capsearch.engine.records import Vectors

END = 0  # the word that ends a caption: row 0, and the first output of every language
WORDS_FILE = "words.json"
# Words that sentences repeat: articles, prepositions, particles, measure words. All others say what
# is there, and a caption that says it twice is mostly wrong.
_FUNCTION_WORDS = {
    "en": "a an the in of on and or with to at by for from is are his her its their one two some "
    "another other each that which while as up down",
    "zh": "， 、 的 地 得 着 了 过 是 有 在 和 与 上 下 里 中 前 后 旁 边 旁边 放 他 她 "
    "它 人 个 只 一 一个 一只 一辆 一台 一张 一位 一名 一座 一些 一条 一头 一把 一匹 "
    "一边 一盘 一份 一群 一块 一片 一排 两个 两只 几个 许多 很多",
    "ja": "、 の て で を が に と は も や へ た いる い ます まし ある あり れ られ し "
    "さ せ な だ です から まで など たり つ 人 匹 頭 羽 台 本 枚 つつ 一 二 1 2 お そう",
}


@dataclass(frozen=True)
class CaptionVocabulary:
    """Rows of a decoder's embedding: END, one start token for each language, then the words.

    The start token tells the decoder which language to write ("artificial token").
    """

    words: Mapping[str, tuple[str, ...]] = field(repr=False)
    _known: Mapping[str, Mapping[str, int]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        known = {
            language: {word: at for at, word in enumerate(words, start=1)}
            for language, words in self.words.items()
        }
        object.__setattr__(self, "_known", known)

    def __len__(self) -> int:
        return 1 + len(self.words) + sum(map(len, self.words.values()))

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages, in the order of their start tokens."""
        return tuple(self.words)

    def start(self, language: str) -> int:
        """The row of a language's start token."""
        return 1 + self.languages.index(language)

    def outputs(self, language: str) -> NDArray[np.int64]:
        """(W + 1,) rows that a decoder chooses from: END and the words of a language."""
        first = 1 + len(self.words)
        for name, words in self.words.items():
            if name == language:
                return np.append(END, np.arange(first, first + len(words)))
            first += len(words)
        raise KeyError(language)

    def repeatable(self, language: str) -> NDArray[np.bool_]:
        """(W + 1,) which of `outputs` a caption may well have twice."""
        often = {*_FUNCTION_WORDS.get(language, "").split()}
        return np.array([True, *(word in often for word in self.words[language])])

    def only(self, *languages: str) -> CaptionVocabulary:
        """The words of some languages."""
        return CaptionVocabulary({language: self.words[language] for language in languages})

    def encode(self, tokens: Sequence[str], language: str) -> NDArray[np.int64] | None:
        """Positions in `outputs`, END last; None for tokens with an unknown word."""
        known = self._known[language]
        if not tokens or any(token not in known for token in tokens):
            return None
        return np.array([*(known[token] for token in tokens), END], np.int64)

    def decode(self, positions: Iterable[int], language: str) -> str:
        """A caption from positions in `outputs`, up to END."""
        words = []
        for position in positions:
            if position == END:
                break
            words.append(self.words[language][position - 1])
        return join_words(words, language)

    def save(self, folder: Path) -> None:
        """Write the table of a model folder."""
        write_text(folder / WORDS_FILE, json.dumps(self.words, ensure_ascii=False, indent=0) + "\n")

    @staticmethod
    def load(folder: Path) -> CaptionVocabulary:
        """The table that `save` wrote."""
        stored = json.loads((folder / WORDS_FILE).read_text("utf-8"))
        return CaptionVocabulary({language: tuple(words) for language, words in stored.items()})


def build_vocabulary(
    captions: Mapping[str, Sequence[Sequence[str]]], min_count: int, size: int
) -> CaptionVocabulary:
    """The words of tokenised captions that occur `min_count` times, at most `size` a language."""
    words = {}
    for language, sentences in captions.items():
        counts = Counter(token for sentence in sentences for token in sentence)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        words[language] = tuple(word for word, count in ranked[:size] if count >= min_count)
    return CaptionVocabulary(words)


def join_words(words: Sequence[str], language: str) -> str:
    """A caption from its words; English starts with a capital letter."""
    if language == "en":
        text = " ".join(words)
        return text[:1].upper() + text[1:]
    text = ""
    for word in words:
        between = " " if text and text[-1].isascii() and word[0].isascii() else ""  # Latin words
        text += between + word
    return text.strip("，、 ")


State = tuple[NDArray[Any], ...]  # arrays (N, J, ...): one lane for each language and hypothesis
_COMPACT = 0.75  # images that have ended are left out once so few go on


class StepDecoder(Protocol):
    """What the search needs of a decoder for N images."""

    def initial(self, starts: NDArray[np.int64]) -> State:
        """The state before the first word of J hypotheses, from (N, J) rows of start tokens."""
        ...

    def step(self, tokens: NDArray[np.int64], state: State, at: int) -> tuple[Vectors, State]:
        """(N, J) rows of the words before -> (N, J, D) outputs, and the next state."""
        ...

    def log_probabilities(self, hidden: Vectors, language: str) -> Vectors:
        """(N, B, D) outputs -> (N, B, W + 1) log-probabilities of a language's words."""
        ...

    def only(self, images: NDArray[np.int64]) -> StepDecoder:
        """The same for some of the images."""
        ...


@dataclass(frozen=True, slots=True)
class Beam:
    """How to search.

    `length_penalty`: scores are divided by length ** penalty (0: log P). `repetition_penalty`: what
    a word that the caption has already costs, in log P, unless it is `repeatable`. `candidates`:
    how many captions are kept of each image.
    """

    size: int = 3
    max_words: int = 20
    length_penalty: float = 0.7
    repetition_penalty: float = 4.0
    candidates: int = 1

    def scores(self, log_probability: Vectors, length: NDArray[np.int64]) -> Vectors:
        """By which captions are ranked."""
        return np.asarray(log_probability / length.astype(np.float32) ** self.length_penalty)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """The best captions of each image in one language, best first."""

    positions: NDArray[np.int64]  # (N, M, T) in the language's outputs, END after the last word
    log_probability: Vectors  # (N, M) of the whole caption, its end included; -inf: no caption
    length: NDArray[np.int64]  # (N, M) words, and the end

    def at(self, columns: NDArray[np.int64]) -> Hypotheses:
        """(N, M') of the captions of each image."""
        rows = np.arange(len(columns))[:, None]
        return Hypotheses(
            self.positions[rows, columns],
            self.log_probability[rows, columns],
            self.length[rows, columns],
        )


class _Lanes:
    """The hypotheses of some images in one language, and the captions that they ended as.

    Every hypothesis goes on. It has ended as well where END is among its likeliest `size` words, so
    that a beam of one is greedy search.
    """

    def __init__(self, images: int, beam: Beam, repeatable: NDArray[np.bool_]) -> None:
        self.beam = beam
        self.rows = np.arange(images)  # of `ended`
        self.open = np.ones(images, np.bool_)  # whether a better caption may be found
        self.positions = np.full((images, beam.size, beam.max_words + 1), END, np.int64)
        self._scores = np.full((images, beam.size), -np.inf, np.float32)  # log P, best first
        self._scores[:, 0] = 0.0  # all hypotheses are equal at first: keep one
        self._repetition = np.where(repeatable, 0.0, beam.repetition_penalty).astype(np.float32)
        self.ended = Hypotheses(
            np.full((images, beam.candidates, beam.max_words + 1), END, np.int64),
            np.full((images, beam.candidates), -np.inf, np.float32),
            np.ones((images, beam.candidates), np.int64),
        )

    def advance(self, words: Vectors, at: int) -> NDArray[np.int64]:
        """Extend by (N, B, W) log-probabilities; the (N, B) hypothesis that each one extends.

        `words` is overwritten.
        """
        before = self.positions[:, :, :at]
        cost = np.take_along_axis(words, before, 2) - self._repetition[before]
        np.put_along_axis(words, before, cost, 2)
        likelier = (words > words[:, :, END, None]).sum(2)  # words that are likelier than the end
        self._end(words[:, :, END], likelier < self.beam.size, at)
        words[:, :, END] = -np.inf
        words += self._scores[:, :, None]
        best, self._scores = _largest(words.reshape(len(words), -1), self.beam.size)
        parent, word = np.divmod(best, words.shape[2])
        self.positions = np.take_along_axis(self.positions, parent[:, :, None], 1)
        self.positions[:, :, at] = word
        # No score can rise above this one: log P only falls, and no caption is longer.
        longest = np.full(len(words), self.beam.max_words + 1)
        ahead = self.beam.scores(self._scores[:, 0], longest)
        best_log_p = self.ended.log_probability[self.rows, 0]
        reached = self.beam.scores(best_log_p, self.ended.length[self.rows, 0])
        self.open &= (likelier > 0).any(1) & (reached < ahead)
        return parent

    def _end(self, end: Vectors, may_end: NDArray[np.bool_], at: int) -> None:
        """Keep the best captions of those found and of the hypotheses that end now."""
        if at < self.beam.max_words and not may_end.any():
            return
        allowed = (may_end | (at == self.beam.max_words)) & self.open[:, None]
        total = np.where(allowed, self._scores + end, -np.inf)
        rows, kept = self.rows, self.ended
        log_p = np.concatenate([kept.log_probability[rows], total], 1)
        length = np.concatenate(
            [kept.length[rows], np.full_like(self.positions[:, :, 0], at + 1)], 1
        )
        positions = np.concatenate([kept.positions[rows], self.positions], 1)
        order = np.argsort(-self.beam.scores(log_p, length), axis=1, kind="stable")
        best = Hypotheses(positions, log_p, length).at(order[:, : self.beam.candidates])
        kept.positions[rows] = best.positions
        kept.log_probability[rows] = best.log_probability
        kept.length[rows] = best.length

    def keep(self, images: NDArray[np.int64]) -> None:
        """Search on for some of the images."""
        self.rows, self.open = self.rows[images], self.open[images]
        self.positions, self._scores = self.positions[images], self._scores[images]


def search(
    decoder: StepDecoder,
    images: int,
    starts: Mapping[str, int],
    outputs: Mapping[str, NDArray[np.int64]],
    repeatable: Mapping[str, NDArray[np.bool_]],
    beam: Beam,
) -> Mapping[str, Hypotheses]:
    """The most probable captions of each image in each language.

    `starts`: the row of each language's start token. `outputs`: the rows of its words, `repeatable`
    those that cost nothing a second time.
    """
    lanes = {language: _Lanes(images, beam, repeatable[language]) for language in starts}
    tokens = np.repeat([list(starts.values())], images, 0).repeat(beam.size, 1)  # (N, L * B)
    state = decoder.initial(tokens)
    for at in range(beam.max_words + 1):
        hidden, state = decoder.step(tokens, state, at)
        parents, words = [], []
        for number, (language, lane) in enumerate(lanes.items()):
            first = number * beam.size
            part = hidden[:, first : first + beam.size]
            parents.append(first + lane.advance(decoder.log_probabilities(part, language), at))
            words.append(outputs[language][lane.positions[:, :, at]])
        tokens, parent = np.concatenate(words, 1), np.concatenate(parents, 1)
        going = np.any([lane.open for lane in lanes.values()], axis=0)
        if not going.any():
            break
        left = np.arange(len(going))
        if going.mean() <= _COMPACT:
            left = np.flatnonzero(going)
            decoder, tokens, parent = decoder.only(left), tokens[left], parent[left]
            for lane in lanes.values():
                lane.keep(left)
        state = tuple(array[left[:, None], parent] for array in state)
    return {language: lane.ended for language, lane in lanes.items()}


def _largest(scores: Vectors, count: int) -> tuple[NDArray[np.int64], Vectors]:
    """(N, count) columns of the largest scores and these, best first, ties by column.

    Repeated maxima: for a handful of hypotheses faster than any partition. `scores` is overwritten.
    """
    rows = np.arange(len(scores))
    columns, values = [], []
    for _ in range(count):
        columns.append(scores.argmax(1))
        values.append(scores[rows, columns[-1]])
        scores[rows, columns[-1]] = -np.inf
    return np.stack(columns, 1), np.stack(values, 1)
