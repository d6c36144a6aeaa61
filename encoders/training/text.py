"""Training sentences and pictures together, one trainer for both sides.

What the eyes get is either cached features (`capsearch train text`: the eyes are the identity)
or the cached activations of a backbone's frozen lower half (`capsearch train backbone`: the
eyes are its upper half, and learn).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

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

EVALUATE_AT_ONCE = 256
LABEL_SCALE = 0.02  # a sum over some hundred labels, brought near the caption loss


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
    eyes_rate: float = 3e-4  # of the backbone's blocks; a third less for the lowest
    labels_share: float = 0.1  # of the label loss, where there are labels
    warm_epochs: int = 0  # the eyes stay as they are at first
    seed: int = 7

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise TrainingProblem(f"no loss called '{self.loss}'; there is {', '.join(LOSSES)}")


@dataclass(frozen=True, slots=True)
class Labels:
    """Other things known about photos: (N, L) 0 or 1, and where that is known at all."""

    values: NDArray[np.uint8]
    known: NDArray[np.bool_]  # (N, L)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Photos as the eyes get them, in one or more views (as they are, mirrored), and captions."""

    inputs: NDArray[Any]  # (V, N, ...) features or activations, possibly memory-mapped
    captions: Mapping[str, LanguageCaptions]
    labels: Labels | None = None

    def __len__(self) -> int:
        return int(self.inputs.shape[1])


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
    """Eyes, the two sides of the shared space, and the learned temperature."""

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        vectors: Mapping[str, Tensor],
        features: int,
        options: TrainingOptions,
        eyes: nn.Module | None = None,
        labels: int = 0,
        text: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.eyes = eyes or nn.Identity()
        sizes = {language: len(vocabulary.words) for language, vocabulary in vocabularies.items()}
        self.text = text or TextNetwork(sizes, options.dimension, options.config, dict(vectors))
        self.image = ImageProjection(features, options.dimension)
        self.labels = nn.Linear(features, labels) if labels else None
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
            language: captions.by_photo(len(self.train))
            for language, captions in self.train.captions.items()
        }
        self.averaged = _averaged(self.pair, self.options.average)
        self._optimizer = torch.optim.AdamW(
            list(_groups(self.pair, self.options)), weight_decay=self.options.weight_decay
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
        pair = cast(Pair, self.averaged.module)
        images = project(pair, self.validation)
        return {
            language: _mrr(encode(pair, captions, language) @ images.T, captions.photos)
            for language, captions in self.validation.captions.items()
            if len(captions.photos)
        }

    def _epoch(self, rng: np.random.Generator) -> float:
        self.pair.train()
        photos = len(self.train)
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
            asleep = group["eyes"] and self.epoch < self.options.warm_epochs
            group["lr"] = 0.0 if asleep else group["peak"] * warm * (0.01 + 0.99 * decayed)

    def _step(self, photos: NDArray[np.int64], rng: np.random.Generator) -> float:
        features = self.pair.eyes(self._inputs(photos, rng))
        loss = self._caption_loss(self.pair.image(features), photos, rng)
        if self.pair.labels is not None and self.train.labels is not None:
            guessed = self.pair.labels(features)
            loss = loss + self.options.labels_share * _label_loss(
                guessed, self.train.labels, photos
            )
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.pair.parameters(), 10.0)
        self._optimizer.step()
        self.averaged.update_parameters(self.pair)
        return float(loss.detach())

    def _inputs(self, photos: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """The batch's photos, each in a view drawn at random."""
        view = rng.integers(len(self.train.inputs), size=len(photos))
        rows = np.stack(
            [self.train.inputs[v, photo] for v, photo in zip(view, photos, strict=True)]
        )
        return torch.from_numpy(rows.astype(np.float32))

    def _caption_loss(
        self, images: Tensor, photos: NDArray[np.int64], rng: np.random.Generator
    ) -> Tensor:
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


def project(pair: Pair, photos: TrainingSet) -> Vectors:
    """(N, D) image vectors of the first view, without dropout."""
    pair.eval()
    with torch.no_grad():
        parts = [
            pair.image(pair.eyes(torch.from_numpy(np.array(rows, np.float32)))).numpy()
            for rows in _chunks(photos.inputs[0])
        ]
    return np.concatenate(parts)


def _chunks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(rows), EVALUATE_AT_ONCE):
        yield rows[start : start + EVALUATE_AT_ONCE]


def encode(pair: Pair, captions: LanguageCaptions, language: str) -> Vectors:
    """(C, D) caption vectors without dropout."""
    return encode_with(pair.text, captions, language)


def encode_with(text: nn.Module, captions: LanguageCaptions, language: str) -> Vectors:
    """(C, D) caption vectors of any text side, without dropout."""
    text.eval()
    with torch.no_grad():
        parts = [
            text(batch_of(captions, rows), language).numpy()
            for rows in _chunks(np.arange(len(captions.photos)))
        ]
    return np.concatenate(parts)


def _groups(pair: Pair, options: TrainingOptions) -> Iterator[dict[str, Any]]:
    """Parameter groups: the eyes' parts from two thirds of their rate upwards, and the rest."""
    eyes = [child for child in pair.eyes.children() if any(True for _ in child.parameters())]
    for at, child in enumerate(eyes):
        rate = options.eyes_rate * (2 + at / max(len(eyes) - 1, 1)) / 3
        yield {"params": list(child.parameters()), "lr": rate, "peak": rate, "eyes": True}
    seen = {id(p) for p in pair.eyes.parameters()} | {id(pair.scale)}
    rest = [p for p in pair.parameters() if id(p) not in seen]
    common = {"lr": options.rate, "peak": options.rate, "eyes": False}
    yield {"params": rest, **common}
    yield {"params": [pair.scale], "weight_decay": 0.0, **common}


def _label_loss(guessed: Tensor, labels: Labels, photos: NDArray[np.int64]) -> Tensor:
    """Binary cross entropy, summed over a photo's known labels, averaged over the batch."""
    values = torch.from_numpy(labels.values[photos].astype(np.float32))
    known = torch.from_numpy(labels.known[photos].astype(np.float32))
    each = nn.functional.binary_cross_entropy_with_logits(guessed, values, reduction="none")
    return (each * known).sum() / len(photos) * LABEL_SCALE


def _mrr(scores: Vectors, photos: NDArray[np.int64]) -> float:
    return float(mean_reciprocal_rank(ranks(scores, photos, np.arange(scores.shape[1]))))


def _averaged(pair: Pair, decay: float) -> torch.optim.swa_utils.AveragedModel:
    """Polyak averaging that starts as a plain mean, so that the first epochs count too."""

    def blend(average: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
        share = min(decay, 1.0 - 1.0 / (float(count) / 4.0 + 2.0))
        return average.lerp(now, 1.0 - share)

    return torch.optim.swa_utils.AveragedModel(pair, avg_fn=blend)
