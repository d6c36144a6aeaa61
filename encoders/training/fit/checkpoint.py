"""Checkpoints of a training run: one safetensors file, with the counters as JSON in its header.

Nothing is pickled, and because it is one file, tensors and counters always belong together.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from capsearch.encoders.atomic import replacing
from capsearch.encoders.training.fit.validation import Epoch
from capsearch.engine.errors import TrainingProblem

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
