"""ViT-B/32, the image tower that CLIP tools use, in plain torch with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

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
