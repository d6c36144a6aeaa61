"""Captions as training data of a captioner: their words and their sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.captioners.vocabulary import (
    CaptionVocabulary,
    build_vocabulary,
    split_words,
)
from capsearch.encoders.datasets.captioned import LEFT_OUT_SOURCES
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.engine.errors import TrainingProblem

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


@dataclass(frozen=True)
class TokenisedCaptions:
    """A language's captions in words, with the rows of their images and their sources."""

    image_rows: NDArray[np.int64]  # (C,)
    words: Sequence[tuple[str, ...]] = field(repr=False)
    sources: Sequence[str] = field(repr=False)

    def __add__(self, other: TokenisedCaptions) -> TokenisedCaptions:
        return TokenisedCaptions(
            np.concatenate([self.image_rows, other.image_rows]),
            [*self.words, *other.words],
            [*self.sources, *other.sources],
        )

    def only(self, wanted: Callable[[str], bool]) -> TokenisedCaptions:
        """The captions of some sources."""
        rows = [at for at, source in enumerate(self.sources) if wanted(source)]
        return TokenisedCaptions(
            self.image_rows[rows],
            [self.words[row] for row in rows],
            [self.sources[row] for row in rows],
        )


@dataclass(frozen=True)
class EncodedCaptions:
    """A language's captions as positions in its outputs, END last."""

    sentences: Sequence[NDArray[np.int64]] = field(repr=False)
    by_image: Sequence[NDArray[np.int64]] = field(repr=False)  # captions of each image


def tokenise(
    data: CaptionDataset, languages: Sequence[str], max_words: int
) -> Mapping[str, TokenisedCaptions]:
    """All captions of a data set that are not too long; TrainingProblem where there are none."""
    found = {}
    for language in languages:
        entries = [
            (row, split_words(caption.text, language, commas=True), caption.source)
            for row, image in enumerate(data.images)
            for caption in image.captions.get(language, ())
            if caption.source not in LEFT_OUT_SOURCES
        ]
        kept = [entry for entry in entries if 0 < len(entry[1]) <= max_words]
        if not kept:
            raise TrainingProblem(
                f"no {language} captions in split '{', '.join(data.splits)}'; list the "
                "languages of the captions with --lang"
            )
        rows, words, sources = zip(*kept, strict=True)
        found[language] = TokenisedCaptions(np.array(rows, np.int64), words, sources)
    return found


def main_captions(captions: TokenisedCaptions) -> TokenisedCaptions:
    """The captions of MAIN_SOURCES, or all where there are none."""
    main = captions.only(lambda source: source in MAIN_SOURCES)
    return main if len(main.image_rows) else captions


def vocabulary_of(
    captions: Mapping[str, TokenisedCaptions], min_count: int, size: int = VOCABULARY_SIZE
) -> CaptionVocabulary:
    """The frequent words; TrainingProblem where a language has none."""
    made = build_vocabulary({one: found.words for one, found in captions.items()}, min_count, size)
    for language, words in made.words.items():
        if not words:
            raise TrainingProblem(
                f"no {language} word occurs {min_count} times in the captions; add captions or "
                "lower --min-count"
            )
    return made


def encode(
    captions: TokenisedCaptions, vocabulary: CaptionVocabulary, language: str, images: int
) -> EncodedCaptions:
    """The captions that have no unknown word, by image."""
    sentences, rows = [], []
    for row, words in zip(captions.image_rows.tolist(), captions.words, strict=True):
        ids = vocabulary.encode(words, language)
        if ids is not None:
            sentences.append(ids)
            rows.append(row)
    by_image: list[list[int]] = [[] for _ in range(images)]
    for at, row in enumerate(rows):
        by_image[row].append(at)
    return EncodedCaptions(sentences, [np.array(found, np.int64) for found in by_image])
