"""Enhanced W2VV at search time: sentences into the shared space, in plain numpy.

The torch twin that trains these weights is `encoders.training.network`; a test holds the two
to the same vectors. One sentence takes a few milliseconds on one core.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.languages import detect, simplify
from capsearch.encoders.sentence import SentenceEncoder
from capsearch.encoders.storage import Arrays
from capsearch.encoders.tokenizers import tokenizer as make_tokenizer
from capsearch.engine.errors import UnknownLanguage, UnknownModel
from capsearch.engine.protocols import Tokenizer
from capsearch.engine.records import EncodedText, Vectors
from capsearch.engine.vectors import unit

MAX_WORDS = 32  # as in the authors' code: what follows adds little and slows the GRU

Array = NDArray[Any]  # float32 throughout


@dataclass(frozen=True)
class LanguageEncoder:
    """One language's words -> its share of the hidden layer (BoW + word2vec + GRU).

    The folder holds LANGUAGE.json (vocabulary, and the tokenizer's dictionary if it has one)
    and LANGUAGE.safetensors.
    """

    language: str
    folder: Path

    def numbers(self, text: str) -> NDArray[np.int64]:
        """Vocabulary numbers of a sentence's known words, in order."""
        vocabulary = self._vocabulary
        words = self.tokenizer.tokens(text)
        known = [vocabulary[word] for word in words if word in vocabulary]
        return np.array(known[:MAX_WORDS], np.int64)

    def hidden(self, numbers: NDArray[np.int64]) -> Array:
        """(H,) the words' contribution to the hidden layer before its ReLU."""
        w = self.arrays
        if not len(numbers):
            return w["mix_b"]
        bag = w.rows("bow", np.unique(numbers)).sum(axis=0)
        words = w.rows("words", numbers)  # (T, E)
        parts = [bag, words.mean(axis=0), self._pooled(words)]
        return np.concatenate(parts) @ w["mix_W"].T + w["mix_b"]  # type: ignore[no-any-return]

    def _pooled(self, words: Array) -> Array:
        w = self.arrays
        states = gru(words, w["gru_Wx"], w["gru_Wh"], w["gru_bx"], w["gru_bh"])  # (T, G)
        return POOLINGS[self.stored["pooling"]](states, w)

    @cached_property
    def stored(self) -> Mapping[str, Any]:
        """LANGUAGE.json: vocabulary, tokenizer, dictionary, pooling."""
        text = (self.folder / f"{self.language}.json").read_text(encoding="utf-8")
        return json.loads(text)  # type: ignore[no-any-return]

    @cached_property
    def _vocabulary(self) -> Mapping[str, int]:
        return {word: number for number, word in enumerate(self.stored["vocabulary"])}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer it was trained with; UnknownModel if this is another version."""
        reader = make_tokenizer(self.language, self.stored.get("dictionary"))
        if reader.version != self.stored["tokenizer"]:
            raise UnknownModel(
                f"{self.folder} was trained with tokenizer {self.stored['tokenizer']}, this "
                f"capsearch has {reader.version}; install the capsearch it was trained with"
            )
        return reader

    @cached_property
    def arrays(self) -> Arrays:
        """LANGUAGE.safetensors."""
        return Arrays(self.folder / f"{self.language}.safetensors")


def _last(states: Array, w: Arrays) -> Array:
    """W2VV: what the GRU ends with."""
    return np.asarray(states[-1])


def _mean(states: Array, w: Arrays) -> Array:
    """W2VV++: all states alike."""
    return np.asarray(states.mean(axis=0))


def _attention(states: Array, w: Arrays) -> Array:
    """Eq. 1 of COCO-CN: states weighted by a softmax over the sentence."""
    relevance = states @ w["attention_W"] + w["attention_b"]  # (T,)
    share = np.exp(relevance - relevance.max())
    return np.asarray((share / share.sum()) @ states)


POOLINGS: Mapping[str, Callable[[Array, Arrays], Array]] = {
    "last": _last,
    "mean": _mean,
    "attention": _attention,
}


def gru(x: Array, wx: Array, wh: Array, bx: Array, bh: Array) -> Array:
    """All hidden states (T, G) of a GRU with torch's gate order: reset, update, new."""
    inputs = x @ wx.T + bx  # (T, 3G)
    size = wh.shape[1]
    state = np.zeros(size, np.float32)
    states = np.empty((len(x), size), np.float32)
    for step, given in enumerate(inputs):
        recurrent = wh @ state + bh
        reset = _sigmoid(given[:size] + recurrent[:size])
        update = _sigmoid(given[size : 2 * size] + recurrent[size : 2 * size])
        new = np.tanh(given[2 * size :] + reset * recurrent[2 * size :])
        state = (1.0 - update) * new + update * state
        states[step] = state
    return states


def _sigmoid(x: Array) -> Array:
    return np.asarray(1.0 / (1.0 + np.exp(-x)))


@dataclass(frozen=True)
class SharedTextEncoder:
    """Sentences of several languages into one space (engine.protocols.TextEncoder)."""

    name: str
    digest: str
    dimension: int
    encoders: Mapping[str, LanguageEncoder]
    sentences: SentenceEncoder
    shared: Path
    clm_weights: Mapping[str, float]
    cl_floors: Mapping[str, float]
    sentence_share: float  # of the sentence encoder's cosine in CL; the rest is the shared space's

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it reads."""
        return tuple(self.encoders)

    @property
    def caption_dimension(self) -> int:
        """Shared space and sentence space side by side."""
        return self.dimension + self.sentences.dimension

    def detect(self, text: str) -> str:
        """By script; a language this model does not read falls back to its first."""
        language = detect(text)
        return language if language in self.encoders else self.languages[0]

    def clm_weight(self, language: str) -> float:
        """The share of CL in CLM that validated best."""
        return self.clm_weights[language]

    def cl_floor(self, language: str) -> float:
        """The mean CL score of unrelated captions on validation."""
        return self.cl_floors[language]

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Vectors of sentences in one language; zero where nothing is known."""
        if language not in self.encoders:
            raise UnknownLanguage(
                f"model {self.name} does not read '{language}'; it reads {', '.join(self.encoders)}"
            )
        encoder = self.encoders[language]
        texts = [simplify(text) for text in texts] if language == "zh" else texts
        numbers = [encoder.numbers(text) for text in texts]
        known = tuple(
            len(found) > 0 or self.sentences.known(text)
            for found, text in zip(numbers, texts, strict=True)
        )
        sentence = self.sentences.encode(texts)  # (N, S)
        visual = self._visual(sentence, [encoder.hidden(found) for found in numbers])
        mask = np.array(known, np.float32)[:, None]
        return EncodedText(visual * mask, self._caption(visual, sentence) * mask, known)

    def _visual(self, sentence: Array, words: Sequence[Array]) -> Vectors:
        w = self._arrays
        if not len(words):
            return np.zeros((0, self.dimension), np.float32)
        hidden = np.maximum(sentence @ w["sentence_W"].T + np.stack(words), 0.0)  # (N, H)
        return unit(hidden @ w["out_W"].T + w["out_b"])

    def _caption(self, visual: Vectors, sentence: Vectors) -> Vectors:
        """One vector whose inner product is the weighted sum of both cosines."""
        share = self.sentence_share
        return np.concatenate(
            [np.sqrt(1.0 - share) * visual, np.sqrt(share) * sentence], axis=1, dtype=np.float32
        )

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.shared)
