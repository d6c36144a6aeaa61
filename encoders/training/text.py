"""Training the text encoders and the image projection together on cached features."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.training.corpus import LanguageCaptions, Vocabulary
from capsearch.encoders.training.losses import LOSSES
from capsearch.encoders.training.network import (
    ImageProjection,
    Sentences,
    TextConfig,
    TextNetwork,
)
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.metrics import mean_reciprocal_rank, ranks
from capsearch.engine.records import Vectors

EVALUATE_AT_ONCE = 512


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """What `capsearch train text` may set; the defaults are those of the built-in model."""

    config: TextConfig = field(default_factory=TextConfig)
    dimension: int = 512
    loss: str = "infonce"
    epochs: int = 10
    batch: int = 256
    rate: float = 1e-3
    captions_each: int = 2  # drawn for each photo and language and step
    weight_decay: float = 0.01
    average: float = 0.995  # of the weights, exponentially; the averaged ones are kept
    patience: int = 4  # epochs without a better validation MRR
    seed: int = 7

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise TrainingProblem(f"no loss called '{self.loss}'; there is {', '.join(LOSSES)}")


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Photos' features in one or more views (as they are, mirrored), and their captions."""

    features: Vectors  # (V, N, F)
    captions: Mapping[str, LanguageCaptions]


@dataclass(frozen=True, slots=True)
class Epoch:
    """Progress: one line of the log."""

    number: int
    loss: float
    validation: Mapping[str, float]  # CM MRR by language
    best: bool

    @property
    def mrr(self) -> float:
        """Mean over the languages: what picks the checkpoint."""
        return sum(self.validation.values()) / max(len(self.validation), 1)


class Pair(nn.Module):
    """The two sides and the learned temperature."""

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        vectors: Mapping[str, Tensor],
        features: int,
        options: TrainingOptions,
    ) -> None:
        super().__init__()
        sizes = {language: len(vocabulary.words) for language, vocabulary in vocabularies.items()}
        self.text = TextNetwork(sizes, options.dimension, options.config, dict(vectors))
        self.image = ImageProjection(features, options.dimension)
        self.scale = nn.Parameter(torch.tensor(math.log(20.0)))


@dataclass
class TextTrainer:
    """Trains a Pair; `fit` yields an Epoch each time, and can be stopped and resumed."""

    pair: Pair
    train: TrainingSet
    validation: TrainingSet
    options: TrainingOptions
    checkpoint: Path | None = None
    epoch: int = 0
    step: int = 0
    best: float = -1.0

    def __post_init__(self) -> None:
        torch.manual_seed(self.options.seed)
        self._rows = {
            language: captions.by_photo(self.train.features.shape[1])
            for language, captions in self.train.captions.items()
        }
        self.averaged = _averaged(self.pair, self.options.average)
        self._optimizer = torch.optim.AdamW(
            [
                {"params": [p for p in self.pair.parameters() if p.ndim > 0]},
                {"params": [self.pair.scale], "weight_decay": 0.0},
            ],
            lr=self.options.rate,
            weight_decay=self.options.weight_decay,
        )

    def fit(self) -> Iterator[Epoch]:
        """Epochs until the last, or until validation has not improved for a while."""
        since = 0
        while self.epoch < self.options.epochs and since < self.options.patience:
            loss = self._epoch(np.random.default_rng([self.options.seed, self.epoch]))
            self.epoch += 1
            found = self.validate()
            mean = sum(found.values()) / max(len(found), 1)
            better = mean > self.best
            since = 0 if better else since + 1
            if better:
                self.best = mean
                self.kept = {k: v.clone() for k, v in self.averaged.module.state_dict().items()}
            self.save()
            yield Epoch(self.epoch, loss, found, better)
        self.averaged.module.load_state_dict(self.kept)

    def validate(self) -> Mapping[str, float]:
        """CM MRR on validation of the averaged weights, by language."""
        pair = self.averaged.module
        images = project(pair, self.validation.features[0])
        return {
            language: _mrr(encode(pair, captions, language) @ images.T, captions.photos)
            for language, captions in self.validation.captions.items()
            if len(captions.photos)
        }

    def _epoch(self, rng: np.random.Generator) -> float:
        self.pair.train()
        photos = self.train.features.shape[1]
        batch = min(self.options.batch, photos)
        losses = []
        order = rng.permutation(photos)
        steps = self.options.epochs * (photos // batch)
        for start in range(0, photos - batch + 1, batch):
            self._set_rate(self.step / steps)
            losses.append(self._step(order[start : start + batch], rng))
            self.step += 1
        return float(np.mean(losses))

    def _set_rate(self, progress: float) -> None:
        warm = min(1.0, (self.step + 1) / 50)
        decayed = 0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))
        for group in self._optimizer.param_groups:
            group["lr"] = self.options.rate * warm * (0.01 + 0.99 * decayed)

    def _step(self, photos: NDArray[np.int64], rng: np.random.Generator) -> float:
        view = rng.integers(len(self.train.features), size=len(photos))
        features = torch.from_numpy(self.train.features[view, photos].astype(np.float32))
        loss = self._loss(self.pair.image(features), photos, rng)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.pair.parameters(), 10.0)
        self._optimizer.step()
        self.averaged.update_parameters(self.pair)
        return float(loss.detach())

    def _loss(self, images: Tensor, photos: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """Mean over the drawn sentences, language by language, one a photo at a time."""
        scale = self.pair.scale.exp().clamp(max=100.0)
        total, count = images.new_zeros(()), 0
        for language, captions in self.train.captions.items():
            for draw in range(self.options.captions_each):
                rows, drawn = self._draw(language, photos, draw, rng)
                if len(rows) < 2:
                    continue
                texts = self.pair.text(batch_of(captions, drawn), language)
                part = LOSSES[self.options.loss](texts, images, torch.from_numpy(rows), scale)
                total, count = total + part * len(rows), count + len(rows)
        if count == 0:
            raise TrainingProblem("a batch without captions: the training split has too few")
        return total / count

    def _draw(
        self, language: str, photos: NDArray[np.int64], draw: int, rng: np.random.Generator
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(rows in the batch, captions), for photos with more than `draw` captions."""
        by_photo = self._rows[language]
        having = [at for at, photo in enumerate(photos) if len(by_photo[photo]) > draw]
        drawn = [by_photo[photos[at]][rng.integers(len(by_photo[photos[at]]))] for at in having]
        return np.array(having, np.int64), np.array(drawn, np.int64)

    def save(self) -> None:
        """Everything needed to go on, whole or not at all."""
        if self.checkpoint is None:
            return
        state = {
            "pair": self.pair.state_dict(),
            "averaged": self.averaged.state_dict(),
            "kept": self.kept,
            "optimizer": self._optimizer.state_dict(),
            "counters": (self.epoch, self.step, self.best),
        }
        temporary = self.checkpoint.with_suffix(".tmp")
        torch.save(state, temporary)
        temporary.replace(self.checkpoint)

    def resume(self) -> None:
        """Go on where a checkpoint stopped; TrainingProblem if it is another model's."""
        if self.checkpoint is None or not self.checkpoint.is_file():
            return
        state = torch.load(self.checkpoint, weights_only=True)
        try:
            self.pair.load_state_dict(state["pair"])
        except RuntimeError as problem:
            raise TrainingProblem(
                f"{self.checkpoint} belongs to another data set or configuration; "
                "remove it or choose another --output"
            ) from problem
        self.averaged.load_state_dict(state["averaged"])
        self.kept = state["kept"]
        self._optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.step, self.best = state["counters"]


def batch_of(captions: LanguageCaptions, rows: NDArray[np.int64]) -> Sentences:
    """Some captions as a network input."""
    sentence = torch.from_numpy(captions.sentence[rows].astype(np.float32))
    return Sentences([captions.words[row] for row in rows], sentence)


def project(pair: Pair, features: Vectors) -> Vectors:
    """(N, D) image vectors without dropout."""
    pair.eval()
    with torch.no_grad():
        return pair.image(torch.from_numpy(features.astype(np.float32))).numpy()  # type: ignore[no-any-return]


def encode(pair: Pair, captions: LanguageCaptions, language: str) -> Vectors:
    """(C, D) caption vectors without dropout."""
    pair.eval()
    count = len(captions.photos)
    parts = [
        np.arange(start, min(start + EVALUATE_AT_ONCE, count))
        for start in range(0, count, EVALUATE_AT_ONCE)
    ]
    with torch.no_grad():
        return np.concatenate(
            [pair.text(batch_of(captions, rows), language).numpy() for rows in parts]
        )


def _mrr(scores: Vectors, photos: NDArray[np.int64]) -> float:
    return float(mean_reciprocal_rank(ranks(scores, photos, np.arange(scores.shape[1]))))


def _averaged(pair: Pair, decay: float) -> torch.optim.swa_utils.AveragedModel:
    """Polyak averaging that starts as a plain mean, so that the first epochs count too."""

    def blend(average: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
        share = min(decay, 1.0 - 1.0 / (float(count) / 4.0 + 2.0))
        return average.lerp(now, 1.0 - share)

    return torch.optim.swa_utils.AveragedModel(pair, avg_fn=blend)
