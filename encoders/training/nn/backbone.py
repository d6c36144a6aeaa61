"""Our own eyes: the upper blocks of a network fine-tuned against the captions.

Two cores suffice because the frozen lower blocks run once: their activations lie on disk
(69 kB a photo for lite2, float16) and only the upper blocks, with batch norm folded away,
see the photos again and again. Mirroring and cropping happen on the activations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL.Image import Image
from torch import Tensor, nn

from capsearch.encoders import model_folder
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.image import open_session
from capsearch.encoders.preprocess import squash
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, Labels, TrainingSet, see
from capsearch.encoders.training.nn.efficientnet import (
    FEATURES,
    LITES,
    Block,
    EfficientNetLite,
    load_imagenet,
    scale_pixels,
)
from capsearch.engine.records import Pixels, Vectors

CROP = 5  # rows and columns of activations a training crop may lose
DROP = 0.15  # of the photos skip the last block in training, fewer the earlier ones
PART = 64  # photos that share a crop
MIN_LABEL_COUNT = 30
SAMPLE = 4096  # photos that say how the trained features spread
OPSET = 17


class UpperBlocks(nn.Module):
    """The upper half: activations (N, H, W, C) to standardised features (N, F).

    In training each photo is flipped half of the time and skips a block now and then, and each
    part of the batch loses a few rows and columns. A flipped activation is close to a flipped
    photo's (cosine .88 after the network, where two views of a photo have .91), and costs nothing.
    """

    def __init__(self, network: EfficientNetLite, start: int, mean: Tensor, deviation: Tensor):
        super().__init__()
        self.start = start
        self.blocks = network.blocks[start:]
        self.head = network.head
        for depth, block in enumerate(self.blocks, start=1):
            assert isinstance(block, Block)
            block.drop = DROP * depth / len(self.blocks)
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)
        # A third faster, for nothing is reordered; torch's stubs do not know the argument.
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, activations: Tensor) -> Tensor:
        """(N, F)."""
        x = activations.permute(0, 3, 1, 2)  # stored channels last, which convolutions like
        if self.training:
            features = torch.cat([self._pooled(_varied(part)) for part in torch.split(x, PART)])
        else:
            features = self._pooled(x)
        return (features - self.mean) / self.deviation

    def _pooled(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return nn.functional.relu6(self.head(x)).mean((2, 3))


def _varied(x: Tensor) -> Tensor:
    """A crop of some photos' activations, every other photo flipped."""
    side = x.shape[-1]
    kept = side - int(torch.randint(0, min(CROP, side - 1) + 1, ()))
    top, left = (int(torch.randint(0, side - kept + 1, ())) for _ in range(2))
    x = x[:, :, top : top + kept, left : left + kept]
    flipped = torch.rand(len(x), 1, 1, 1) < 0.5
    return torch.where(flipped, x.flip(3), x).contiguous(memory_format=torch.channels_last)


def labels_of(data: CaptionDataset) -> Labels | None:
    """Objects and human tags as 0/1 columns; None where the data has neither."""
    groups = [[photo.objects for photo in data.images], [photo.tags_zh for photo in data.images]]
    parts = [part for part in map(_columns, groups) if part is not None]
    if not parts:
        return None
    return Labels(
        np.concatenate([values for values, _ in parts], axis=1),
        np.concatenate([known for _, known in parts], axis=1),
    )


def _columns(group: list[tuple[str, ...]]) -> tuple[NDArray[Any], NDArray[Any]] | None:
    counts: dict[str, int] = {}
    for names in group:
        for name in names:
            counts[name] = counts.get(name, 0) + 1
    column = {
        name: at
        for at, name in enumerate(sorted(n for n, c in counts.items() if c >= MIN_LABEL_COUNT))
    }
    if not column:
        return None
    values = np.zeros((len(group), len(column)), np.uint8)
    for row, names in enumerate(group):
        for name in names:
            if name in column:
                values[row, column[name]] = 1
    known = np.array([bool(names) for names in group])[:, None] & np.ones(len(column), np.bool_)
    return values, known


@dataclass(frozen=True)
class LowerBlocks:
    """The frozen blocks as an encoder of images: what the activation cache is filled by."""

    name: str
    network: EfficientNetLite

    @property
    def input_size(self) -> int:
        """Side of the square an image is squashed to."""
        return LITES[self.name].input_size

    def preprocess(self, image: Image) -> Pixels:
        """The whole scene, squashed to the input size."""
        return squash(image, self.input_size)

    def activations(self, pixels: list[Pixels]) -> tuple[NDArray[np.float16], Vectors]:
        """(N, H, W, C) before the first trained block, and the untrained (N, F) features."""
        lower, features = self._session.run(None, {"pixels": np.stack(pixels)})
        return lower.astype(np.float16), features

    @cached_property
    def _session(self) -> Any:
        """The network as it is now in ONNX Runtime, which runs it faster than torch."""
        halves = _Halves(self.network, LITES[self.name].first_trained).eval()
        with TemporaryDirectory() as folder:
            file = Path(folder) / "halves.onnx"
            _to_onnx(halves, self.input_size, file, ["activations", "features"])
            return open_session(file.read_bytes())


class _Halves(nn.Module):
    """Bytes in, activations (N, H, W, C) between the halves and features (N, F) out."""

    def __init__(self, network: EfficientNetLite, start: int) -> None:
        super().__init__()
        self.network = network
        self.start = start

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        lower = self.network.lower(scale_pixels(pixels), self.start)
        return lower.permute(0, 2, 3, 1), self.network.upper(lower, self.start)


def lower_blocks_of(name: str) -> LowerBlocks:
    """The frozen half of an ImageNet network."""
    return LowerBlocks(name, load_imagenet(name).requires_grad_(False))


def upper_blocks_of(lower: LowerBlocks, mean: Tensor, deviation: Tensor) -> UpperBlocks:
    """The half that learns; it shares its weights with the whole network of `lower`."""
    network = lower.network.requires_grad_(True)
    return UpperBlocks(network, LITES[lower.name].first_trained, mean, deviation)


def restandardise(pair: DualEncoder, photos: TrainingSet) -> None:
    """Make the eyes' features mean 0, deviation 1 again; the image vectors stay what they are.

    What is trained on a backbone later (text, tags, captions) starts from such features.
    """
    eyes = pair.backbone
    assert isinstance(eyes, UpperBlocks)
    chosen = np.random.default_rng(0).permutation(len(photos))[:SAMPLE]
    sample = TrainingSet(photos.inputs[:, np.sort(chosen)], {})
    features = torch.from_numpy(see(pair, sample))
    mean, deviation = features.mean(0), features.std(0) + 1e-3
    with torch.no_grad():
        linear = pair.image.linear
        linear.bias.add_(linear.weight @ mean)
        linear.weight.mul_(deviation)
        eyes.mean += eyes.deviation * mean
        eyes.deviation *= deviation


class Served(nn.Module):
    """What the ONNX graph computes: bytes in, standardised features out."""

    def __init__(self, network: EfficientNetLite, mean: Tensor, deviation: Tensor) -> None:
        super().__init__()
        self.network = network
        self.mean: Tensor
        self.deviation: Tensor
        self.register_buffer("mean", mean)
        self.register_buffer("deviation", deviation)

    def forward(self, pixels: Tensor) -> Tensor:
        """(N, S, S, 3) uint8 -> (N, F)."""
        features: Tensor = self.network(scale_pixels(pixels))
        return (features - self.mean) / self.deviation


def export_backbone(
    network: EfficientNetLite,
    lite: str,
    mean: Tensor,
    deviation: Tensor,
    folder: Path,
    card: dict[str, Any],
) -> None:
    """Write a backbone folder: float16 weights, cast to float32 once when the session opens."""
    size = LITES[lite].input_size
    folder.mkdir(parents=True, exist_ok=True)
    served = Served(network, mean, deviation).eval().requires_grad_(False)
    _to_onnx(served, size, folder / "backbone.onnx", ["features"])
    _halve(folder / "backbone.onnx")
    common = {"kind": "backbone", "input_size": size, "dimension": FEATURES}
    model_folder.write_card(folder, {**common, **card, "digest": model_folder.digest(folder)})


def _to_onnx(module: nn.Module, size: int, to: Path, outputs: Sequence[str]) -> None:
    """A graph from bytes (N, size, size, 3) to `outputs`, for any N."""
    torch.onnx.export(
        module,
        (torch.zeros(1, size, size, 3, dtype=torch.uint8),),
        to,
        input_names=["pixels"],
        output_names=list(outputs),
        dynamic_axes={name: {0: "images"} for name in ("pixels", *outputs)},
        opset_version=OPSET,
        dynamo=False,  # the newer exporter needs onnxscript for the same graph
    )


def _halve(path: Path) -> None:
    """Keep large float32 weights as float16 behind a Cast, which the runtime folds at start."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    model = onnx.load(path)
    casts = []
    for weight in model.graph.initializer:
        if weight.data_type != TensorProto.FLOAT or np.prod(weight.dims) < 64:
            continue
        half = numpy_helper.from_array(
            numpy_helper.to_array(weight).astype(np.float16), f"{weight.name}.half"
        )
        casts.append(helper.make_node("Cast", [half.name], [weight.name], to=TensorProto.FLOAT))
        weight.CopyFrom(half)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    onnx.checker.check_model(model)
    onnx.save(model, path)
