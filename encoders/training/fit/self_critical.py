"""Self-critical training of a captioner: it is rewarded for CIDEr-D, not for the next word.

Captions are sampled for each image, and what scores more than the image's other samples is made
more probable (Rennie 2017, with the mean of the others as baseline: Luo 2020). A captioner that
was trained by cross entropy is where it starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.captioners import CaptionDecoders
from capsearch.encoders.captioners.vocabulary import END
from capsearch.encoders.training.fit.caption_corpus import EncodedCaptions
from capsearch.encoders.training.fit.caption_trainer import CaptionTrainer
from capsearch.encoders.training.fit.cider_reward import CiderReward
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import ImageFeatures, Vectors

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
