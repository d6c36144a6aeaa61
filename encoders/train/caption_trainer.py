"""The trainers of captioners, by cross entropy and by CIDEr-D; CIDEr-D on validation for both.

Self-critical training: captions are sampled for each image, and what scores more than the image's
other samples is made more probable (Rennie 2017, with the mean of the others as baseline: Luo
2020). A captioner that was trained by cross entropy is where it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.models.caption_search import END, Beam
from capsearch.encoders.models.captioner import BATCH, CaptionDecoders
from capsearch.encoders.train.activations import EncodedImages
from capsearch.encoders.train.caption_metrics import CiderReward, References, cider
from capsearch.encoders.train.captions import Captions, draws
from capsearch.encoders.train.decoders import CaptionNetwork, ImageBatch
from capsearch.encoders.train.dual_encoder import TrainingOptions
from capsearch.encoders.train.loop import TrainingLoop, one_group
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import ImageFeatures, Vectors

VALIDATION_IMAGES = 400  # of each language, on which every epoch is measured
SAMPLES = 5  # captions of each image and language, in self-critical training


@dataclass(frozen=True, slots=True)
class CaptionSet:
    """Training images with their captions by language."""

    images: EncodedImages
    captions: Mapping[str, Captions]


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
        self._by_image = {
            language: captions.by_image(len(train.images))
            for language, captions in train.captions.items()
        }
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
        count = self.options.captions_per_image
        for language in languages:
            for rows, drawn in draws(self._by_image[language], image_rows, count, rng):
                if len(rows):
                    sentences = [self.train.captions[language].ids[row] for row in drawn]
                    totals.append(self._language_loss(images[rows], sentences, language))
                    words += sum(map(len, sentences))
        if not totals:
            raise TrainingProblem("a batch without captions: the training split has too few")
        return cast(Tensor, sum(totals)) / words

    def _language_loss(
        self, images: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> Tensor:
        """The summed loss of the words of captions."""
        logits, targets, _ = self.model.decoder_of(language).predictions(
            images, sentences, language
        )
        return nn.functional.cross_entropy(
            logits, targets, reduction="sum", label_smoothing=self.model.config.label_smoothing
        )

    def _batch(self, rows: NDArray[np.int64]) -> ImageBatch:
        features = self.train.images.at(rows)
        assert features.grid is not None
        return ImageBatch(torch.from_numpy(features.pooled), torch.from_numpy(features.grid))


class SelfCriticalTrainer(CaptionTrainer):
    """Trains by policy gradient; without dropout, so that samples are of the trained network."""

    @cached_property
    def _rewards(self) -> Mapping[str, CiderReward]:
        return {
            language: CiderReward([[captions.ids[row] for row in rows] for rows in by_image])
            for language, by_image in self._by_image.items()
            for captions in [self.train.captions[language]]
        }

    def _loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        self.model.eval()
        served = self.model.served()
        images = self.model.image(self._batch(image_rows))
        totals, words = [], 0
        for language in self.train.captions:
            by_image = self._by_image[language]
            having = np.flatnonzero([len(by_image[row]) > 0 for row in image_rows])
            if not len(having):
                continue
            features = self.train.images.at(image_rows[having])
            longest = self.model.config.max_words
            sampled = sample(served, features, language, SAMPLES, longest, rng)
            advantages = self._advantages(language, image_rows[having], sampled)
            flat = [sentence for sentences in sampled for sentence in sentences]
            chosen = images[np.repeat(having, SAMPLES)]
            totals.append(-(self._log_p(chosen, flat, language) * advantages).sum())
            words += sum(map(len, flat))
        if not totals:
            raise TrainingProblem("a batch without captions: the training split has too few")
        return cast(Tensor, sum(totals)) / words

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
        decoder = self.model.decoder_of(language)
        logits, targets, known = decoder.predictions(images, sentences, language)
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
    return [[_up_to_end(caption) for caption in captions] for captions in positions]


def _drawn(log_probabilities: Vectors, rng: np.random.Generator) -> NDArray[np.int64]:
    """(N, K, W) -> (N, K) positions, each with its probability."""
    shares = np.cumsum(np.exp(log_probabilities), axis=-1)
    at = rng.random(shares.shape[:2], np.float32)[..., None] * shares[..., -1:]
    return np.asarray((shares <= at).sum(-1).clip(max=shares.shape[-1] - 1), np.int64)


def _up_to_end(positions: NDArray[np.int64]) -> NDArray[np.int64]:
    ends = np.flatnonzero(positions == END)
    return positions[: ends[0] + 1] if len(ends) else positions


def write_captions(
    decoders: CaptionDecoders, images: EncodedImages, rows: NDArray[np.int64], beam: Beam
) -> Mapping[str, Sequence[tuple[str, float, int]]]:
    """(caption, log P, length) of some images by language, in batches."""
    written: dict[str, list[tuple[str, float, int]]] = {}
    for first in range(0, len(rows), BATCH):
        batch = decoders.captions(images.at(rows[first : first + BATCH]), beam)
        for language, best in batch.items():
            texts, log_p = decoders.text(best, language), best.log_probability[:, 0].tolist()
            lengths = best.length[:, 0].tolist()
            written.setdefault(language, []).extend(zip(texts, log_p, lengths, strict=True))
    return written


def ciders(decoders: CaptionDecoders, validation: ReferenceSet, beam: Beam) -> dict[str, float]:
    """CIDEr-D by language of the captions of all images."""
    rows = np.arange(len(validation.images))
    written = write_captions(decoders, validation.images, rows, beam)
    return {
        language: cider({row: captions[row][0] for row in references}, references, language)
        for language, captions in written.items()
        if (references := validation.references.get(language))
    }


def first_images(validation: ReferenceSet) -> ReferenceSet:
    """The first images of each language."""
    firsts = [list(captions)[:VALIDATION_IMAGES] for captions in validation.references.values()]
    rows = sorted(set().union(*firsts))
    place = {row: at for at, row in enumerate(rows)}
    references = {
        language: {place[row]: texts for row, texts in by_row.items() if row in place}
        for language, by_row in validation.references.items()
    }
    return ReferenceSet(validation.images.only(np.array(rows, np.int64)), references)
