"""Captions as training data of a captioner: their words and their sources.

The loss of a batch's captions against its images, and against each other.

A caption can be the name of a concept ("dolphin"), which is true of every image that shows it:
those are no negatives.

The trainer of captioners: cross entropy on captions, CIDEr-D on validation.

How sure a caption is: the probability that it names nothing that is not there.

A caption is right if everything it names was also named by people, in any language, or is among
the image's labelled objects: no object is hallucinated (CHAIR, Rohrbach et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.calibrate import regression
from capsearch.encoders.calibrate.regression import Floats
from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.layouts import LEFT_OUT_SOURCES, CaptionedImage
from capsearch.encoders.data.tag_labels import annotate, named_in
from capsearch.encoders.models.caption_search import (
    Beam,
    CaptionVocabulary,
    Hypotheses,
    build_vocabulary,
)
from capsearch.encoders.models.captioner import BATCH, CaptionDecoders, Confidence
from capsearch.encoders.text import concepts
from capsearch.encoders.train.caption_metrics import References, cider, split_words
from capsearch.encoders.train.decoders import CaptionNetwork, ImageBatch
from capsearch.encoders.train.dual_encoder import Loss, TrainingOptions
from capsearch.encoders.train.feature_maps import EncodedImages
from capsearch.encoders.train.loop import TrainingLoop, one_group
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


@dataclass(frozen=True, slots=True)
class Side:
    """Images, or captions of one language, of a batch: at most one for each of its images."""

    rows: NDArray[np.int64]  # of the batch, ascending
    vectors: Tensor  # one for each
    concepts: NDArray[np.int64] | None = None  # that captions name, -1 for a sentence; images: None

    def only(self, at: NDArray[np.int64]) -> Side:
        """Some of them."""
        concepts = None if self.concepts is None else self.concepts[at]
        return Side(self.rows[at], self.vectors[at], concepts)


@dataclass(frozen=True, slots=True)
class CaptionLoss:
    """A loss by name over pairs of sides; `shown` (B, K) tells which images show which concepts."""

    loss: Loss
    shown: NDArray[np.bool_] | None = None

    def against_images(self, captions: Sequence[Side], images: Tensor, log_scale: Tensor) -> Tensor:
        """Every language's captions against all images of the batch."""
        everything = Side(np.arange(len(images)), images)
        return self._mean([(one, everything) for one in captions], log_scale)

    def between(self, captions: Sequence[Side], log_scale: Tensor) -> Tensor | float:
        """Captions against each other where an image has several; 0 where none has."""
        pairs = [
            (one, other)
            for one, other in combinations(captions, 2)
            if len(np.intersect1d(one.rows, other.rows, assume_unique=True)) > 1
        ]
        return self._mean(pairs, log_scale) if pairs else 0.0

    def _mean(self, pairs: Sequence[tuple[Side, Side]], log_scale: Tensor) -> Tensor:
        """One side's captions against the other side, a mean over the captions."""
        scale = log_scale.exp().clamp(max=100.0)
        total, count = torch.zeros(()), 0
        for one, other in pairs:
            common = one.only(np.flatnonzero(np.isin(one.rows, other.rows)))
            targets = torch.from_numpy(np.searchsorted(other.rows, common.rows))
            matching = self._matching(common, other)
            part = self.loss(common.vectors, other.vectors, targets, scale, matching)
            total = total + part * len(common.rows)
            count += len(common.rows)
        return total / count

    def _matching(self, one: Side, other: Side) -> Tensor | None:
        """(T, B): a caption names what the other side's image shows, or the other way round."""
        if self.shown is None:
            return None
        found = _named_and_shown(one.concepts, self.shown[other.rows])
        if other.concepts is not None:
            found = found | _named_and_shown(other.concepts, self.shown[one.rows]).T
        return torch.from_numpy(found)


def _named_and_shown(
    concepts: NDArray[np.int64] | None, shown: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """(T, B) where caption t names a concept that image b shows."""
    assert concepts is not None  # only captions are compared with something
    found: NDArray[np.bool_] = shown[:, concepts].T & (concepts >= 0)[:, None]
    return found


VALIDATION_IMAGES = 400  # of each language, on which every epoch is measured
_PADDING = -100


@dataclass(frozen=True, slots=True)
class CaptionSet:
    """Training images with their captions by language."""

    images: EncodedImages
    captions: Mapping[str, EncodedCaptions]


@dataclass(frozen=True, slots=True)
class ReferenceSet:
    """Validation images with what people wrote of them."""

    images: EncodedImages
    references: References


class CaptionTrainer(TrainingLoop):
    """Trains a CaptionNetwork; the best epoch has the highest CIDEr-D on validation.

    `alternate`: batches of one language after the other, as in Miyazaki 2016, instead of all
    languages in every batch.
    """

    metric = "CIDEr-D"
    model: CaptionNetwork

    def __init__(
        self,
        model: CaptionNetwork,
        train: CaptionSet,
        validation: ReferenceSet,
        options: TrainingOptions,
        checkpoint: Path | None = None,
        alternate: bool = False,
    ) -> None:
        groups = one_group(model.parameters(), options.lr)
        super().__init__(model, groups, len(train.images), options, checkpoint)
        self.train = train
        self.validation = first_images(validation)
        self.alternate = alternate

    def validate(self) -> Mapping[str, float]:
        """CIDEr-D of greedy captions by the averaged weights."""
        decoders = cast(CaptionNetwork, self.averaged.module).served()
        beam = Beam(1, self.model.config.max_words)
        return ciders(decoders, self.validation, beam)

    def loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """Cross entropy per word over all captions drawn for the batch."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16):
            return self._loss(image_rows, rng)

    def _loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        languages = tuple(self.train.captions)
        if self.alternate:
            languages = (languages[self.step % len(languages)],)
        images = self.model.image(self._batch(image_rows))
        totals, words = [], 0
        for language in languages:
            for rows, sentences in self._draws(language, image_rows, rng):
                loss, count = self._language_loss(images[rows], sentences, language)
                totals.append(loss)
                words += count
        if not totals:
            raise TrainingProblem("a batch without captions: the training split has too few")
        return cast(Tensor, sum(totals)) / words

    def _language_loss(
        self, images: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> tuple[Tensor, int]:
        """The summed loss of captions, and their number of words."""
        logits, targets, known = self._predictions(images, sentences, language)
        loss = nn.functional.cross_entropy(
            logits, targets, reduction="sum", label_smoothing=self.model.config.label_smoothing
        )
        return loss, int(known.sum())

    def _predictions(
        self, images: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        """(P, W + 1) logits and (P,) positions of all words, and (B, T) where there are words."""
        decoder = self.model.decoder(self.model.group_of(language))
        targets = nn.utils.rnn.pad_sequence(
            [torch.from_numpy(one) for one in sentences], batch_first=True, padding_value=_PADDING
        )
        rows = torch.from_numpy(decoder.vocabulary.outputs(language))
        start = torch.full((len(targets), 1), decoder.vocabulary.start(language))
        tokens = torch.cat([start, rows[targets[:, :-1].clamp(min=0)]], 1)
        hidden = decoder(images, tokens)
        known = targets != _PADDING
        return decoder.logits(hidden[known], language), targets[known], known

    def _batch(self, rows: NDArray[np.int64]) -> ImageBatch:
        found = self.train.images.at(rows)
        assert found.grid is not None
        return ImageBatch(torch.from_numpy(found.pooled), torch.from_numpy(found.grid))

    def _draws(
        self, language: str, image_rows: NDArray[np.int64], rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], Sequence[NDArray[np.int64]]]]:
        """(rows in the batch, captions) `captions_per_image` times, none twice."""
        captions = self.train.captions[language]
        mixed = [rng.permutation(captions.by_image[row]) for row in image_rows]
        for draw in range(self.options.captions_per_image):
            having = [at for at, found in enumerate(mixed) if len(found) > draw]
            if having:
                yield np.array(having), [captions.sentences[mixed[at][draw]] for at in having]


def hypotheses(
    decoders: CaptionDecoders, images: EncodedImages, rows: NDArray[np.int64], beam: Beam
) -> Mapping[str, Sequence[tuple[str, float, int]]]:
    """(caption, log P, length) of some images by language, in batches."""
    found: dict[str, list[tuple[str, float, int]]] = {}
    for first in range(0, len(rows), BATCH):
        batch = decoders.captions(images.at(rows[first : first + BATCH]), beam)
        for language, one in batch.items():
            found.setdefault(language, []).extend(_captions(decoders, one, language))
    return found


def _captions(
    decoders: CaptionDecoders, found: Hypotheses, language: str
) -> Iterator[tuple[str, float, int]]:
    yield from zip(
        decoders.text(found, language),
        found.log_probability[:, 0].tolist(),
        found.length[:, 0].tolist(),
        strict=True,
    )


def ciders(decoders: CaptionDecoders, validation: ReferenceSet, beam: Beam) -> dict[str, float]:
    """CIDEr-D by language of the captions of all images."""
    rows = np.arange(len(validation.images))
    found = hypotheses(decoders, validation.images, rows, beam)
    return {
        language: cider({row: captions[row][0] for row in references}, references, language)
        for language, captions in found.items()
        if (references := validation.references.get(language))
    }


def first_images(validation: ReferenceSet) -> ReferenceSet:
    """The first images of each language."""
    rows = sorted(
        {row for found in validation.references.values() for row in list(found)[:VALIDATION_IMAGES]}
    )
    place = {row: at for at, row in enumerate(rows)}
    references = {
        language: {place[row]: texts for row, texts in found.items() if row in place}
        for language, found in validation.references.items()
    }
    return ReferenceSet(validation.images.only(np.array(rows, np.int64)), references)


MAX_IMAGES = 600
_SHOWN = frozenset({"actions", "attributes"})  # tables whose concepts people often leave unsaid


def fit_confidence(
    decoders: CaptionDecoders, validation: ReferenceSet, beam: Beam
) -> Mapping[str, Confidence]:
    """By language, from the mean log-probability of a caption's words on validation."""
    captioned = {row for found in validation.references.values() for row in found}
    rows = np.array(sorted(captioned), np.int64)[:MAX_IMAGES]
    found = hypotheses(decoders, validation.images, rows, beam)
    images = [validation.images.data.images[row] for row in rows]
    there = _there(validation, images)
    confidence = {}
    for language, captions in found.items():
        scores = np.array([log_p / max(length, 1) for _, log_p, length in captions])
        pairs = zip(captions, there, strict=True)
        right = np.array([is_right(text, language, known) for (text, _, _), known in pairs], float)
        confidence[language] = _fit(scores, right)
    return confidence


def is_right(caption: str, language: str, there: frozenset[str]) -> bool:
    """Whether all things that a caption names are among concepts that are there."""
    named = named_in(caption, language).concepts
    things = [one for one in named if concepts.by_id(one).table not in _SHOWN]
    return all(_related(one) & there for one in things)


def _related(concept: str) -> frozenset[str]:
    """Itself and what is broader or narrower: an animal is right where people say cat."""
    return concepts.broader(concept) | concepts.narrower(concept)


def _there(validation: ReferenceSet, images: Sequence[CaptionedImage]) -> list[frozenset[str]]:
    languages = tuple(validation.references)
    return [
        frozenset().union(one.objects, one.labels, *one.said.values())
        for one in annotate(images, languages).mentions
    ]


def _fit(scores: Floats, right: Floats) -> Confidence:
    """Logistic regression; the share of right captions where they are all right or all wrong."""
    if 0 < right.sum() < len(right):
        ones, zeros = np.ones(len(right)), np.zeros(len(right))
        found = regression.fit(scores[:, None], right, ones, zeros)
        return Confidence(float(found.coefficients[0]), found.intercept)
    share = (right.sum() + 1) / (len(right) + 2)
    return Confidence(0.0, math.log(share / (1 - share)))
