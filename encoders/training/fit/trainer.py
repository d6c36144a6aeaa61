"""The trainer of text encoders, image projection and, if it is to be fine-tuned, the backbone.

Its inputs are either cached features (`capsearch train text`: the backbone is the identity) or
cached activations of the frozen lower blocks (`capsearch train backbone`: the backbone is the
upper blocks, which are fine-tuned).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.datasets.features import Report
from capsearch.encoders.training.fit.checkpoint import (
    Checkpoint,
    read_checkpoint,
    write_checkpoint,
)
from capsearch.encoders.training.fit.distillation import Distillation
from capsearch.encoders.training.fit.labels import label_loss
from capsearch.encoders.training.fit.validation import Epoch, evaluate
from capsearch.encoders.training.nn.dual_encoder import (
    DualEncoder,
    TrainingOptions,
    TrainingSet,
    batch_of,
)
from capsearch.encoders.training.nn.losses import LOSSES
from capsearch.encoders.training.nn.w2vv import TextNetwork
from capsearch.engine.errors import TrainingProblem

WARM_UP_STEPS = 50

_Side = tuple[NDArray[np.int64], Tensor]  # ascending rows of the batch, and a vector for each


@dataclass
class Trainer:
    """Trains a DualEncoder; `fit` yields every Epoch, and can be interrupted and resumed."""

    model: DualEncoder
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
        self._distillation = Distillation(self.train.captions, self._batch_size)
        self.averaged = _averaged(self.model, self.options.ema_epochs * self._steps_per_epoch)
        self._optimizer = torch.optim.AdamW(
            list(_parameter_groups(self.model, self.options)),
            weight_decay=self.options.weight_decay,
        )

    def fit(self, report: Callable[[str], Report] | None = None) -> Iterator[Epoch]:
        """Epochs until the last, or until validation has not improved for `patience` epochs.

        `report(name of the epoch)` returns a counter of its steps. Every epoch has its own
        random seed, so that a resumed run gives the same result as an uninterrupted one.
        Afterwards `averaged` holds the best weights. TrainingProblem when the loss diverges.
        """
        while self.epoch < self.options.epochs and self._improving():
            rng = np.random.default_rng([self.options.seed, self.epoch])
            torch.manual_seed(int(rng.integers(2**62)))  # dropout, crops, negatives
            loss = self._epoch(rng, report(f"epoch {self.epoch + 1}") if report else None)
            self.epoch += 1
            yield self._evaluated(loss)
        self.averaged.module.load_state_dict(self.best_weights)

    @property
    def _batch_size(self) -> int:
        return min(self.options.batch_size, len(self.train))

    @property
    def _steps_per_epoch(self) -> int:
        return len(self.train) // self._batch_size

    def _improving(self) -> bool:
        return self.best is None or self.epoch - self.best.number < self.options.patience

    def _evaluated(self, loss: float) -> Epoch:
        """The scores of the epoch just trained; remembers the best weights, saves a checkpoint."""
        if not math.isfinite(loss):
            raise TrainingProblem(f"the loss is {loss} in epoch {self.epoch}; try a lower --lr")
        epoch = Epoch(self.epoch, loss, self.validate(), best=True)
        if self.best is not None and epoch.mrr <= self.best.mrr:
            epoch = replace(epoch, best=False)
        else:
            self.best = epoch
            self.best_weights = {k: v.clone() for k, v in self.averaged.module.state_dict().items()}
        self.save()
        return epoch

    def validate(self) -> Mapping[str, float]:
        """CM MRR on validation of the averaged weights, by language."""
        return evaluate(cast(DualEncoder, self.averaged.module), self.validation)

    def _epoch(self, rng: np.random.Generator, report: Report | None) -> float:
        self.model.train()
        losses = []
        order, size = rng.permutation(len(self.train)), self._batch_size
        for at in range(self._steps_per_epoch):
            self._set_lr(self.step / (self.options.epochs * self._steps_per_epoch))
            losses.append(self._step(order[at * size : (at + 1) * size], rng))
            self.step += 1
            if report:
                report(at + 1, self._steps_per_epoch)
        return float(np.mean(losses))

    def _set_lr(self, progress: float) -> None:
        """Linear warm-up, then cosine decay to a hundredth of each group's peak."""
        warm_up = min(1.0, (self.step + 1) / WARM_UP_STEPS)
        decay = 0.5 + 0.5 * math.cos(math.pi * min(progress, 1.0))
        for group in self._optimizer.param_groups:
            group["lr"] = group["peak"] * warm_up * (0.01 + 0.99 * decay)

    def _step(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> float:
        features = self.model.backbone(self._inputs(image_rows, rng))
        loss = self._caption_loss(self.model.image(features), image_rows, rng)
        if self.model.labels is not None and self.train.labels is not None:
            logits = self.model.labels(features)
            of_labels = label_loss(logits, self.train.labels, image_rows)
            loss = loss + self.options.label_loss_weight * of_labels
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self._optimizer.step()
        self.averaged.update_parameters(self.model)
        return float(loss.detach())

    def _inputs(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """The batch's images, each in a random view."""
        views = rng.integers(len(self.train.inputs), size=len(image_rows))
        inputs = np.stack(
            [self.train.inputs[view, row] for view, row in zip(views, image_rows, strict=True)]
        )
        return torch.from_numpy(inputs.astype(np.float32))

    def _caption_loss(
        self, images: Tensor, image_rows: NDArray[np.int64], rng: np.random.Generator
    ) -> Tensor:
        """Captions against images, and against each other where an image has several."""
        drawn: list[_Side] = []
        distances: list[Tensor] = []
        for language in self.train.captions:
            for rows, captions in self._draws(language, image_rows, rng):
                if len(rows) > 1:
                    drawn.append((rows, self._texts(language, captions)))
                    distances += self._distillation.distances(language, captions, drawn[-1][1])
        if not drawn:
            raise TrainingProblem("a batch without captions: the training split has too few")
        everything = np.arange(len(images))
        loss = self._mean_loss([(one, (everything, images)) for one in drawn], self.model.scale)
        for language, rows in self._distillation.without_image(rng):
            texts = self._texts(language, rows)
            distances += self._distillation.distances(language, rows, texts)
        if distances:
            loss = loss + self.options.distillation_weight * torch.cat(distances).mean()
        if not self.options.caption_loss_weight:
            return loss
        pairs = [pair for pair in combinations(drawn, 2) if len(_common(*pair)) > 1]
        between = self._mean_loss(pairs, self.model.caption_scale) if pairs else 0.0
        return loss + self.options.caption_loss_weight * between

    def _mean_loss(self, pairs: Sequence[tuple[_Side, _Side]], log_scale: Tensor) -> Tensor:
        """The loss of one side's captions against the other side, a mean over the captions."""
        scale = log_scale.exp().clamp(max=100.0)
        parts, counts = [], []
        for (rows, texts), (other_rows, vectors) in pairs:
            common = np.flatnonzero(np.isin(rows, other_rows))
            targets = torch.from_numpy(np.searchsorted(other_rows, rows[common]))
            parts.append(LOSSES[self.options.loss](texts[common], vectors, targets, scale))
            counts.append(len(common))
        total = sum((part * count for part, count in zip(parts, counts, strict=True)), 0.0)
        return cast(Tensor, total) / sum(counts)

    def _texts(self, language: str, captions: NDArray[np.int64]) -> Tensor:
        """Unit rows; not normalised in the feature space, where eq. 2 and MSE measure distances."""
        sentences = batch_of(self.train.captions[language], captions)
        if self.options.space == "feature":
            assert isinstance(self.model.text, TextNetwork)
            return self.model.text.raw(sentences, language)
        return self.model.text(sentences, language)  # type: ignore[no-any-return]

    def _draws(
        self, language: str, image_rows: NDArray[np.int64], rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """(rows in the batch, captions) `captions_per_image` times, without repeating a caption."""
        mixed = [rng.permutation(self._rows[language][row]) for row in image_rows]
        for draw in range(self.options.captions_per_image):
            having = [at for at, captions in enumerate(mixed) if len(captions) > draw]
            yield np.array(having, np.int64), np.array([mixed[at][draw] for at in having], np.int64)

    def save(self) -> None:
        """Write a checkpoint that `resume` can continue from."""
        if self.checkpoint is None:
            return
        optimizer = self._optimizer.state_dict()
        write_checkpoint(
            self.checkpoint,
            Checkpoint(
                model=self.model.state_dict(),
                averaged=self.averaged.state_dict(),
                best_weights=self.best_weights,
                optimizer_tensors={
                    f"{number}.{name}": value
                    for number, state in optimizer["state"].items()
                    for name, value in state.items()
                },
                optimizer_groups=optimizer["param_groups"],
                epoch=self.epoch,
                step=self.step,
                best=self.best,
            ),
        )

    def resume(self) -> None:
        """Continue from the checkpoint, if there is one; TrainingProblem if it does not fit."""
        if self.checkpoint is None or not self.checkpoint.is_file():
            return
        stored = read_checkpoint(self.checkpoint)
        try:
            self.model.load_state_dict(stored.model)
        except RuntimeError as problem:
            raise TrainingProblem(
                f"{self.checkpoint} belongs to another data set or configuration; "
                "remove it or choose another --output"
            ) from problem
        self.averaged.load_state_dict(stored.averaged)
        self.best_weights = dict(stored.best_weights)
        self._load_optimizer(stored)
        self.epoch, self.step, self.best = stored.epoch, stored.step, stored.best

    def _load_optimizer(self, stored: Checkpoint) -> None:
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        state: dict[int, dict[str, Tensor]] = {}
        for key, value in stored.optimizer_tensors.items():
            number, name = key.split(".", 1)
            parameter = parameters[int(number)]
            if value.shape == parameter.shape:
                # In the parameter's memory format, for results equal to the last bit.
                value = torch.empty_like(parameter, requires_grad=False).copy_(value)
            state.setdefault(int(number), {})[name] = value
        self._optimizer.load_state_dict({"state": state, "param_groups": stored.optimizer_groups})


def _parameter_groups(model: DualEncoder, options: TrainingOptions) -> Iterator[dict[str, Any]]:
    """The backbone's parts, whose lr rises from two thirds of `backbone_lr`; and the rest."""
    parts = [child for child in model.backbone.children() if any(True for _ in child.parameters())]
    for at, part in enumerate(parts):
        lr = options.backbone_lr * (2 + at / max(len(parts) - 1, 1)) / 3
        yield {"params": list(part.parameters()), "lr": lr, "peak": lr}
    scales = [model.scale, model.caption_scale]
    grouped = {id(p) for p in (*model.backbone.parameters(), *scales)}
    rest = [p for p in model.parameters() if id(p) not in grouped]
    common = {"lr": options.lr, "peak": options.lr}
    yield {"params": rest, **common}
    yield {"params": scales, "weight_decay": 0.0, **common}


def _common(one: _Side, other: _Side) -> NDArray[np.int64]:
    return np.intersect1d(one[0], other[0], assume_unique=True)


def _averaged(model: DualEncoder, steps: float) -> torch.optim.swa_utils.AveragedModel:
    """An exponential moving average of the weights over about `steps` steps.

    It starts with a faster decay, so that the random initial weights are soon forgotten.
    """
    decay = 1.0 - 1.0 / max(steps, 1.0)

    def blend(average: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
        current_decay = min(decay, 1.0 - 1.0 / (float(count) / 4.0 + 2.0))
        return average.lerp(now, 1.0 - current_decay)

    return torch.optim.swa_utils.AveragedModel(model, avg_fn=blend)
