"""Images indexed a second: decoding, encoding and storing alone, all together, and a peer.

The peer is what CLIP tools of the kind of rclip do: Pillow, then ViT-B/32 in torch, batch by batch.
Its weights are random, which takes the same time as trained ones.

ViT-B/32, the image tower that CLIP tools use, in plain torch with random weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from capsearch.benchmarks import timing
from capsearch.benchmarks.timing import Measurement, rate, rounds
from capsearch.encoders.images.open import MAX_PIXELS
from capsearch.encoders.models import registry
from capsearch.encoders.models.image import TUNED_AFTER
from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Pixels, Vectors
from capsearch.indexer import pipeline
from capsearch.indexer.prepare import Prepared, prepare_all
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.collection import Collection

PART = "indexing"
# (width, height) of the files, and how many of them: web images, and photos of 12 megapixels.
SETS = (((640, 480), 96), ((4000, 3000), 12))
PEER_BATCHES = (1, 8, 32)
_REPEATS = 3


@dataclass(frozen=True)
class Instant:
    """An image encoder that neither decodes nor encodes: what is left is reading and storing."""

    encoder: Any

    def __getattr__(self, name: str) -> Any:
        return getattr(self.encoder, name)

    def preprocess(self, image: Image.Image) -> Pixels:
        """No pixels."""
        return np.zeros((1, 1, 3), np.uint8)

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """Zeros."""
        return np.zeros((len(pixels), self.encoder.feature_dimension), np.float32)


def measure(name: str | None, repeats: int) -> Iterator[Measurement]:
    """Every set of files with one model."""
    model = registry.load(name)
    for size, count in SETS:
        with TemporaryDirectory() as folder:
            files = written(Path(folder), size, count)
            yield from time_indexing(model, files, f"{size[0]} x {size[1]}", min(repeats, _REPEATS))


def written(folder: Path, size: tuple[int, int], count: int) -> list[ImageFile]:
    """Synthetic JPEG files."""
    files = []
    for number, content in enumerate(timing.synthetic_images(count, size=size)):
        path = folder / f"{number}.jpg"
        path.write_bytes(content)
        files.append(ImageFile(str(path), 1, len(content)))
    return files


def time_indexing(
    model: Model, files: Sequence[ImageFile], label: str, repeats: int
) -> Iterator[Measurement]:
    """Rates of the parts by themselves, of the whole, and of the peer if torch is there."""
    pixels = _decoded(model, files)
    while len(pixels) <= TUNED_AFTER:
        pixels += pixels
    model.image.features(pixels)  # so that the fastest way is known
    pixels = pixels[: len(files)]
    instant = replace(model, image=Instant(model.image))
    actions = {
        "decoded": lambda: _decoded(model, files),
        "encoded": lambda: model.image.features(pixels),
        "read and stored": lambda: index(instant, files),
        "indexed": lambda: index(model, files),
    }
    taken = rounds(actions, repeats)
    lines = {
        name: rate(PART, f"{label}: {name}, {model.name}", [len(files)] * repeats, seconds)
        for name, seconds in taken.items()
    }
    together = [sum(parts) for parts in zip(taken["decoded"], taken["encoded"], strict=True)]
    both = rate(PART, f"{label}: decoded, then encoded", [len(files)] * repeats, together)
    yield from (lines[name] for name in ("decoded", "encoded", "read and stored"))
    yield both
    yield lines["indexed"].against(both)
    if find_spec("torch") is not None:
        peer = time_peer(files, label)
        yield peer
        yield replace(lines["indexed"], name=f"{lines['indexed'].name}, to the peer").against(peer)


def index(model: Model, files: Sequence[ImageFile]) -> None:
    """Indexes the folder of the files anew."""
    with TemporaryDirectory() as folder, Collection.create(Path(folder), model) as collection:
        pipeline.index(collection, [Path(files[0].path).parent])


def time_peer(files: Sequence[ImageFile], label: str) -> Measurement:
    """The rate of the batch size that is best for it."""

    loop, paths = TorchLoop(), [Path(file.path) for file in files]
    ways = {str(batch): partial(loop.encode, paths, batch) for batch in PEER_BATCHES}
    loop.encode(paths[:1], 1)  # allocates
    taken = rounds(ways, repeats=1, warm_up=0)
    batch, [seconds] = min(taken.items(), key=lambda item: item[1][0])
    return rate(PART, f"{label}: ViT-B/32 in torch, batches of {batch}", [len(files)], [seconds])


def _decoded(model: Model, files: Sequence[ImageFile]) -> list[Pixels]:
    outcomes = prepare_all(files, (), model.image.preprocess, MAX_PIXELS, ahead=len(files))
    prepared = [one.decoded for one in outcomes if isinstance(one, Prepared)]
    return [one.pixels for one in prepared if one is not None]


SIZE, PATCH, WIDTH, HEADS, LAYERS, OUTPUT = 224, 32, 768, 12, 12, 512


class VisionTransformer(nn.Module):
    """4.4 GMAC an image, 88 million weights."""

    def __init__(self) -> None:
        super().__init__()
        tokens = (SIZE // PATCH) ** 2 + 1
        self.patches = nn.Conv2d(3, WIDTH, PATCH, PATCH, bias=False)
        self.classes = nn.Parameter(torch.randn(1, 1, WIDTH) * WIDTH**-0.5)
        self.positions = nn.Parameter(torch.randn(1, tokens, WIDTH) * WIDTH**-0.5)
        layer = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, 0.0, nn.functional.gelu, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=False)
        self.project = nn.Linear(WIDTH, OUTPUT, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, 224, 224) -> (N, 512)."""
        patches = self.patches(images).flatten(2).transpose(1, 2)  # (N, 49, 768)
        tokens = torch.cat([self.classes.expand(len(images), -1, -1), patches], dim=1)
        projected: Tensor = self.project(self.layers(tokens + self.positions)[:, 0])
        return projected


class TorchLoop:
    """Opens, resizes and encodes files one batch after another, as such tools do."""

    def __init__(self) -> None:
        self._network = VisionTransformer().eval()

    def encode(self, paths: Sequence[Path], batch: int) -> None:
        """Encodes all files."""
        with torch.inference_mode():
            for start in range(0, len(paths), batch):
                images = [_pixels(path) for path in paths[start : start + batch]]
                self._network(torch.from_numpy(np.stack(images)))


def _pixels(path: Path) -> np.ndarray:
    """(3, 224, 224), the centre of an image as CLIP crops it."""
    with Image.open(path) as image:
        scale = SIZE / min(image.size)
        small = image.convert("RGB").resize(
            (round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC
        )
    left, top = (small.width - SIZE) // 2, (small.height - SIZE) // 2
    crop = np.asarray(small.crop((left, top, left + SIZE, top + SIZE)), np.float32)
    return np.ascontiguousarray((crop / 127.5 - 1.0).transpose(2, 0, 1))
