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

from capsearch.encoders.hubness import Hubness
from capsearch.encoders.languages import detect, simplify
from capsearch.encoders.model_folder import Arrays
from capsearch.encoders.sentence import SentenceEncoder
from capsearch.encoders.tokenizers import tokenizer as make_tokenizer
from capsearch.engine.errors import UnknownLanguage, UnknownModel
from capsearch.engine.protocols import Tokenizer
from capsearch.engine.records import EncodedText, Vectors
from capsearch.engine.vectors import as_document, as_query, strip_bias, unit

MAX_WORDS = 32  # as in the authors' code: what follows adds little and slows the GRU

AT_ONCE = 256  # sentences whose GRU steps are taken together

FloatArray = NDArray[Any]  # float32 throughout


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

    def unknown(self, text: str) -> tuple[str, ...]:
        """A sentence's words outside the vocabulary."""
        return tuple(w for w in self.tokenizer.tokens(text) if w not in self._vocabulary)

    def hidden(self, sentences: Sequence[NDArray[np.int64]]) -> FloatArray:
        """(N, H) the words' contribution to the hidden layer before its ReLU."""
        w = self.arrays
        out = np.repeat(w["mix_b"][None], len(sentences), axis=0)
        told = [at for at, numbers in enumerate(sentences) if len(numbers)]
        for start in range(0, len(told), AT_ONCE):
            rows = told[start : start + AT_ONCE]
            out[rows] += self._inputs([sentences[row] for row in rows]) @ w["mix_W"].T
        return out

    def _inputs(self, sentences: Sequence[NDArray[np.int64]]) -> FloatArray:
        """(N, B + E + G) bag of words, mean word vector and pooled GRU; none has no words."""
        w = self.arrays
        bags = [w.rows("bow", np.unique(numbers)).sum(axis=0) for numbers in sentences]
        words = [w.rows("words", numbers) for numbers in sentences]  # N times (T, E)
        means = [one.mean(axis=0) for one in words]
        pool = POOLINGS[self.stored["pooling"]]
        states = gru(words, w["gru_Wx"], w["gru_Wh"], w["gru_bx"], w["gru_bh"])
        return np.stack(
            [
                np.concatenate([bag, mean, pool(one, w)])
                for bag, mean, one in zip(bags, means, states, strict=True)
            ]
        )

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


def _last(states: FloatArray, w: Arrays) -> FloatArray:
    """W2VV: what the GRU ends with."""
    return np.asarray(states[-1])


def _mean(states: FloatArray, w: Arrays) -> FloatArray:
    """W2VV++: all states alike."""
    return np.asarray(states.mean(axis=0))


def _attention(states: FloatArray, w: Arrays) -> FloatArray:
    """Eq. 1 of COCO-CN: states weighted by a softmax over the sentence."""
    relevance = states @ w["attention_W"] + w["attention_b"]  # (T,)
    share = np.exp(relevance - relevance.max())
    return np.asarray((share / share.sum()) @ states)


POOLINGS: Mapping[str, Callable[[FloatArray, Arrays], FloatArray]] = {
    "last": _last,
    "mean": _mean,
    "attention": _attention,
}


def gru(
    sentences: Sequence[FloatArray], wx: FloatArray, wh: FloatArray, bx: FloatArray, bh: FloatArray
) -> list[FloatArray]:
    """Each sentence's hidden states (T, G), of a GRU with torch's hubness order: reset, update, new.

    None is empty. All take a step together; the shorter ones have left by then. Rows lie step
    by step, so that what a step reads and writes is one slice.
    """
    lengths = np.array([len(one) for one in sentences])
    order = np.argsort(-lengths, kind="stable")
    starts = np.concatenate([[0], np.cumsum(lengths[order])[:-1]])
    taking = [np.count_nonzero(lengths > step) for step in range(lengths.max())]
    rows = np.concatenate([starts[:count] + step for step, count in enumerate(taking)])
    size = wh.shape[1]
    given = np.concatenate([sentences[at] for at in order])[rows] @ wx.T + bx  # (sum of T, 3G)
    given[:, : 2 * size] += bh[: 2 * size]
    states = np.empty((len(given), size), np.float32)
    state, done = np.zeros((len(sentences), size), np.float32), 0
    for count in taking:
        now, before = given[done : done + count], state[:count]
        recurrent = before @ wh.T
        gates = _sigmoid(now[:, : 2 * size] + recurrent[:, : 2 * size])
        reset, update = gates[:, :size], gates[:, size:]
        new = np.tanh(now[:, 2 * size :] + reset * (recurrent[:, 2 * size :] + bh[2 * size :]))
        state = states[done : done + count]
        np.add(new, update * (before - new), out=state)
        done += count
    told = np.empty_like(states)
    told[rows] = states
    found = dict(zip(order.tolist(), np.split(told, starts[1:]), strict=True))
    return [found[at] for at in range(len(sentences))]


def _sigmoid(x: FloatArray) -> FloatArray:
    """Overwrites what it is given."""
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1.0
    return np.asarray(np.reciprocal(x, out=x))


@dataclass(frozen=True)
class SharedTextEncoder:
    """Sentences of several languages into one space (engine.protocols.TextEncoder)."""

    name: str
    digest: str
    width: int  # of the shared space
    encoders: Mapping[str, LanguageEncoder]
    sentences: SentenceEncoder
    folder: Path  # of what all its languages share
    clm_weights: Mapping[str, float]
    cl_floors: Mapping[str, float]
    sentence_weight: float  # of the sentence encoder's cosine in CL; the rest is the shared space's
    hubness: Hubness  # of captions

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it reads."""
        return tuple(self.encoders)

    @property
    def dimension(self) -> int:
        """The shared space, and the penalty."""
        return self.width + 1

    @property
    def caption_dimension(self) -> int:
        """Shared space and sentence space side by side, and the penalty."""
        return self.width + self.sentences.dimension + 1

    def detect(self, text: str) -> str:
        """By script; a language this model does not read falls back to its first."""
        language = detect(text)
        return language if language in self.encoders else self.languages[0]

    def unknown_words(self, text: str, language: str) -> tuple[str, ...]:
        """Words the sentence encoder alone may know."""
        return self.encoders[language].unknown(text)

    def clm_weight(self, language: str) -> float:
        """The share of CL in CLM that validated best."""
        return self.clm_weights[language]

    def cl_floor(self, language: str) -> float:
        """The mean CL score of unrelated captions on validation."""
        return self.cl_floors[language]

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Sentences of one language as questions; zero where nothing is known."""
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
        visual = self._visual(sentence, encoder.hidden(numbers))
        mask = np.array(known, np.float32)[:, None]
        caption = caption_vectors(visual, sentence, self.sentence_weight)
        return EncodedText(as_query(visual * mask), as_query(caption * mask), known)

    def as_documents(self, captions: Vectors) -> Vectors:
        """Captions for an index: what they mean, and what they pay; nothing for nothing."""
        meanings = strip_bias(captions)
        return as_document(meanings, self.hubness.penalties(meanings) * meanings.any(axis=1))

    def _visual(self, sentence: FloatArray, words: FloatArray) -> Vectors:
        w = self._arrays
        hidden = np.maximum(sentence @ w["sentence_W"].T + words, 0.0)  # (N, H)
        return unit(hidden @ w["out_W"].T + w["out_b"])

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.folder / "shared.safetensors")


def caption_vectors(visual: Vectors, sentence: Vectors, share: float) -> Vectors:
    """Vectors whose inner product is the weighted sum of both spaces' cosines."""
    return np.concatenate(
        [np.sqrt(1.0 - share) * visual, np.sqrt(share) * sentence], axis=1, dtype=np.float32
    )
