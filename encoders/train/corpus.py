"""Captions as inputs of the text encoders: vocabularies, word vectors, token ids.

Names of concepts as captions: how images with labels, and none of their own, are trained on.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random

import numpy as np
import torch
from numpy.typing import NDArray

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.features import EncodesSentences, FeatureCache, cached_word_vectors
from capsearch.encoders.data.labels import folded_names, held_out
from capsearch.encoders.data.layouts import LEFT_OUT_SOURCES
from capsearch.encoders.data.templates import photo_captions
from capsearch.encoders.models.w2vv import MAX_TOKENS
from capsearch.encoders.text import concepts
from capsearch.encoders.text.languages import simplify
from capsearch.encoders.text.tokenizers import ChineseTokenizer, tokenizer
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.protocols import Tokenizer
from capsearch.engine.records import Vectors

PER_IMAGE = 6  # captions of each image and language; each step draws some of them


@dataclass(frozen=True, slots=True)
class ShownConcepts:
    """The concepts that each image shows, broader ones included, as numbers."""

    by_image: Sequence[NDArray[np.int64]]  # N
    numbers: Mapping[str, int]  # by concept id

    def of(self, image_rows: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(B, K) of some images."""
        shown = np.zeros((len(image_rows), len(self.numbers)), np.bool_)
        for at, row in enumerate(image_rows):
            shown[at, self.by_image[row]] = True
        return shown


@dataclass(frozen=True, slots=True)
class NameCaptions:
    """Captions made of names: their texts, the rows of their images, and what they name."""

    texts: Sequence[str]
    image_rows: NDArray[np.int64]
    concepts: NDArray[np.int64]  # numbers of ShownConcepts


def shown_concepts(data: CaptionDataset) -> ShownConcepts | None:
    """What the images' labels stand for; None if no image has one."""
    ids = [
        sorted({above for one in image.concepts for above in concepts.broader(one)})
        for image in data.images
    ]
    numbers = {one: at for at, one in enumerate(sorted({one for shown in ids for one in shown}))}
    if not numbers:
        return None
    by_image = [np.array([numbers[one] for one in shown], np.int64) for shown in ids]
    return ShownConcepts(by_image, numbers)


def name_captions(data: CaptionDataset, language: str, shown: ShownConcepts) -> NameCaptions:
    """PER_IMAGE captions of each image with a label, the same in every run.

    The names of held-out concepts are in none of them, unless images show these.
    """
    unused = folded_names(held_out() - shown.numbers.keys())
    found = [
        (caption.text, row, shown.numbers[caption.concept])
        for row, image in enumerate(data.images)
        if image.concepts
        for caption in photo_captions(
            [concepts.by_id(one) for one in image.concepts],
            language,
            Random(f"{language} {image.id}"),
            PER_IMAGE,
            unused,
        )
    ]
    return NameCaptions(
        [text for text, _, _ in found],
        np.array([row for _, row, _ in found], np.int64),
        np.array([number for _, _, number in found], np.int64),
    )


MIN_COUNT = 5  # COCO-CN: words that occur at least five times
NO_IMAGE = -1


@dataclass(frozen=True)
class Vocabulary:
    """A language's words, whose positions are the token ids, and the tokenizer."""

    language: str
    words: tuple[str, ...] = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)

    def token_ids(self, tokens: Sequence[str]) -> torch.Tensor:
        """Ids of the known tokens, in order, truncated as at search time."""
        known = [self._ids[token] for token in tokens if token in self._ids]
        return torch.tensor(known[:MAX_TOKENS], dtype=torch.long)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {word: at for at, word in enumerate(self.words)})

    _ids: Mapping[str, int] = field(init=False, repr=False, default_factory=dict)


@dataclass(frozen=True)
class LanguageCaptions:
    """All captions of one language: `image_rows[i]` is the row of caption i's image.

    NO_IMAGE is the row of a sentence without an image, which only a teacher can teach.
    """

    image_rows: NDArray[np.int64]  # (C,)
    token_ids: Sequence[torch.Tensor] = field(repr=False)  # C tensors
    sentence: Vectors = field(repr=False)  # (C, S) float16
    concepts: NDArray[np.int64]  # (C,) the concept that caption i names, -1 for a sentence
    teacher: Vectors | None = field(default=None, repr=False)  # (C, D) float16, its text vectors

    def some(self, count: int, random: np.random.Generator) -> LanguageCaptions:
        """At most `count` of them, drawn at random."""
        rows = random.permutation(len(self.image_rows))[:count]
        tokens = [self.token_ids[row] for row in rows]
        return LanguageCaptions(
            self.image_rows[rows],
            tokens,
            self.sentence[rows],
            self.concepts[rows],
            None if self.teacher is None else self.teacher[rows],
        )

    def by_image(self, count: int) -> list[NDArray[np.int64]]:
        """For each of `count` images the rows of its captions."""
        order = np.argsort(self.image_rows, kind="stable")
        bounds = np.searchsorted(self.image_rows[order], np.arange(count + 1))
        return [order[bounds[at] : bounds[at + 1]] for at in range(count)]


@dataclass(frozen=True)
class Corpus:
    """Vocabularies and encoded captions of both splits."""

    vocabularies: Mapping[str, Vocabulary]
    vectors: Mapping[str, torch.Tensor]  # word2vec vectors by language
    train: Mapping[str, LanguageCaptions]
    validation: Mapping[str, LanguageCaptions]
    shown: ShownConcepts | None = None  # by the training images


def texts_of(data: CaptionDataset, language: str) -> tuple[list[str], NDArray[np.int64]]:
    """A language's captions and the rows of their images."""
    pairs = [
        (simplify(caption.text) if language == "zh" else caption.text, row)
        for row, image in enumerate(data.images)
        for caption in image.captions.get(language, ())
        if caption.source not in LEFT_OUT_SOURCES
    ]
    return [text for text, _ in pairs], np.array([row for _, row in pairs], np.int64)


def build_vocabulary(
    language: str, texts: Sequence[str], min_count: int = MIN_COUNT
) -> tuple[Vocabulary, list[tuple[str, ...]]]:
    """The words that occur `min_count` times, a pinned tokenizer, and the texts as tokens."""
    splitter = tokenizer(language)
    tokens = [splitter.tokens(text) for text in texts]
    if isinstance(splitter, ChineseTokenizer):
        # Again with the pinned dictionary, so that training and search tokenize alike.
        splitter = splitter.pinned({word for sentence in tokens for word in sentence})
        tokens = [splitter.tokens(text) for text in texts]
    counts = Counter(word for sentence in tokens for word in sentence)
    words = tuple(sorted(word for word, count in counts.items() if count >= min_count))
    if not words:
        raise TrainingProblem(
            f"no {language} word occurs {min_count} times in the captions; add captions or "
            "lower --min-count"
        )
    return Vocabulary(language, words, splitter), tokens


def word_vectors(
    vocabulary: Vocabulary, tokens: Sequence[Sequence[str]], width: int, seed: int
) -> Vectors:
    """(V, width) skip-gram vectors of the captions' words, trained with gensim."""
    from gensim.models import Word2Vec

    logging.getLogger("gensim").setLevel(logging.ERROR)
    model = Word2Vec(
        [list(sentence) for sentence in tokens],
        vector_size=width,
        window=5,
        min_count=1,
        sg=1,
        epochs=10,
        seed=seed,
        workers=1,  # more than one makes the result depend on the scheduler
    )
    rows: Vectors = np.stack([model.wv[word] for word in vocabulary.words])
    # The same scale for every corpus size, one at which the GRU trains well.
    rows *= 0.1 / max(float(rows.std()), 1e-6)
    return rows


def encode_captions(
    vocabulary: Vocabulary,
    texts: Sequence[str],
    image_rows: NDArray[np.int64],
    sentences: EncodesSentences,
    tokens: Sequence[Sequence[str]] | None = None,
    concepts: NDArray[np.int64] | None = None,
) -> LanguageCaptions:
    """Token ids and sentence vectors of a language's captions, and the concepts that they name."""
    tokens = tokens or [vocabulary.tokenizer.tokens(text) for text in texts]
    if concepts is None:
        concepts = np.full(len(texts), -1, np.int64)
    return LanguageCaptions(
        image_rows=image_rows,
        token_ids=[vocabulary.token_ids(sentence) for sentence in tokens],
        sentence=sentences.encode(texts).astype(np.float16, copy=False),
        concepts=concepts,
    )


def build_corpus(
    train: CaptionDataset,
    validation: CaptionDataset,
    languages: Sequence[str],
    sentences: EncodesSentences,
    cache: FeatureCache,
    word_width: int,
    min_count: int,
    seed: int,
    without_image: Mapping[str, Sequence[str]] | None = None,
) -> Corpus:
    """Vocabularies from the training captions, and the encoded captions of both splits.

    `without_image` are more training sentences by language.
    """
    vocabularies, vectors, encoded = {}, {}, {}
    shown = shown_concepts(train)
    for language in languages:
        texts, image_rows = texts_of(train, language)
        more = (without_image or {}).get(language, ())
        texts = [*texts, *more]
        image_rows = np.append(image_rows, np.full(len(more), NO_IMAGE))
        if not texts:
            raise TrainingProblem(
                f"no {language} captions in split '{', '.join(train.splits)}'; list the "
                "languages of the captions with --lang"
            )
        texts, image_rows, named = with_names(train, language, shown, texts, image_rows)
        vocabulary, tokens = build_vocabulary(language, texts, min_count)
        vocabularies[language] = vocabulary
        encoded[language] = encode_captions(vocabulary, texts, image_rows, sentences, tokens, named)
        rows = cached_word_vectors(
            cache,
            vocabulary.words,
            (vocabulary.tokenizer.version, word_width, seed, min_count, texts),
            partial(word_vectors, vocabulary, tokens, word_width, seed),
        )
        vectors[language] = torch.from_numpy(rows)
    encoded_validation = captions_of(validation, vocabularies, sentences)
    return Corpus(vocabularies, vectors, encoded, encoded_validation, shown)


def captions_of(
    data: CaptionDataset, vocabularies: Mapping[str, Vocabulary], sentences: EncodesSentences
) -> dict[str, LanguageCaptions]:
    """A split's captions and names of labelled images, encoded with existing vocabularies."""
    shown = shown_concepts(data)
    encoded = {}
    for language, vocabulary in vocabularies.items():
        texts, rows, named = with_names(data, language, shown, *texts_of(data, language))
        encoded[language] = encode_captions(vocabulary, texts, rows, sentences, concepts=named)
    return encoded


def with_names(
    data: CaptionDataset,
    language: str,
    shown: ShownConcepts | None,
    texts: list[str],
    image_rows: NDArray[np.int64],
) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]]:
    """Captions, and after them names of what labelled images show: texts, rows, concepts."""
    if shown is None:
        return texts, image_rows, np.full(len(texts), -1, np.int64)
    names = name_captions(data, language, shown)
    return (
        [*texts, *names.texts],
        np.concatenate([image_rows, names.image_rows]),
        np.concatenate([np.full(len(texts), -1, np.int64), names.concepts]),
    )
