"""Fits the match of captions and images (encoders.models.captioner), and what it is worth.

Ridge regression of whitened features on the words of captions is where it starts; then all of it is
trained so that captions are nearer to their images than to others (InfoNCE).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import csr_array
from torch import Tensor, nn

from capsearch.encoders.models.caption_search import Beam, CaptionVocabulary
from capsearch.encoders.models.captioner import BATCH, CaptionDecoders, CaptionMatch
from capsearch.encoders.train.caption_metrics import cider
from capsearch.encoders.train.captions import EncodedCaptions, ReferenceSet
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
    found = _candidates(decoders, CaptionMatch(arrays, 0.0), validation, beam)
    scores = [float(np.mean([*_ciders(found, validation, weight)])) for weight in WEIGHTS]
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
    """Those of all images by language."""
    made: dict[str, list[_Candidates]] = {}
    rows = np.arange(len(validation.images))
    for first in range(0, len(rows), BATCH):
        features = validation.images.at(rows[first : first + BATCH])
        images = match.image_vectors(features.pooled)
        for language, found in decoders.candidates(features, beam).items():
            texts = [
                decoders.text(found.at(np.full((len(images), 1), column)), language)
                for column in range(found.length.shape[1])
            ]
            scores = beam.scores(found.log_probability, found.length)
            matches = match.matches(images, found, language)
            made.setdefault(language, []).extend(
                _Candidates(*one)
                for one in zip(zip(*texts, strict=True), scores, matches, strict=True)
            )
    return made


def _ciders(
    found: Mapping[str, Sequence[_Candidates]], validation: ReferenceSet, weight: float
) -> Iterator[float]:
    for language, wanted in validation.references.items():
        if wanted:
            captions = {row: found[language][row].best(weight) for row in wanted}
            yield cider(captions, wanted, language)


def fit_match(
    pooled: Vectors,
    captions: Mapping[str, EncodedCaptions],
    vocabulary: CaptionVocabulary,
    seed: int = 0,
) -> Mapping[str, Vectors]:
    """The arrays of CaptionMatch from the (N, F) features and the captions of images."""
    arrays = dict(_whitening(pooled.astype(np.float32)))
    images = unit(pooled @ arrays["image_W"].T + arrays["image_b"])
    pairs = {language: _pairs(found) for language, found in captions.items()}
    for language, found in pairs.items():
        counts = _counts(found.sentences, len(vocabulary.outputs(language)))
        words = _ridge(counts, images[found.images])
        arrays |= {f"{language}_W": words, f"{language}_b": words[0].copy()}  # END is once in each
    return _contrasted(arrays, torch.from_numpy(pooled.astype(np.float32)), pairs, seed)


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Captions of a language with the rows of their images."""

    images: NDArray[np.int64]
    sentences: Sequence[NDArray[np.int64]]

    def some(self, rows: NDArray[np.int64]) -> _Pairs:
        return _Pairs(self.images[rows], [self.sentences[row] for row in rows])


def _pairs(captions: EncodedCaptions) -> _Pairs:
    rows = np.repeat(np.arange(len(captions.by_image)), [len(one) for one in captions.by_image])
    return _Pairs(rows, [captions.sentences[at] for one in captions.by_image for at in one])


def _contrasted(
    arrays: Mapping[str, Vectors], pooled: Tensor, pairs: Mapping[str, _Pairs], seed: int
) -> Mapping[str, Vectors]:
    """Trained by InfoNCE between the images and the captions of batches of one language."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    learned = {name: nn.Parameter(torch.from_numpy(one)) for name, one in arrays.items()}
    scale = nn.Parameter(torch.tensor(_LOG_SCALE))
    optimizer = torch.optim.AdamW([*learned.values(), scale], lr=_LR, weight_decay=_DECAY)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, _STEPS)
    for _ in range(_STEPS):
        losses = []
        for language, found in pairs.items():
            batch = found.some(random.integers(0, len(found.images), min(_BATCH, len(pooled))))
            images = _image_vectors(pooled[batch.images], learned)
            captions = _caption_vectors(batch.sentences, language, learned)
            losses.append(_contrastive(images @ captions.T * scale.exp(), batch.images))
        optimizer.zero_grad()
        torch.autograd.backward(cast(Tensor, sum(losses)))
        optimizer.step()
        schedule.step()
    return {name: one.detach().numpy() for name, one in learned.items()}


def _image_vectors(pooled: Tensor, learned: Mapping[str, Tensor]) -> Tensor:
    kept = nn.functional.dropout(pooled, _DROPOUT)
    return nn.functional.normalize(kept @ learned["image_W"].T + learned["image_b"])


def _caption_vectors(
    sentences: Sequence[NDArray[np.int64]], language: str, learned: Mapping[str, Tensor]
) -> Tensor:
    """Sums of the words but END, which counts as the bias."""
    words = torch.from_numpy(np.concatenate([one[:-1] for one in sentences]))
    starts = torch.from_numpy(np.cumsum([0, *(len(one) - 1 for one in sentences[:-1])]))
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
