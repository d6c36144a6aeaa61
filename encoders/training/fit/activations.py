"""Activations of a frozen lower half, computed once: large, memory-mapped, resumable."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.datasets.features import Report, decoded_batches
from capsearch.encoders.training.nn.backbone import LowerBlocks
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Vectors


@dataclass(frozen=True, slots=True)
class Activations:
    """(N, H, W, C) and (N, F) of the photos that have an image, in the order of `data`."""

    data: CaptionDataset
    values: NDArray[np.float16]
    features: Vectors


@dataclass(frozen=True, slots=True)
class _Place:
    """The files of one cache: two arrays and which photos they already hold."""

    folder: Path
    key: str

    @property
    def values(self) -> Path:
        return self.folder / f"{self.key}.activations.npy"

    @property
    def features(self) -> Path:
        return self.folder / f"{self.key}.features.npy"

    @property
    def done(self) -> Path:
        return self.folder / f"{self.key}.done.json"


def load_activations(
    lower: LowerBlocks,
    data: CaptionDataset,
    folder: Path,
    report: Report | None = None,
) -> Activations:
    """Fill the cache where it is not full, and map it.

    A photo's row is its place in `data`; which rows are there is written after every batch,
    so an interrupted run goes on where it stopped.
    """
    place = _Place(folder, _key(lower, data))
    folder.mkdir(parents=True, exist_ok=True)
    done = set(json.loads(place.done.read_text())) if place.done.is_file() else set()
    rows = {photo.id: row for row, photo in enumerate(data.images)}
    missing = [photo for photo in data.images if photo.id not in done]
    if missing:
        _fill(lower, data.only(missing), place, rows, done, report)
    kept = [photo for photo in data.images if photo.id in done]
    if not kept:
        raise DataProblem("none of the photos has a readable image; check the archives")
    values, features = np.load(place.values, mmap_mode="r"), np.load(place.features)
    if len(kept) < len(data):
        at = [rows[photo.id] for photo in kept]
        return Activations(data.only(kept), values[at], features[at])
    return Activations(data, values, features)


def _fill(
    lower: LowerBlocks,
    missing: CaptionDataset,
    place: _Place,
    rows: dict[str, int],
    done: set[str],
    report: Report | None,
) -> None:
    arrays: list[NDArray[np.generic]] = []
    for ids, pixels in decoded_batches(missing, lower.preprocess):
        values, features = lower.activations(pixels)
        arrays = arrays or [
            _mapped(place.values, values, len(rows)),
            _mapped(place.features, features, len(rows)),
        ]
        at = [rows[photo] for photo in ids]
        arrays[0][at], arrays[1][at] = values, features
        done.update(ids)
        _write_whole(place.done, json.dumps(sorted(done)))
        if report:
            report(len(done), len(rows))


def _write_whole(path: Path, text: str) -> None:
    unfinished = path.with_suffix(".tmp")
    unfinished.write_text(text)
    unfinished.replace(path)


def _mapped(path: Path, like: NDArray[np.generic], count: int) -> NDArray[np.generic]:
    shape = (count, *like.shape[1:])
    mode = "r+" if path.is_file() else "w+"
    return np.lib.format.open_memmap(path, mode, like.dtype, shape)


def _key(lower: LowerBlocks, data: CaptionDataset) -> str:
    parts: Sequence[str] = [lower.name, *(photo.id for photo in data.images)]
    return f"{lower.name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"
