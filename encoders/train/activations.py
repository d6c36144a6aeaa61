"""The activation cache: outputs of frozen layers, memory-mapped and resumable.

For fine-tuning a backbone these are the activations before its trained blocks, for training a
tagger or a captioner its feature maps.

Networks as ONNX graphs: what a backbone folder serves, and what fills the activation cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.atomic import write_text
from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.data.features import Report, decoded_batches
from capsearch.encoders.models import model_folder
from capsearch.encoders.models.image import GRID
from capsearch.encoders.train.trunk import Trunk
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Pixels, Vectors

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


OPSET = 18  # the oldest that torch's exporter writes without converting
OUTPUTS = ("features", GRID)
MIN_HALVED = 64  # entries; smaller tensors stay float32


class StandardisedBackbone(nn.Module):
    """The graph of a served backbone: uint8 pixels in, features and feature map out."""

    def __init__(self, network: Trunk, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.network = network
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """(N, S, S, 3) uint8 -> (N, F) standardised features, (N, G, F) feature map."""
        cells = self.network.feature_map(self.network.lower(self.network.scale(pixels), 0), 0)
        features = cells.mean((2, 3))
        return (features - self.mean) / self.deviation, cells.flatten(2).transpose(1, 2)


def export_backbone(
    network: Trunk,
    size: int,
    mean: Tensor,
    deviation: Tensor,
    folder: Path,
    card: dict[str, Any],
) -> None:
    """Write a backbone folder; its float16 weights are cast to float32 when a session opens."""
    folder.mkdir(parents=True, exist_ok=True)
    served = StandardisedBackbone(network, mean, deviation).eval().requires_grad_(False)
    to_onnx(served, size, folder / "backbone.onnx", OUTPUTS)
    _halve_file(folder / "backbone.onnx")
    common = {"kind": "backbone", "input_size": size, "dimension": len(mean)}
    model_folder.write_card(folder, {**common, **card, "digest": model_folder.digest(folder)})


def to_onnx(module: nn.Module, size: int, to: Path, outputs: Sequence[str]) -> None:
    """A graph from `pixels` (N, size, size, 3) uint8 to `outputs`, for any N.

    Weights keep their names and values, so that they can be read back.
    """
    # Two images, not one: torch.export specialises a dimension of size 1 to that size.
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    shapes = {0: torch.export.Dim("images")}
    write_graph(module, example, shapes, ["pixels", *outputs], to, keep_weights=True)


def write_graph(
    module: nn.Module,
    example: Tensor,
    shapes: Mapping[int, Any],
    names: Sequence[str],
    to: Path,
    external_data: bool = False,
    keep_weights: bool = False,
) -> None:
    """The graph of a module with one input; `names` are that of the input and of the outputs.

    `shapes` are the dimensions of the input that may change. With `external_data`, weights lie
    beside the graph, which may then be larger than protobuf's two gigabytes. With `keep_weights`,
    they are those of the module by name: none is transposed or otherwise folded.
    """
    with _without_exporter_warnings():
        program = torch.onnx.export(
            module,
            (example,),
            input_names=[names[0]],
            output_names=list(names[1:]),
            dynamic_shapes=(dict(shapes),),
            opset_version=OPSET,
            dynamo=True,
            optimize=not keep_weights,
            verbose=False,
        )
        assert program is not None  # as there was no file to write to
        if keep_weights:
            _optimize_around_weights(program.model)
        program.save(to, external_data=external_data)


def _optimize_around_weights(model: Any) -> None:
    """What the exporter does by default, but for nodes that take a weight."""
    from onnxscript.optimizer import optimize_ir

    def folded(node: Any) -> bool | None:
        weights = [one for one in node.inputs if one is not None and one.is_initializer()]
        return False if weights else None  # None: as by default

    optimize_ir(model, should_fold=folded)


@contextmanager
def _without_exporter_warnings() -> Iterator[None]:
    """Hides what the exporter reports about itself: no torchvision, its own deprecations."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _halve_file(path: Path) -> None:
    import onnx

    model = onnx.load(path)
    halve(model)
    onnx.checker.check_model(model)
    onnx.save(model, path)


def halve(model: Any) -> None:
    """Store large float32 weights as float16 behind a Cast, which the runtime folds at start."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for weight in model.graph.initializer:
        if weight.data_type != TensorProto.FLOAT or np.prod(weight.dims) < MIN_HALVED:
            continue
        half = numpy_helper.from_array(
            numpy_helper.to_array(weight).astype(np.float16), f"{weight.name}.half"
        )
        casts.append(helper.make_node("Cast", [half.name], [weight.name], to=TensorProto.FLOAT))
        weight.CopyFrom(half)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
