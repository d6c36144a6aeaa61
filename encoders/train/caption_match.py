"""What is learned of captions beside the decoder: their match with images, and how sure they are.

The match (encoders.models.captioner) starts as a ridge regression of whitened features on the words
of captions; then all of it is trained so that captions are nearer to their images than to others
(InfoNCE).

It also picks captions that a captioner writes of training images. Zhu 2016 adds generated captions
that people picked; here captions of people pick them, in whatever language they are: the match puts
captions of all languages near the images that they describe, so a Chinese caption can be compared
with English ones. Images without a caption in a language so come to have one, and a small decoder
learns from sentences that it can write (sequence-level distillation, Kim and Rush 2016).

Confidence is the probability that a caption names nothing that is not there. It is right if
everything it names was also named by people, in any language, or is among the image's labelled
objects: no object is hallucinated (CHAIR, Rohrbach et al. 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from capsearch.encoders.calibrate import regression
from capsearch.encoders.calibrate.regression import Floats
from capsearch.encoders.data.features import Report
from capsearch.encoders.data.layouts import CaptionedImage
from capsearch.encoders.data.tag_labels import annotate, named_in
from capsearch.encoders.models.caption_search import END, Beam, CaptionVocabulary, Hypotheses
from capsearch.encoders.models.captioner import (
    BATCH,
    CaptionDecoders,
    CaptionMatch,
    Confidence,
    cosines,
)
from capsearch.encoders.text import concepts
from capsearch.encoders.train.activations import EncodedImages
from capsearch.encoders.train.caption_metrics import cider
from capsearch.encoders.train.caption_trainer import ReferenceSet, write_captions
from capsearch.encoders.train.captions import PICKED, Captions
from capsearch.engine.metrics import middle_of_best
from capsearch.engine.records import Vectors
from capsearch.engine.vectors import unit

WEIGHTS = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 16.0, 20.0)
_DIMENSIONS = 256
_IMAGES_A_DIMENSION = 10  # the covariance of fewer images is mostly noise
_RIDGE = 10.0
_STEPS, _BATCH, _LR, _DECAY, _DROPOUT, _LOG_SCALE = 300, 512, 1e-3, 0.05, 0.1, 2.7


def with_match(
    decoders: CaptionDecoders, arrays: Mapping[str, Vectors], validation: ReferenceSet, beam: Beam
) -> CaptionDecoders:
    """The decoders with the match, at the weight whose captions have the best CIDEr-D.

    Without it, where no weight is better than none.
    """
    candidates = _candidates(decoders, CaptionMatch(arrays, 0.0), validation, beam)
    scores = [float(np.mean([*_ciders(candidates, validation, weight)])) for weight in WEIGHTS]
    if max(scores) <= scores[0]:
        return decoders
    return replace(decoders, match=CaptionMatch(arrays, middle_of_best(WEIGHTS, scores)))


@dataclass(frozen=True, slots=True)
class _Candidates:
    """The captions that a search found of one image, and what they are ranked by."""

    texts: Sequence[str]
    scores: Vectors
    matches: Vectors

    def best(self, weight: float) -> str:
        return self.texts[int((self.scores + weight * self.matches).argmax())]


def _candidates(
    decoders: CaptionDecoders, match: CaptionMatch, validation: ReferenceSet, beam: Beam
) -> Mapping[str, Sequence[_Candidates]]:
    """The candidates of all images by language."""
    candidates: dict[str, list[_Candidates]] = {}
    rows = np.arange(len(validation.images))
    for first in range(0, len(rows), BATCH):
        features = validation.images.at(rows[first : first + BATCH])
        images = match.image_vectors(features.pooled)
        for language, written in decoders.candidates(features, beam).items():
            texts = [
                decoders.text(written.at(np.full((len(images), 1), column)), language)
                for column in range(written.length.shape[1])
            ]
            scores = beam.scores(written.log_probability, written.length)
            matches = match.matches(images, written, language)
            of_images = zip(zip(*texts, strict=True), scores, matches, strict=True)
            candidates.setdefault(language, []).extend(
                _Candidates(*of_image) for of_image in of_images
            )
    return candidates


def _ciders(
    candidates: Mapping[str, Sequence[_Candidates]], validation: ReferenceSet, weight: float
) -> Iterator[float]:
    for language, references in validation.references.items():
        if references:
            captions = {row: candidates[language][row].best(weight) for row in references}
            yield cider(captions, references, language)


def fit_match(
    pooled: Vectors,
    captions: Mapping[str, Captions],
    vocabulary: CaptionVocabulary,
    seed: int = 0,
) -> Mapping[str, Vectors]:
    """The arrays of CaptionMatch from the (N, F) features and the captions of images."""
    arrays = dict(_whitening(pooled.astype(np.float32)))
    images = unit(pooled @ arrays["image_W"].T + arrays["image_b"])
    pairs = {
        language: written.at(np.argsort(written.image_rows, kind="stable"))
        for language, written in captions.items()
    }
    for language, of_language in pairs.items():
        counts = _counts(of_language.ids, len(vocabulary.outputs(language)))
        words = _ridge(counts, images[of_language.image_rows])
        arrays |= {f"{language}_W": words, f"{language}_b": words[0].copy()}  # END is once in each
    return _contrasted(arrays, torch.from_numpy(pooled.astype(np.float32)), pairs, seed)


def _contrasted(
    arrays: Mapping[str, Vectors], pooled: Tensor, pairs: Mapping[str, Captions], seed: int
) -> Mapping[str, Vectors]:
    """Trained by InfoNCE between the images and the captions of batches of one language."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    learned = {name: nn.Parameter(torch.from_numpy(array)) for name, array in arrays.items()}
    scale = nn.Parameter(torch.tensor(_LOG_SCALE))
    optimizer = torch.optim.AdamW([*learned.values(), scale], lr=_LR, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    for _ in range(_STEPS):
        losses = []
        for language, of_language in pairs.items():
            drawn = random.integers(0, len(of_language), min(_BATCH, len(pooled)))
            batch = of_language.at(drawn)
            images = _image_vectors(pooled[batch.image_rows], learned)
            captions = _caption_vectors(batch.ids, language, learned)
            losses.append(_contrastive(images @ captions.T * scale.exp(), batch.image_rows))
        optimizer.zero_grad()
        torch.autograd.backward(cast(Tensor, sum(losses)))
        optimizer.step()
        schedule.step()
    return {name: parameter.detach().numpy() for name, parameter in learned.items()}


def _image_vectors(pooled: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
    kept = nn.functional.dropout(pooled, _DROPOUT)
    return nn.functional.normalize(kept @ learned["image_W"].T + learned["image_b"])


def _caption_vectors(
    sentences: Sequence[NDArray[np.int64]], language: str, learned: Mapping[str, Tensor]
) -> Tensor:
    """Sums of the words but END, which counts as the bias."""
    words = torch.from_numpy(np.concatenate([sentence[:-1] for sentence in sentences]))
    lengths = [len(sentence) - 1 for sentence in sentences]
    starts = torch.from_numpy(np.cumsum([0, *lengths[:-1]]))
    total = nn.functional.embedding_bag(words, learned[f"{language}_W"], starts, mode="sum")
    return nn.functional.normalize(total + learned[f"{language}_b"])


def _contrastive(scores: Tensor, rows: NDArray[np.int64]) -> Tensor:
    """Both ways; other captions of an image are no negatives."""
    same = torch.from_numpy(rows[:, None] == rows[None, :]) & ~torch.eye(
        len(rows), dtype=torch.bool
    )
    scores = scores.masked_fill(same, -1e4)
    right = torch.arange(len(rows))
    loss = nn.functional.cross_entropy
    return loss(scores, right) + loss(scores.T, right)


def _whitening(pooled: Vectors) -> Mapping[str, Vectors]:
    """The first principal components, of variance 1."""
    mean = pooled.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov(pooled - mean, rowvar=False, bias=True))
    count = max(1, min(_DIMENSIONS, len(pooled) // _IMAGES_A_DIMENSION, len(variances)))
    scale = 1.0 / np.sqrt(np.maximum(variances[-count:], 1e-12))
    weights = (directions[:, -count:] * scale).T.astype(np.float32)
    return {"image_W": weights, "image_b": -weights @ mean}


def _counts(sentences: Sequence[NDArray[np.int64]], words: int) -> csr_array:
    """(S, W) how often each word is in a sentence."""
    columns = np.concatenate(sentences)
    starts = np.cumsum([0, *map(len, sentences)])
    return csr_array((np.ones(len(columns), np.float32), columns, starts), (len(sentences), words))


def _ridge(counts: csr_array, images: Vectors) -> Vectors:
    """(W, K) vectors of words whose sums are near the images."""
    gram = (counts.T @ counts).toarray()
    gram[np.diag_indices_from(gram)] += _RIDGE
    return np.asarray(np.linalg.solve(gram, counts.T @ images), np.float32)


COUNT = 2  # captions of each image and language
# Of the matches, beside the score of the search: on training images with captions in two languages,
# where those of one picked those of the other, CIDEr-D 1.23 -> 1.36 (zh), 1.27 -> 1.34 (ja).
IMAGE_WEIGHT, PEOPLE_WEIGHT = 4.0, 4.0


def pick(
    decoders: CaptionDecoders,
    match: CaptionMatch,
    images: EncodedImages,
    captions: Mapping[str, Captions],
    beam: Beam,
    report: Report | None = None,
) -> Mapping[str, Captions]:
    """The best `COUNT` captions of each image by language, of those that a search finds."""
    people = people_vectors(match, captions, len(images))
    picked: dict[str, list[Hypotheses]] = {}
    for first in range(0, len(images), BATCH):
        rows = np.arange(first, min(first + BATCH, len(images)))
        features = images.at(rows)
        own = match.image_vectors(features.pooled)
        for language, written in decoders.candidates(features, beam).items():
            vectors = match.caption_vectors(written.positions, language)
            scores = beam.scores(written.log_probability, written.length)
            scores += IMAGE_WEIGHT * cosines(vectors, own)
            scores += PEOPLE_WEIGHT * cosines(vectors, people[rows])
            best = np.argsort(-scores, axis=1, kind="stable")[:, :COUNT]
            picked.setdefault(language, []).append(written.at(best))
        if report:
            report(int(rows[-1]) + 1, len(images))
    words = {name: group.words[name] for group in decoders.groups.values() for name in group.words}
    return {language: _in_words(batches, words[language]) for language, batches in picked.items()}


def people_vectors(match: CaptionMatch, captions: Mapping[str, Captions], images: int) -> Vectors:
    """(N, K) the mean of the vectors of an image's captions in all languages; 0 without any."""
    total: Vectors | None = None
    for language, of_language in captions.items():
        longest = max(map(len, of_language.ids), default=1)
        for row, numbers in enumerate(of_language.by_image(images)):
            if not len(numbers):
                continue
            positions = np.full((1, len(numbers), longest), END, np.int64)
            for at, number in enumerate(numbers):
                positions[0, at, : len(of_language.ids[number])] = of_language.ids[number]
            vectors = match.caption_vectors(positions, language)[0]
            if total is None:
                total = np.zeros((images, vectors.shape[1]), np.float32)
            total[row] += vectors.sum(axis=0)
    assert total is not None  # a training split has captions
    return unit(total)


def _in_words(batches: Sequence[Hypotheses], vocabulary: Sequence[str]) -> Captions:
    """The captions of consecutive images, without empty ones."""
    images = [image for batch in batches for image in batch.positions.tolist()]
    written = [
        (row, tuple(vocabulary[position - 1] for position in _up_to_end(positions)))
        for row, image in enumerate(images)
        for positions in image
    ]
    kept = [(row, words) for row, words in written if words]
    return Captions(
        np.array([row for row, _ in kept], np.int64),
        words=[words for _, words in kept],
        sources=[PICKED] * len(kept),
    )


def _up_to_end(positions: list[int]) -> list[int]:
    return positions[: positions.index(END)] if END in positions else positions


MAX_IMAGES = 600
_SHOWN = frozenset({"actions", "attributes"})  # tables whose concepts people often leave unsaid


def fit_confidence(
    decoders: CaptionDecoders, validation: ReferenceSet, beam: Beam
) -> Mapping[str, Confidence]:
    """By language, from the mean log-probability of a caption's words on validation."""
    captioned = sorted(set().union(*validation.references.values()))
    rows = np.array(captioned, np.int64)[:MAX_IMAGES]
    written = write_captions(decoders, validation.images, rows, beam)
    images = [validation.images.data.images[row] for row in rows]
    there = _there(validation, images)
    confidence = {}
    for language, captions in written.items():
        scores = np.array([log_p / max(length, 1) for _, log_p, length in captions])
        pairs = zip(captions, there, strict=True)
        right = np.array([is_right(text, language, known) for (text, _, _), known in pairs], float)
        confidence[language] = _fit(scores, right)
    return confidence


def is_right(caption: str, language: str, there: frozenset[str]) -> bool:
    """Whether all things that a caption names are among concepts that are there."""
    named = named_in(caption, language).concepts
    things = [concept for concept in named if concepts.by_id(concept).table not in _SHOWN]
    return all(_related(concept) & there for concept in things)


def _related(concept: str) -> frozenset[str]:
    """Itself and what is broader or narrower: an animal is right where people say cat."""
    return concepts.broader(concept) | concepts.narrower(concept)


def _there(validation: ReferenceSet, images: Sequence[CaptionedImage]) -> list[frozenset[str]]:
    languages = tuple(validation.references)
    return [
        frozenset().union(mentions.objects, mentions.labels, *mentions.said.values())
        for mentions in annotate(images, languages).mentions
    ]


def _fit(scores: Floats, right: Floats) -> Confidence:
    """Logistic regression; the share of right captions where they are all right or all wrong."""
    if 0 < right.sum() < len(right):
        ones, zeros = np.ones(len(right)), np.zeros(len(right))
        fitted = regression.fit(scores[:, None], right, ones, zeros)
        return Confidence(float(fitted.coefficients[0]), fitted.intercept)
    share = (right.sum() + 1) / (len(right) + 2)
    return Confidence(0.0, math.log(share / (1 - share)))
