"""Captions as training data: what is known of each, its words, and the vocabularies they give.

Text encoders learn from token ids and sentence vectors (`build_corpus`), captioners from positions
among a decoder's outputs (`tokenise`, `encode`). Images with labels and no captions of their own
are captioned with the names of concepts.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from random import Random
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.features import EncodesSentences, FeatureCache, cached_word_vectors
from capsearch.encoders.data.labels import folded_names, held_out
from capsearch.encoders.data.layouts import LEFT_OUT_SOURCES
from capsearch.encoders.data.templates import photo_captions
from capsearch.encoders.models.caption_search import CaptionVocabulary
from capsearch.encoders.models.caption_search import build_vocabulary as build_caption_vocabulary
from capsearch.encoders.models.w2vv import MAX_TOKENS
from capsearch.encoders.text import concepts
from capsearch.encoders.text.languages import simplify
from capsearch.encoders.text.tokenizers import ChineseTokenizer, tokenizer
from capsearch.encoders.train.caption_metrics import split_words
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.protocols import Tokenizer
from capsearch.engine.records import Vectors

PER_IMAGE = 6  # captions made of names for each image and language; each step draws some of them
NO_IMAGE = -1
NO_CONCEPT = -1


def _no_vectors() -> Vectors:
    return np.empty((0, 0), np.float16)


def _no_concepts() -> NDArray[np.int64]:
    return np.empty(0, np.int64)


@dataclass(frozen=True)
class Captions:
    """Captions of one language in parallel columns; a column that nobody has filled is empty.

    NO_IMAGE is the row of a sentence without an image, which only a teacher can teach.
    """

    image_rows: NDArray[np.int64]  # (C,) the row of caption i's image
    texts: Sequence[str] = field(default=(), repr=False)
    sources: Sequence[str] = field(default=(), repr=False)
    words: Sequence[tuple[str, ...]] = field(default=(), repr=False)
    ids: Sequence[NDArray[np.int64]] = field(default=(), repr=False)  # of the words
    sentence: Vectors = field(default_factory=_no_vectors, repr=False)  # (C, S) float16
    concepts: NDArray[np.int64] = field(default_factory=_no_concepts, repr=False)
    teacher: Vectors = field(default_factory=_no_vectors, repr=False)  # (C, D) its text vectors

    def __len__(self) -> int:
        return len(self.image_rows)

    def at(self, rows: Sequence[int] | NDArray[np.int64]) -> Captions:
        """Some of them, in this order."""
        columns: dict[str, Any] = {
            name: column[rows] if isinstance(column, np.ndarray) else [column[row] for row in rows]
            for name, column in self._columns().items()
        }
        return Captions(**columns)

    def __add__(self, other: Captions) -> Captions:
        """These and then the others, in the columns that both have."""
        if not len(self) or not len(other):
            return self if len(self) else other
        theirs = other._columns()
        columns: dict[str, Any] = {
            name: np.concatenate([column, theirs[name]])
            if isinstance(column, np.ndarray)
            else [*column, *theirs[name]]
            for name, column in self._columns().items()
            if name in theirs
        }
        return Captions(**columns)

    def _columns(self) -> dict[str, Any]:
        """The columns that are filled, and always the first."""
        columns = {column.name: getattr(self, column.name) for column in fields(self)}
        filled = {name: column for name, column in columns.items() if len(column)}
        return {"image_rows": self.image_rows, **filled}

    def some(self, count: int, random: np.random.Generator) -> Captions:
        """At most `count` of them, drawn at random."""
        return self.at(random.permutation(len(self))[:count])

    def of_sources(self, wanted: Callable[[str], bool]) -> Captions:
        """Those of some sources."""
        return self.at([row for row, source in enumerate(self.sources) if wanted(source)])

    def by_image(self, count: int) -> list[NDArray[np.int64]]:
        """For each of `count` images the rows of its captions."""
        order = np.argsort(self.image_rows, kind="stable")
        bounds = np.searchsorted(self.image_rows[order], np.arange(count + 1))
        return [order[bounds[at] : bounds[at + 1]] for at in range(count)]


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


def shown_concepts(data: CaptionDataset) -> ShownConcepts | None:
    """What the images' labels stand for; None if no image has one."""
    ids = [
        sorted({broader for concept in image.concepts for broader in concepts.broader(concept)})
        for image in data.images
    ]
    numbers = {concept: at for at, concept in enumerate(sorted(set().union(*ids)))}
    if not numbers:
        return None
    by_image = [np.array([numbers[concept] for concept in shown], np.int64) for shown in ids]
    return ShownConcepts(by_image, numbers)


def texts_of(data: CaptionDataset, language: str) -> Captions:
    """A language's captions as texts, and the rows of their images."""
    pairs = [
        (simplify(caption.text) if language == "zh" else caption.text, row)
        for row, image in enumerate(data.images)
        for caption in image.captions.get(language, ())
        if caption.source not in LEFT_OUT_SOURCES
    ]
    return _named_captions([(text, row, NO_CONCEPT) for text, row in pairs])


def name_captions(data: CaptionDataset, language: str, shown: ShownConcepts | None) -> Captions:
    """PER_IMAGE captions of each image with a label, the same in every run.

    The names of held-out concepts are in none of them, unless images show these.
    """
    if shown is None:
        return _named_captions([])
    unused = folded_names(held_out() - shown.numbers.keys())
    return _named_captions(
        [
            (caption.text, row, shown.numbers[caption.concept])
            for row, image in enumerate(data.images)
            if image.concepts
            for caption in photo_captions(
                [concepts.by_id(concept) for concept in image.concepts],
                language,
                Random(f"{language} {image.id}"),
                PER_IMAGE,
                unused,
            )
        ]
    )


def _named_captions(entries: Sequence[tuple[str, int, int]]) -> Captions:
    """Captions from (text, row of the image, number of the concept that it names)."""
    return Captions(
        np.array([row for _, row, _ in entries], np.int64),
        [text for text, _, _ in entries],
        concepts=np.array([concept for _, _, concept in entries], np.int64),
    )


@dataclass(frozen=True)
class Vocabulary:
    """A language's words, whose positions are the token ids, and the tokenizer."""

    language: str
    words: tuple[str, ...] = field(repr=False)
    tokenizer: Tokenizer = field(repr=False)

    def token_ids(self, tokens: Sequence[str]) -> NDArray[np.int64]:
        """Ids of the known tokens, in order, truncated as at search time."""
        known = [self._ids[token] for token in tokens if token in self._ids]
        return np.array(known[:MAX_TOKENS], np.int64)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_ids", {word: at for at, word in enumerate(self.words)})

    _ids: Mapping[str, int] = field(init=False, repr=False, default_factory=dict)

    def encode(self, captions: Captions, sentences: EncodesSentences) -> Captions:
        """The captions with token ids and sentence vectors."""
        words = captions.words or [self.tokenizer.tokens(text) for text in captions.texts]
        return replace(
            captions,
            words=(),
            ids=[self.token_ids(tokens) for tokens in words],
            sentence=sentences.encode(captions.texts).astype(np.float16, copy=False),
        )


@dataclass(frozen=True)
class Corpus:
    """Vocabularies and encoded captions of both splits."""

    vocabularies: Mapping[str, Vocabulary]
    vectors: Mapping[str, torch.Tensor]  # word2vec vectors by language
    train: Mapping[str, Captions]
    validation: Mapping[str, Captions]
    shown: ShownConcepts | None = None  # by the training images


def build_vocabulary(
    language: str, texts: Sequence[str], min_count: int = 5
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
        raise _no_word(language, min_count)
    return Vocabulary(language, words, splitter), tokens


def _no_word(language: str, min_count: int) -> TrainingProblem:
    return TrainingProblem(
        f"no {language} word occurs {min_count} times in the captions; add captions or lower "
        "--min-count"
    )


def _no_captions(language: str, data: CaptionDataset) -> TrainingProblem:
    return TrainingProblem(
        f"no {language} captions in split '{', '.join(data.splits)}'; list the languages of the "
        "captions with --lang"
    )


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


@dataclass(frozen=True)
class CorpusBuilder:
    """How captions become a corpus: by which sentence encoder, with words of which width."""

    sentences: EncodesSentences
    cache: FeatureCache
    word_width: int
    min_count: int
    seed: int

    def build(
        self,
        train: CaptionDataset,
        validation: CaptionDataset,
        languages: Sequence[str],
        without_image: Mapping[str, Sequence[str]],
    ) -> Corpus:
        """Vocabularies from the training captions, and the encoded captions of both splits.

        `without_image` are more training sentences by language.
        """
        vocabularies, vectors, encoded = {}, {}, {}
        shown = shown_concepts(train)
        for language in languages:
            captions = texts_of(train, language) + _named_captions(
                [(text, NO_IMAGE, NO_CONCEPT) for text in without_image.get(language, ())]
            )
            if not len(captions):
                raise _no_captions(language, train)
            captions += name_captions(train, language, shown)
            vocabulary, tokens = build_vocabulary(language, captions.texts, self.min_count)
            vocabularies[language] = vocabulary
            encoded[language] = vocabulary.encode(replace(captions, words=tokens), self.sentences)
            vectors[language] = self._word_vectors(vocabulary, tokens, captions.texts)
        encoded_validation = captions_of(validation, vocabularies, self.sentences)
        return Corpus(vocabularies, vectors, encoded, encoded_validation, shown)

    def _word_vectors(
        self, vocabulary: Vocabulary, tokens: Sequence[Sequence[str]], texts: Sequence[str]
    ) -> torch.Tensor:
        rows = cached_word_vectors(
            self.cache,
            vocabulary.words,
            (vocabulary.tokenizer.version, self.word_width, self.seed, self.min_count, list(texts)),
            partial(word_vectors, vocabulary, tokens, self.word_width, self.seed),
        )
        return torch.from_numpy(rows)


def captions_of(
    data: CaptionDataset, vocabularies: Mapping[str, Vocabulary], sentences: EncodesSentences
) -> dict[str, Captions]:
    """A split's captions and names of labelled images, encoded with existing vocabularies."""
    shown = shown_concepts(data)
    return {
        language: vocabulary.encode(
            texts_of(data, language) + name_captions(data, language, shown), sentences
        )
        for language, vocabulary in vocabularies.items()
    }


def draws(
    by_image: Sequence[NDArray[np.int64]],
    image_rows: NDArray[np.int64],
    count: int,
    rng: np.random.Generator,
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """(rows in a batch of images, their captions) `count` times, without repeating a caption."""
    mixed = [rng.permutation(by_image[row]) for row in image_rows]
    for draw in range(count):
        having = [at for at, captions in enumerate(mixed) if len(captions) > draw]
        yield np.array(having, np.int64), np.array([mixed[at][draw] for at in having], np.int64)


# Written by people for these photographs. Others are translated, assisted or generated, or of
# another style: a model learns from them first, and from these last (COCO-CN, sequential learning).
# VinVL's are generated, but by a model trained to write as people did for these photographs: they
# teach a small captioner more than one person's caption does (sequence-level distillation, Kim and
# Rush 2016).
# PICKED are of a captioner that was trained here, and picked by what people wrote.
PICKED = "picked"
MAIN_SOURCES = frozenset(
    {"coco", "coco-normalised", "coco-cn", "stair", "yj", "xtd10", "vinvl", PICKED}
)
VOCABULARY_SIZE = 6000  # words of a language; rarer ones are too rare to be learned


def tokenise(
    data: CaptionDataset, languages: Sequence[str], max_words: int
) -> Mapping[str, Captions]:
    """All captions of a data set that are not too long; TrainingProblem where there are none."""
    tokenised = {}
    for language in languages:
        entries = [
            (row, split_words(caption.text, language, commas=True), caption.source)
            for row, image in enumerate(data.images)
            for caption in image.captions.get(language, ())
            if caption.source not in LEFT_OUT_SOURCES
        ]
        kept = [entry for entry in entries if 0 < len(entry[1]) <= max_words]
        if not kept:
            raise _no_captions(language, data)
        rows, words, sources = zip(*kept, strict=True)
        tokenised[language] = Captions(np.array(rows, np.int64), words=words, sources=sources)
    return tokenised


def main_captions(captions: Captions) -> Captions:
    """The captions of MAIN_SOURCES, or all where there are none."""
    main = captions.of_sources(lambda source: source in MAIN_SOURCES)
    return main if len(main) else captions


def vocabulary_of(
    captions: Mapping[str, Captions], min_count: int, size: int = VOCABULARY_SIZE
) -> CaptionVocabulary:
    """The frequent words; TrainingProblem where a language has none."""
    sentences = {language: of_language.words for language, of_language in captions.items()}
    vocabulary = build_caption_vocabulary(sentences, min_count, size)
    for language, words in vocabulary.words.items():
        if not words:
            raise _no_word(language, min_count)
    return vocabulary


def encode(captions: Captions, vocabulary: CaptionVocabulary, language: str) -> Captions:
    """The captions that have no unknown word, with positions in the language's outputs."""
    ids = [vocabulary.encode(words, language) for words in captions.words]
    known = [row for row, positions in enumerate(ids) if positions is not None]
    positions = [positions for positions in ids if positions is not None]
    return replace(captions.at(known), ids=positions)
