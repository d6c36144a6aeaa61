"""Captions that a captioner writes for training images, picked by what people wrote of them.

Zhu 2016 adds generated captions that people picked to the training captions. Here captions of
people pick them, in whatever language they are: the match (encoders.models.captioner) puts
captions of all languages near the images that they describe, so a Chinese caption can be compared
with English ones. Images without a caption in a language so come to have one, and a small decoder
learns from sentences that it can write (sequence-level distillation, Kim and Rush 2016).

Self-critical training of a captioner: it is rewarded for CIDEr-D, not for the next word.

Captions are sampled for each image, and what scores more than the image's other samples is made
more probable (Rennie 2017, with the mean of the others as baseline: Luo 2020). A captioner that
was trained by cross entropy is where it starts.

CIDEr-D of sampled captions as a reward: against the references of one image at a time.

pycocoevalcap counts document frequencies in the captions that it is given, a batch here; these
are of all training references, and words are positions in a vocabulary. A test compares both.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.data.features import Report
from capsearch.encoders.models.caption_search import END, Beam, CaptionVocabulary, Hypotheses
from capsearch.encoders.models.captioner import BATCH, CaptionDecoders, CaptionMatch, cosines
from capsearch.encoders.train.captions import (
    PICKED,
    CaptionTrainer,
    EncodedCaptions,
    TokenisedCaptions,
)
from capsearch.encoders.train.feature_maps import EncodedImages
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import ImageFeatures, Vectors
from capsearch.engine.vectors import unit

COUNT = 2  # captions of each image and language
# Of the matches, beside the score of the search: on training images with captions in two languages,
# where those of one picked those of the other, CIDEr-D 1.23 -> 1.36 (zh), 1.27 -> 1.34 (ja).
IMAGE_WEIGHT, PEOPLE_WEIGHT = 4.0, 4.0


def pick(
    decoders: CaptionDecoders,
    match: CaptionMatch,
    images: EncodedImages,
    captions: Mapping[str, EncodedCaptions],
    beam: Beam,
    report: Report | None = None,
) -> Mapping[str, TokenisedCaptions]:
    """The best `COUNT` captions of each image by language, of those that a search finds."""
    people = people_vectors(match, captions, len(images))
    found: dict[str, list[Hypotheses]] = {}
    for first in range(0, len(images), BATCH):
        rows = np.arange(first, min(first + BATCH, len(images)))
        features = images.at(rows)
        own = match.image_vectors(features.pooled)
        for language, some in decoders.candidates(features, beam).items():
            vectors = match.caption_vectors(some.positions, language)
            scores = beam.scores(some.log_probability, some.length)
            scores += IMAGE_WEIGHT * cosines(vectors, own)
            scores += PEOPLE_WEIGHT * cosines(vectors, people[rows])
            best = np.argsort(-scores, axis=1, kind="stable")[:, :COUNT]
            found.setdefault(language, []).append(some.at(best))
        if report:
            report(int(rows[-1]) + 1, len(images))
    vocabularies = {one: group for group in decoders.groups.values() for one in group.languages}
    return {one: _tokenised(some, vocabularies[one], one) for one, some in found.items()}


def people_vectors(
    match: CaptionMatch, captions: Mapping[str, EncodedCaptions], images: int
) -> Vectors:
    """(N, K) the mean of the vectors of an image's captions in all languages; 0 without any."""
    total: Vectors | None = None
    for language, some in captions.items():
        longest = max(map(len, some.sentences), default=1)
        for row, own in enumerate(some.by_image):
            if not len(own):
                continue
            positions = np.full((1, len(own), longest), END, np.int64)
            for at, number in enumerate(own.tolist()):
                positions[0, at, : len(some.sentences[number])] = some.sentences[number]
            vectors = match.caption_vectors(positions, language)[0]
            if total is None:
                total = np.zeros((images, vectors.shape[1]), np.float32)
            total[row] += vectors.sum(axis=0)
    assert total is not None  # a training split has captions
    return unit(total)


def _tokenised(
    found: list[Hypotheses], vocabulary: CaptionVocabulary, language: str
) -> TokenisedCaptions:
    words, rows = [], []
    row = 0
    for some in found:
        for image in some.positions.tolist():
            for positions in image:
                written = positions[: positions.index(END)] if END in positions else positions
                if written:
                    words.append(tuple(vocabulary.words[language][one - 1] for one in written))
                    rows.append(row)
            row += 1
    return TokenisedCaptions(np.array(rows, np.int64), words, [PICKED] * len(rows))


Sentence = Sequence[int] | NDArray[np.int64]
_NGrams = Mapping[tuple[int, ...], float]
_ORDERS = (1, 2, 3, 4)
_SIGMA = 6.0  # of the length penalty


@dataclass(frozen=True, slots=True)
class _Weighted:
    """The tf-idf of a sentence's n-grams by order, their norms, and its bigrams."""

    weights: tuple[_NGrams, ...]
    norms: tuple[float, ...]
    bigrams: int

    def similarity(self, reference: _Weighted) -> float:
        """CIDEr-D of this sentence against one reference, from 0 to 10."""
        penalty = math.exp(-((self.bigrams - reference.bigrams) ** 2) / (2 * _SIGMA**2))
        total = 0.0
        for mine, theirs, *norms in zip(
            self.weights, reference.weights, self.norms, reference.norms, strict=True
        ):
            common = sum(
                min(weight, theirs[one]) * theirs[one]
                for one, weight in mine.items()
                if one in theirs
            )
            total += common / (norms[0] * norms[1]) if norms[0] and norms[1] else 0.0
        return 10.0 * penalty * total / len(_ORDERS)


class CiderReward:
    """CIDEr-D with the document frequencies of many images' references."""

    def __init__(self, references: Sequence[Sequence[Sentence]]) -> None:
        """`references[i]`: the sentences of image i, their ends included."""
        self._references = references
        counts: Counter[tuple[int, ...]] = Counter()
        for sentences in references:
            counts.update({one for sentence in sentences for one in _ngrams(sentence)})
        images = sum(bool(sentences) for sentences in references)
        self._idf = {one: math.log(images / count) for one, count in counts.items()}
        self._unseen = math.log(max(images, 1))

    def scores(self, image: int, sentences: Sequence[Sentence]) -> NDArray[np.float64]:
        """(K,) the mean over the image's references for each sentence."""
        references = [self._weighted(one) for one in self._references[image]]
        written = [self._weighted(one) for one in sentences]
        return np.array(
            [np.mean([one.similarity(reference) for reference in references]) for one in written]
        )

    def _weighted(self, sentence: Sentence) -> _Weighted:
        weights: tuple[dict[tuple[int, ...], float], ...] = tuple({} for _ in _ORDERS)
        for one, count in _ngrams(sentence).items():
            weights[len(one) - 1][one] = count * self._idf.get(one, self._unseen)
        norms = tuple(math.sqrt(sum(value**2 for value in part.values())) for part in weights)
        return _Weighted(weights, norms, max(len(sentence) - 1, 0))


def _ngrams(sentence: Sentence) -> Counter[tuple[int, ...]]:
    words = tuple(int(word) for word in sentence)
    return Counter(
        words[at : at + order] for order in _ORDERS for at in range(len(words) - order + 1)
    )


SAMPLES = 5  # captions of each image and language


class SelfCriticalTrainer(CaptionTrainer):
    """Trains by policy gradient; without dropout, so that samples are of the trained network."""

    @cached_property
    def _rewards(self) -> Mapping[str, CiderReward]:
        return {
            language: CiderReward(_sentences(captions))
            for language, captions in self.train.captions.items()
        }

    def _loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        self.model.eval()
        served = self.model.served()
        images = self.model.image(self._batch(image_rows))
        totals, words = [], 0
        for language, captions in self.train.captions.items():
            having = np.flatnonzero([len(captions.by_image[row]) > 0 for row in image_rows])
            if not len(having):
                continue
            features = self.train.images.at(image_rows[having])
            sampled = sample(served, features, language, SAMPLES, self._longest, rng)
            advantages = self._advantages(language, image_rows[having], sampled)
            flat = [one for sentences in sampled for one in sentences]
            chosen = images[np.repeat(having, SAMPLES)]
            totals.append(-(self._log_p(chosen, flat, language) * advantages).sum())
            words += sum(map(len, flat))
        if not totals:
            raise TrainingProblem("a batch without captions: the training split has too few")
        return cast(Tensor, sum(totals)) / words

    @property
    def _longest(self) -> int:
        return self.model.config.max_words

    def _advantages(
        self,
        language: str,
        image_rows: NDArray[np.int64],
        sampled: Sequence[Sequence[NDArray[np.int64]]],
    ) -> Tensor:
        """(N * K,) rewards over the mean of the same image's other samples."""
        rewards = np.stack(
            [
                self._rewards[language].scores(row, sentences)
                for row, sentences in zip(image_rows.tolist(), sampled, strict=True)
            ]
        )
        others = (rewards.sum(axis=1, keepdims=True) - rewards) / (SAMPLES - 1)
        return torch.from_numpy((rewards - others).astype(np.float32).ravel())

    def _log_p(
        self, images: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> Tensor:
        """(B,) log-probabilities of whole sentences."""
        logits, targets, known = self._predictions(images, sentences, language)
        picked = logits.float().log_softmax(-1).gather(1, targets[:, None])[:, 0]
        row = torch.repeat_interleave(torch.arange(len(sentences)), known.sum(1))
        return torch.zeros(len(sentences)).index_add(0, row, picked)


def sample(
    decoders: CaptionDecoders,
    features: ImageFeatures,
    language: str,
    count: int,
    max_words: int,
    rng: np.random.Generator,
) -> Sequence[Sequence[NDArray[np.int64]]]:
    """`count` captions of each image, drawn word by word; END last unless they are cut."""
    decoder, vocabulary = decoders.opened(language, features)
    outputs = vocabulary.outputs(language)
    tokens = np.full((len(features), count), vocabulary.start(language))
    state = decoder.initial(tokens)
    positions = np.full((*tokens.shape, max_words + 1), END)
    ended = np.zeros(tokens.shape, np.bool_)
    for at in range(max_words + 1):
        hidden, state = decoder.step(tokens, state, at)
        drawn = _drawn(decoder.log_probabilities(hidden, language), rng)
        positions[:, :, at] = np.where(ended, END, drawn)
        tokens = outputs[positions[:, :, at]]
        ended |= positions[:, :, at] == END
        if ended.all():
            break
    return [[_up_to_end(one) for one in image] for image in positions]


def _drawn(log_probabilities: Vectors, rng: np.random.Generator) -> NDArray[np.int64]:
    """(N, K, W) -> (N, K) positions, each with its probability."""
    shares = np.cumsum(np.exp(log_probabilities), axis=-1)
    at = rng.random(shares.shape[:2], np.float32)[..., None] * shares[..., -1:]
    return np.asarray((shares <= at).sum(-1).clip(max=shares.shape[-1] - 1), np.int64)


def _up_to_end(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = np.flatnonzero(positions == END)
    return positions[: ends[0] + 1] if len(ends) else positions


def _sentences(captions: EncodedCaptions) -> Sequence[Sequence[NDArray[np.int64]]]:
    return [[captions.sentences[at] for at in found] for found in captions.by_image]
