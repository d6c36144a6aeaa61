"""The training loop that all trainers share: epochs, learning rate, averaging, checkpoints.

A checkpoint is one safetensors file, with the counters as JSON in its header: nothing is pickled,
and tensors and counters always belong together.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.atomic import replacing
from capsearch.encoders.data.features import Report
from capsearch.encoders.train.dual_encoder import TrainingOptions
from capsearch.engine.errors import TrainingProblem

# The weight of the fine-tuned parameters; the rest is that of the initial ones.
INTERPOLATIONS = (0.75, 0.5, 0.25)


@dataclass(frozen=True, slots=True)
class Epoch:
    """The scores of one epoch: one line of the log."""

    number: int
    loss: float
    validation: Mapping[str, float]  # `metric` by language
    best: bool
    metric: str = "MRR"

    @property
    def score(self) -> float:
        """Mean over the languages; the epoch with the highest one is exported."""
        return sum(self.validation.values()) / max(len(self.validation), 1)


def interpolate_weights(
    model: nn.Module,
    initial: Mapping[str, Tensor],
    best: Epoch,
    scores: Callable[[], Mapping[str, float]],
) -> Epoch:
    """Interpolate `model` with its `initial` weights where that validates better.

    WiSE-FT (Wortsman et al. 2022): fine-tuned and initial weights lie in one basin of the loss,
    and models between them overfit the training images less. `scores` measures the weights that
    `model` has at the time; `best` and the result have the scores of the model as it is given and
    as it is left.
    """
    tuned = {name: value.clone() for name, value in model.state_dict().items()}
    chosen = tuned
    for weight in INTERPOLATIONS:
        mixed = {name: torch.lerp(initial[name], value, weight) for name, value in tuned.items()}
        model.load_state_dict(mixed)
        candidate = replace(best, validation=scores())
        if candidate.score > best.score:
            best, chosen = candidate, mixed
    model.load_state_dict(chosen)
    return best


SCHEMA = 1
_HEADER = "capsearch"  # the metadata key of the JSON

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Everything a Trainer needs to continue; random numbers follow from seed and epoch."""

    model: Weights
    averaged: Weights  # the exponential moving average
    best_weights: Weights
    optimizer_tensors: Weights  # "PARAMETER.NAME", as in 3.exp_avg
    optimizer_groups: Sequence[dict[str, Any]]
    epoch: int
    step: int
    best: Epoch | None


_TENSORS = ("model", "averaged", "best_weights", "optimizer_tensors")


def write_checkpoint(path: Path, checkpoint: Checkpoint) -> None:
    """Replace the file atomically."""
    from safetensors.torch import save_file

    tensors = {
        f"{part}/{name}": value.contiguous()
        for part in _TENSORS
        for name, value in getattr(checkpoint, part).items()
    }
    header = {
        "schema": SCHEMA,
        "epoch": checkpoint.epoch,
        "step": checkpoint.step,
        "best": asdict(checkpoint.best) if checkpoint.best else None,
        "optimizer_groups": checkpoint.optimizer_groups,
    }
    with replacing(path) as temporary:
        save_file(tensors, temporary, metadata={_HEADER: json.dumps(header)})


def read_checkpoint(path: Path) -> Checkpoint:
    """TrainingProblem for a file that this version did not write."""
    from safetensors import SafetensorError, safe_open

    tensors: dict[str, dict[str, Tensor]] = {part: {} for part in _TENSORS}
    try:
        with safe_open(path, framework="pt") as stored:
            header = json.loads((stored.metadata() or {})[_HEADER])
            if header["schema"] != SCHEMA:
                raise KeyError(f"schema {header['schema']}")
            for key in stored.keys():  # noqa: SIM118
                part, name = key.split("/", 1)
                tensors[part][name] = stored.get_tensor(key)
    except (SafetensorError, OSError, KeyError, ValueError) as problem:
        raise TrainingProblem(
            f"{path} is no checkpoint of this version ({problem}); remove it to start again"
        ) from problem
    return Checkpoint(
        **tensors,
        optimizer_groups=header["optimizer_groups"],
        epoch=header["epoch"],
        step=header["step"],
        best=Epoch(**header["best"]) if header["best"] else None,
    )


WARM_UP_STEPS = 50


class TrainingLoop(ABC):
    """Trains a network by AdamW; `fit` yields every Epoch, and can be interrupted and resumed.

    A subclass gives the loss of a batch and the scores on validation. `averaged` is an
    exponential moving average of the weights: it is validated, and its best state exported.
    """

    metric = "MRR"  # what `validate` measures

    def __init__(
        self,
        model: nn.Module,
        groups: Iterable[dict[str, Any]],
        images: int,
        options: TrainingOptions,
        checkpoint: Path | None = None,
    ) -> None:
        self.model = model
        self.images = images
        self.options = options
        self.checkpoint = checkpoint
        self.epoch = 0
        self.step = 0
        self.best: Epoch | None = None
        self.best_weights: dict[str, Tensor] = {}
        self.averaged = _averaged(model, options.ema_epochs * self._steps_per_epoch)
        self._optimizer = torch.optim.AdamW(list(groups), weight_decay=options.weight_decay)

    @abstractmethod
    def loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """The loss of a batch of training images."""

    @abstractmethod
    def validate(self) -> Mapping[str, float]:
        """The metric on validation of the averaged weights, by language."""

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
        return min(self.options.batch_size, self.images)

    @property
    def _steps_per_epoch(self) -> int:
        return self.images // self._batch_size

    def _improving(self) -> bool:
        return self.best is None or self.epoch - self.best.number < self.options.patience

    def _evaluated(self, loss: float) -> Epoch:
        """The scores of the epoch just trained; remembers the best weights, saves a checkpoint."""
        if not math.isfinite(loss):
            raise TrainingProblem(f"the loss is {loss} in epoch {self.epoch}; try a lower --lr")
        epoch = Epoch(self.epoch, loss, self.validate(), best=True, metric=self.metric)
        if self.best is not None and epoch.score <= self.best.score:
            epoch = replace(epoch, best=False)
        else:
            self.best = epoch
            self.best_weights = {k: v.clone() for k, v in self.averaged.module.state_dict().items()}
        self.save()
        return epoch

    def _epoch(self, rng: np.random.Generator, report: Report | None) -> float:
        self.model.train()
        losses = []
        order, size = rng.permutation(self.images), self._batch_size
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
        loss = self.loss(image_rows, rng)
        self._optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 10.0)
        self._optimizer.step()
        self.averaged.update_parameters(self.model)
        return float(loss.detach())

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


def one_group(parameters: Iterable[nn.Parameter], lr: float) -> Sequence[dict[str, Any]]:
    """All parameters with one peak learning rate."""
    return [{"params": list(parameters), "lr": lr, "peak": lr}]


def _averaged(model: nn.Module, steps: float) -> torch.optim.swa_utils.AveragedModel:
    """An exponential moving average of the weights over about `steps` steps.

    It starts with a faster decay, so that the random initial weights are soon forgotten.
    """
    decay = 1.0 - 1.0 / max(steps, 1.0)

    def blend(average: Tensor, now: Tensor, count: Tensor | int) -> Tensor:
        current_decay = min(decay, 1.0 - 1.0 / (float(count) / 4.0 + 2.0))
        return average.lerp(now, 1.0 - current_decay)

    return torch.optim.swa_utils.AveragedModel(model, avg_fn=blend)
