"""Training sentences and images together, one trainer for both sides.

What the eyes get is either cached features (`capsearch train text`: the eyes are the identity)
or the cached activations of a backbone's frozen lower half (`capsearch train backbone`: the
eyes are its upper half, and learn).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.datasets.features import Report
from capsearch.encoders.training.fit.validation import Epoch, evaluate
from capsearch.encoders.training.nn.dual_encoder import (
    DualEncoder,
    Labels,
    TrainingOptions,
    TrainingSet,
    batch_of,
)
from capsearch.encoders.training.nn.losses import LOSSES
from capsearch.encoders.training.nn.w2vv import TextNetwork, TokenBatch
from capsearch.engine.errors import TrainingProblem

LABEL_SCALE = 0.02  # a sum over some hundred labels, brought near the caption loss

_Side = tuple[NDArray[np.int64], Tensor]  # rows of the batch, rising, and a vector for each


@dataclass
class Trainer:
    """Trains a DualEncoder; `fit` yields an Epoch each time, and can be stopped and resumed."""

    pair: DualEncoder
    train: TrainingSet
    validation: TrainingSet
    options: TrainingOptions
    checkpoint: Path | None = None
    epoch: int = 0
    step: int = 0
    best: Epoch | None = None

    def __post_init__(self) -> None:
        self._rows = {
            language: captions.by_image(len(self.train))
            for language, captions in self.train.captions.items()
        }
        self.averaged = _averaged(self.pair, self.options.average * self._steps_each)
        self._optimizer = torch.optim.AdamW(
            list(_groups(self.pair, self.options)), weight_decay=self.options.weight_decay
        )

    def fit(self, report: Callable[[str], Report] | None = None) -> Iterator[Epoch]:
        """Epochs until the last, or until validation has not improved for a while.

        `report` gives a counter of steps for each epoch by its name. Every epoch draws from its
        own seed, so that a resumed run ends as an uninterrupted one.
        TrainingProblem when the loss is no number any more.
        """
        while self.epoch < self.options.epochs and self._improving():
            rng = np.random.default_rng([self.options.seed, self.epoch])
            torch.manual_seed(int(rng.integers(2**62)))  # dropout, crops, drawn pairs
            loss = self._epoch(rng, report(f"epoch {self.epoch + 1}") if report else None)
            self.epoch += 1
            yield self._judged(loss)
        self.averaged.module.load_state_dict(self.kept)

    @property
    def _batch(self) -> int:
        return min(self.options.batch_size, len(self.train))

    @property
    def _steps_each(self) -> int:
        return len(self.train) // self._batch

    def _improving(self) -> bool:
        return self.best is None or self.epoch - self.best.number < self.options.patience

    def _judged(self, loss: float) -> Epoch:
        """The epoch just trained, kept if it validates best, and saved either way."""
        if not math.isfinite(loss):
            raise TrainingProblem(f"the loss is {loss} in epoch {self.epoch}; try a lower --lr")
        epoch = Epoch(self.epoch, loss, self.validate(), best=True)
        if self.best is not None and epoch.mrr <= self.best.mrr:
            epoch = replace(epoch, best=False)
        else:
            self.best = epoch
            self.kept = {k: v.clone() for k, v in self.averaged.module.state_dict().items()}
        self.save()
        return epoch

    def validate(self) -> Mapping[str, float]:
        """CM MRR on validation of the averaged weights, by language."""
        return evaluate(cast(DualEncoder, self.averaged.module), self.validation)

    def _epoch(self, rng: np.random.Generator, report: Report | None) -> float:
        self.pair.train()
        losses = []
        order = rng.permutation(len(self.train))
        for at in range(self._steps_each):
            self._set_rate(self.step / (self.options.epochs * self._steps_each))
            losses.append(self._step(order[at * self._batch : (at + 1) * self._batch], rng))
            self.step += 1
            if report:
                report(at + 1, self._steps_each)
        return float(np.mean(losses))

    def _set_rate(self, progress: float) -> None:
        warm = min(1.0, (self.step + 1) / 50)
        decayed = 0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * warm * (0.01 + 0.99 * decayed)

    def _step(self, photos: NDArray[np.int64], rng: np.random.Generator) -> float:
        features = self.pair.backbone(self._inputs(photos, rng))
        loss = self._caption_loss(self.pair.image(features), photos, rng)
        if self.pair.labels is not None and self.train.labels is not None:
            guessed = self.pair.labels(features)
            loss = loss + self.options.label_loss_weight * _label_loss(
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
        """Sentences against images, and against each other where a photo has several."""
        drawn = [
            (rows, self._texts(batch_of(self.train.captions[language], captions), language))
            for language in self.train.captions
            for rows, captions in self._draws(language, photos, rng)
            if len(rows) > 1
        ]
        if not drawn:
            raise TrainingProblem("a batch without captions: the training split has too few")
        everything = np.arange(len(images))
        loss = self._mean_loss([(one, (everything, images)) for one in drawn], self.pair.scale)
        if not self.options.caption_loss_weight:
            return loss
        pairs = [pair for pair in combinations(drawn, 2) if len(_common(*pair)) > 1]
        between = self._mean_loss(pairs, self.pair.caption_scale) if pairs else 0.0
        return loss + self.options.caption_loss_weight * between

    def _mean_loss(self, pairs: Sequence[tuple[_Side, _Side]], log_scale: Tensor) -> Tensor:
        """The loss of one side's sentences against another side, a mean over the sentences."""
        scale = log_scale.exp().clamp(max=100.0)
        parts, counts = [], []
        for (rows, texts), (answers, vectors) in pairs:
            common = np.flatnonzero(np.isin(rows, answers))
            places = torch.from_numpy(np.searchsorted(answers, rows[common]))
            parts.append(LOSSES[self.options.loss](texts[common], vectors, places, scale))
            counts.append(len(common))
        total = sum((part * count for part, count in zip(parts, counts, strict=True)), 0.0)
        return cast(Tensor, total) / sum(counts)

    def _texts(self, sentences: TokenBatch, language: str) -> Tensor:
        """Unit rows; in the feature space as they are, for eq. 2 and MSE measure distances."""
        if self.options.space == "feature":
            assert isinstance(self.pair.text, TextNetwork)
            return self.pair.text.raw(sentences, language)
        return self.pair.text(sentences, language)  # type: ignore[no-any-return]

    def _draws(
        self, language: str, photos: NDArray[np.int64], rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """(rows in the batch, captions) `captions_per_image` times, no caption of a photo twice."""
        mixed = [rng.permutation(self._rows[language][photo]) for photo in photos]
        for draw in range(self.options.captions_per_image):
            having = [at for at, captions in enumerate(mixed) if len(captions) > draw]
            yield np.array(having, np.int64), np.array([mixed[at][draw] for at in having], np.int64)

    def save(self) -> None:
        """Everything needed to go on, whole or not at all."""
        if self.checkpoint is None:
            return
        state = {
            "pair": self.pair.state_dict(),
            "averaged": self.averaged.state_dict(),
            "kept": self.kept,
            "optimizer": self._optimizer.state_dict(),
            "counters": (self.epoch, self.step),
            "best": asdict(self.best) if self.best else None,
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
        self.epoch, self.step = state["counters"]
        self.best = Epoch(**state["best"]) if state["best"] else None


def _groups(pair: DualEncoder, options: TrainingOptions) -> Iterator[dict[str, Any]]:
    """Parameter groups: the eyes' parts from two thirds of their rate upwards, and the rest."""
    eyes = [child for child in pair.backbone.children() if any(True for _ in child.parameters())]
    for at, child in enumerate(eyes):
        rate = options.backbone_lr * (2 + at / max(len(eyes) - 1, 1)) / 3
        yield {"params": list(child.parameters()), "lr": rate, "peak": rate}
    scales = [pair.scale, pair.caption_scale]
    seen = {id(p) for p in (*pair.backbone.parameters(), *scales)}
    rest = [p for p in pair.parameters() if id(p) not in seen]
    common = {"lr": options.lr, "peak": options.lr}
    yield {"params": rest, **common}
    yield {"params": scales, "weight_decay": 0.0, **common}


def _common(one: _Side, other: _Side) -> NDArray[np.int64]:
    return np.intersect1d(one[0], other[0], assume_unique=True)


def _label_loss(guessed: Tensor, labels: Labels, photos: NDArray[np.int64]) -> Tensor:
    """Binary cross entropy, summed over a photo's known labels, averaged over the batch."""
    values = torch.from_numpy(labels.values[photos].astype(np.float32))
    known = torch.from_numpy(labels.known[photos].astype(np.float32))
    each = nn.functional.binary_cross_entropy_with_logits(guessed, values, reduction="none")
    return (each * known).sum() / len(photos) * LABEL_SCALE


def _averaged(pair: DualEncoder, steps: float) -> torch.optim.swa_utils.AveragedModel:
    """Polyak averaging that starts as a plain mean, so that the first epochs count too."""
    decay = 1.0 - 1.0 / max(steps, 1.0)

    def blend(average: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
        share = min(decay, 1.0 - 1.0 / (float(count) / 4.0 + 2.0))
        return average.lerp(now, 1.0 - share)

    return torch.optim.swa_utils.AveragedModel(pair, avg_fn=blend)
