"""Enhanced W2VV at search time: sentences into the shared space, in plain numpy.

`encoders.train.w2vv` is the same network in torch, which trains these weights; a test
compares the vectors of both. One sentence takes a few milliseconds on one core.

A gated recurrent unit in plain numpy, over sentences of different lengths.
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

from capsearch.encoders.models.model_folder import Arrays
from capsearch.encoders.models.text import CalibratedTextEncoder, Sentence
from capsearch.encoders.text.languages import katakana_words, normalise, respell, simplify
from capsearch.encoders.text.tokenizers import JapaneseTokenizer, japanese_words
from capsearch.encoders.text.tokenizers import tokenizer as make_tokenizer
from capsearch.engine.errors import UnknownModel
from capsearch.engine.protocols import Tokenizer
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import unit

MAX_TOKENS = 32  # as in the authors' code: later tokens add little and slow the GRU

BATCH_SIZE = 256  # sentences whose GRU states are computed together

FloatArray = NDArray[Any]  # float32 throughout


@dataclass(frozen=True)
class LanguageEncoder:
    """The tokens of one language (BoW + word2vec + GRU) as input of the hidden layer.

    The folder contains LANGUAGE.json (vocabulary, and the tokenizer's dictionary if it has one)
    and LANGUAGE.safetensors.
    """

    language: str
    folder: Path

    def token_ids(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Ids of a sentence's tokens in order; tokens outside the vocabulary are left out."""
        vocabulary = self._vocabulary
        known = [vocabulary[token] for token in tokens if token in vocabulary]
        return np.array(known[:MAX_TOKENS], np.int64)

    def read(self, text: str) -> Sentence:
        """The text in the spelling that the vocabulary has, and its tokens."""
        if isinstance(self.tokenizer, JapaneseTokenizer):
            return self._read_japanese(text, self.tokenizer)
        tokens = self.tokenizer.tokens(text)
        spelled = simplify(text) if self.language == "zh" else text
        return Sentence(spelled, tokens, self._unknown(tokens))

    def _read_japanese(self, text: str, tokenizer: JapaneseTokenizer) -> Sentence:
        """With katakana words that are not known in a spelling that is.

        A word is cut by itself only where the sentence has an unknown token that may be part of it.
        """
        words, plain = japanese_words(text), normalise(text)
        tokens = tokenizer.tokens_of(words)
        unknown = self._unknown(tokens)
        doubtful = [word.surface for word in words if word.base in unknown]
        written = set(katakana_words(plain)) | {plain}

        def known(word: str) -> bool:
            if word in written and not any(part in word or word in part for part in doubtful):
                return True
            return not self._unknown(tokenizer.tokens(word))

        spelled = respell(plain, known)
        if spelled != plain:
            tokens = tokenizer.tokens(spelled)
        return Sentence(spelled, tokens, unknown, words)

    def _unknown(self, tokens: Sequence[str]) -> tuple[str, ...]:
        return tuple(token for token in tokens if token not in self._vocabulary)

    def hidden(self, sentences: Sequence[NDArray[np.int64]]) -> FloatArray:
        """(N, H) the tokens' contribution to the hidden layer before its ReLU.

        `sentences` are token ids; a sentence without any contributes the bias alone.
        """
        w = self.arrays
        out = np.repeat(w["mix_b"][None], len(sentences), axis=0)
        with_tokens = [row for row, token_ids in enumerate(sentences) if len(token_ids)]
        for start in range(0, len(with_tokens), BATCH_SIZE):
            rows = with_tokens[start : start + BATCH_SIZE]
            out[rows] += self._inputs([sentences[row] for row in rows]) @ w["mix_W"].T
        return out

    def _inputs(self, sentences: Sequence[NDArray[np.int64]]) -> FloatArray:
        """(N, B + E + G) bag of words, mean word vector and pooled GRU; no sentence is empty."""
        w = self.arrays
        bags = [w.rows("bow", np.unique(token_ids)).sum(axis=0) for token_ids in sentences]
        vectors = [w.rows("words", token_ids) for token_ids in sentences]  # N times (T, E)
        means = [vector.mean(axis=0) for vector in vectors]
        pool = POOLINGS[self.stored["pooling"]]
        states = gru(vectors, w["gru_Wx"], w["gru_Wh"], w["gru_bx"], w["gru_bh"])
        return np.stack(
            [
                np.concatenate([bag, mean, pool(state, w)])
                for bag, mean, state in zip(bags, means, states, strict=True)
            ]
        )

    @cached_property
    def stored(self) -> Mapping[str, Any]:
        """LANGUAGE.json: vocabulary, tokenizer, dictionary, pooling."""
        text = (self.folder / f"{self.language}.json").read_text(encoding="utf-8")
        return json.loads(text)  # type: ignore[no-any-return]

    @cached_property
    def _vocabulary(self) -> Mapping[str, int]:
        return {token: token_id for token_id, token in enumerate(self.stored["vocabulary"])}

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer it was trained with; UnknownModel if its version has changed since."""
        made = make_tokenizer(self.language, self.stored.get("dictionary"))
        if made.version != self.stored["tokenizer"]:
            raise UnknownModel(
                f"{self.folder} was trained with tokenizer {self.stored['tokenizer']}, this "
                f"capsearch has {made.version}; install the capsearch it was trained with"
            )
        return made

    @cached_property
    def arrays(self) -> Arrays:
        """LANGUAGE.safetensors."""
        return Arrays(self.folder / f"{self.language}.safetensors")


def _last(states: FloatArray, w: Arrays) -> FloatArray:
    """W2VV: the last state."""
    return np.asarray(states[-1])


def _mean(states: FloatArray, w: Arrays) -> FloatArray:
    """W2VV++: the mean of all states."""
    return np.asarray(states.mean(axis=0))


def _attention(states: FloatArray, w: Arrays) -> FloatArray:
    """Eq. 1 of COCO-CN: states weighted by a softmax over the sentence."""
    relevance = states @ w["attention_W"] + w["attention_b"]  # (T,)
    weights = np.exp(relevance - relevance.max())
    return np.asarray((weights / weights.sum()) @ states)


POOLINGS: Mapping[str, Callable[[FloatArray, Arrays], FloatArray]] = {
    "last": _last,
    "mean": _mean,
    "attention": _attention,
}


@dataclass(frozen=True)
class SharedTextEncoder(CalibratedTextEncoder):
    """Enhanced W2VV for several languages."""

    encoders: Mapping[str, LanguageEncoder]
    folder: Path  # of the layers that all languages share

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it encodes."""
        return tuple(self.encoders)

    def read(self, text: str, language: str) -> Sentence:
        """The text in the spelling that the vocabulary has, and its tokens."""
        return self.encoders[language].read(text)

    def visual_vectors(
        self, sentences: Sequence[Sentence], language: str, vectors: Vectors
    ) -> tuple[Vectors, tuple[bool, ...]]:
        """A sentence is known if it has a word of the vocabulary or the sentence encoder's."""
        encoder = self.encoders[language]
        token_ids = [encoder.token_ids(sentence.tokens) for sentence in sentences]
        known = tuple(
            len(ids) > 0 or self.sentences.known(sentence.text)
            for ids, sentence in zip(token_ids, sentences, strict=True)
        )
        return self._visual(vectors, encoder.hidden(token_ids)), known

    def _visual(self, sentence: FloatArray, tokens: FloatArray) -> Vectors:
        """(N, S) sentence vectors and (N, H) token inputs -> (N, D) in the shared space."""
        w = self._arrays
        hidden = np.maximum(sentence @ w["sentence_W"].T + tokens, 0.0)  # (N, H)
        return unit(hidden @ w["out_W"].T + w["out_b"])

    @cached_property
    def _arrays(self) -> Arrays:
        return Arrays(self.folder / "shared.safetensors")


def gru(
    sentences: Sequence[FloatArray], wx: FloatArray, wh: FloatArray, bx: FloatArray, bh: FloatArray
) -> list[FloatArray]:
    """Each sentence's hidden states (T, G), with torch's order of gates: reset, update, new.

    No sentence may be empty. Longest first, all sentences compute a step together, those already
    at their end excluded. Rows are ordered by step, so that each step reads and writes one slice.
    """
    lengths = np.array([len(sentence) for sentence in sentences])
    order = np.argsort(-lengths, kind="stable")
    starts = np.concatenate([[0], np.cumsum(lengths[order])[:-1]])
    counts = [np.count_nonzero(lengths > step) for step in range(lengths.max())]
    rows = np.concatenate([starts[:count] + step for step, count in enumerate(counts)])
    size = wh.shape[1]
    inputs = np.concatenate([sentences[at] for at in order])[rows] @ wx.T + bx  # (sum of T, 3G)
    inputs[:, : 2 * size] += bh[: 2 * size]
    states = np.empty((len(inputs), size), np.float32)
    state, done = np.zeros((len(sentences), size), np.float32), 0
    for count in counts:
        now, before = inputs[done : done + count], state[:count]
        recurrent = before @ wh.T
        gates = _sigmoid(now[:, : 2 * size] + recurrent[:, : 2 * size])
        reset, update = gates[:, :size], gates[:, size:]
        new = np.tanh(now[:, 2 * size :] + reset * (recurrent[:, 2 * size :] + bh[2 * size :]))
        state = states[done : done + count]
        np.add(new, update * (before - new), out=state)
        done += count
    by_sentence = np.empty_like(states)
    by_sentence[rows] = states
    split = dict(zip(order.tolist(), np.split(by_sentence, starts[1:]), strict=True))
    return [split[at] for at in range(len(sentences))]


def _sigmoid(x: FloatArray) -> FloatArray:
    """In place."""
    np.negative(x, out=x)
    np.exp(x, out=x)
    x += 1.0
    return np.asarray(np.reciprocal(x, out=x))
