"""The activation cache: outputs of frozen layers, memory-mapped and resumable.

For fine-tuning a backbone these are the activations before its trained blocks (`LowerBlocks`), for
training a captioner its feature maps (`load_feature_maps`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.atomic import write_text
from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.data.features import Report, decoded_batches
from capsearch.encoders.models.image import ImageNetwork
from capsearch.engine.errors import DataProblem, TrainingProblem
from capsearch.engine.records import ImageFeatures, Pixels, Vectors

if TYPE_CHECKING:
    from PIL.Image import Image


class FrozenLayers(Protocol):
    """What fills the cache."""

    @property
    def name(self) -> str:
        """Of the weights: caches of different names are not comparable."""
        ...

    def preprocess(self, image: Image) -> Pixels:
        """The pixels that `activations` takes, from an opened image."""
        ...

    def activations(self, pixels: list[Pixels]) -> tuple[NDArray[np.float16], Vectors]:
        """(N, ...) activations, and (N, F) features, of N images."""
        ...


@dataclass(frozen=True, slots=True)
class Activations:
    """(N, ...) activations and (N, F) features of the readable images, in order of `data`.

    `data` has the images of all parts, and can read only those of the first.
    """

    data: CaptionDataset
    values: NDArray[Any]
    features: Vectors
    rows: NDArray[np.int64]  # (N,) of these images among those of all parts


@dataclass(frozen=True, slots=True)
class _CacheFiles:
    """The files of one cache: two arrays, and the rows that they already hold."""

    folder: Path
    key: str
    count: int  # rows

    @property
    def values(self) -> Path:
        return self.folder / f"{self.key}.activations.npy"

    @property
    def features(self) -> Path:
        return self.folder / f"{self.key}.features.npy"

    @property
    def done(self) -> Path:
        return self.folder / f"{self.key}.rows.json"


def load_activations(
    layers: FrozenLayers,
    parts: Sequence[CaptionDataset],
    folder: Path,
    report: Report | None = None,
) -> Activations:
    """Compute what the cache lacks, and map it.

    The rows are the images of all `parts`, in order. The finished rows are written after every
    batch, so an interrupted run continues with the next one. DataProblem when no image can be read.
    """
    images = [image for part in parts for image in part.images]
    files = _CacheFiles(folder, _key(layers, images), len(images))
    folder.mkdir(parents=True, exist_ok=True)
    done = set(json.loads(files.done.read_text("utf-8"))) if files.done.is_file() else set()
    start = 0
    for part in parts:
        rows = {image.id: row for row, image in enumerate(part.images, start)}
        missing = [image for image in part.images if rows[image.id] not in done]
        if missing:
            _fill(layers, part.only(missing), files, rows, done, report)
        start += len(part)
    readable = np.array(sorted(done), np.int64)
    if not len(readable):
        raise DataProblem("none of the images can be read; check the archives")
    data = parts[0].only([images[row] for row in readable])
    values, features = np.load(files.values, mmap_mode="r"), np.load(files.features)
    if len(readable) < len(images):
        values, features = values[readable], features[readable]
    return Activations(data, values, features, readable)


def is_complete(layers: FrozenLayers, parts: Sequence[CaptionDataset], folder: Path) -> bool:
    """Whether the cache has every image of all `parts`."""
    images = [image for part in parts for image in part.images]
    done = _CacheFiles(folder, _key(layers, images), len(images)).done
    return done.is_file() and len(json.loads(done.read_text("utf-8"))) == len(images)


def _fill(
    layers: FrozenLayers,
    missing: CaptionDataset,
    files: _CacheFiles,
    rows: Mapping[str, int],
    done: set[int],
    report: Report | None,
) -> None:
    arrays: list[NDArray[np.generic]] = []
    for ids, pixels in decoded_batches(missing, layers.preprocess):
        values, features = layers.activations(pixels)
        arrays = arrays or [
            _mapped(files.values, values, files.count),
            _mapped(files.features, features, files.count),
        ]
        at = [rows[image_id] for image_id in ids]
        arrays[0][at], arrays[1][at] = values, features
        done.update(at)
        write_text(files.done, json.dumps(sorted(done)))
        if report:
            report(len(done), files.count)


def _mapped(path: Path, like: NDArray[np.generic], count: int) -> NDArray[np.generic]:
    shape = (count, *like.shape[1:])
    mode = "r+" if path.is_file() else "w+"
    return np.lib.format.open_memmap(path, mode, like.dtype, shape)


def _key(layers: FrozenLayers, images: Sequence[CaptionedImage]) -> str:
    parts: Sequence[str] = [layers.name, *(image.id for image in images)]
    return f"{layers.name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class EncodedImages:
    """Readable images of a split and their features, row by row; the maps are memory-mapped."""

    data: CaptionDataset
    pooled: Vectors  # (N, F)
    grid: NDArray[np.float16]  # (N, G, C)

    def __len__(self) -> int:
        return len(self.pooled)

    def at(self, rows: NDArray[np.int64]) -> ImageFeatures:
        """Some rows, as float32."""
        grid = np.stack([self.grid[row] for row in rows]) if len(rows) else self.grid[:0]
        return ImageFeatures(self.pooled[rows].astype(np.float32), grid.astype(np.float32))

    def only(self, rows: NDArray[np.int64]) -> EncodedImages:
        """Some of the images."""
        images = [self.data.images[row] for row in rows]
        return replace(
            self, data=self.data.only(images), pooled=self.pooled[rows], grid=self.grid[rows]
        )


@dataclass(frozen=True, slots=True)
class _MapEncoder:
    """A backbone as the frozen layers of an activation cache."""

    backbone: ImageNetwork

    @property
    def name(self) -> str:
        return f"{self.backbone.name}-{self.backbone.digest}"

    def preprocess(self, image: Image) -> Pixels:
        return self.backbone.preprocess(image)

    def activations(self, pixels: list[Pixels]) -> tuple[NDArray[np.float16], Vectors]:
        features = self.backbone.feature_maps(pixels)
        if features.grid is None:
            raise TrainingProblem(
                f"the backbone {self.backbone.name} has no feature map, which a captioner attends "
                "to; choose another --backbone, or train one"
            )
        return features.grid.astype(np.float16), features.pooled


def load_feature_maps(
    backbone: ImageNetwork,
    data: CaptionDataset,
    folder: Path,
    report: Report | None = None,
    whole: CaptionDataset | None = None,
) -> EncodedImages:
    """The images that can be read with their features and feature maps.

    The cache takes G x C x 2 bytes an image. If it has all images of `whole`, of which `data` are
    some, they are taken from there. TrainingProblem for a backbone without maps.
    """
    layers = _MapEncoder(backbone)
    if whole is None or len(whole) == len(data) or not is_complete(layers, [whole], folder):
        own = load_activations(layers, [data], folder, report)
        return EncodedImages(own.data, own.features, own.values)
    cached = load_activations(layers, [whole], folder, report)
    row_of = {image.id: row for row, image in enumerate(cached.data.images)}
    rows = np.array([row_of[image.id] for image in data.images], np.int64)
    return EncodedImages(data, cached.features[rows], cached.values[rows])
