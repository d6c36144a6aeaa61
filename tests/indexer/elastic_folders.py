"""Folders of images for the tests of collections in a cluster."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

TEXTS = ("a red car", "一只猫", "海と花です")


def many_images(root: Path, images: int, seed: int = 0) -> Path:
    """Different images in the folders a and b, each third with captions."""
    rng = np.random.default_rng(seed)
    for n in range(images):
        path = root / "ab"[n % 2] / f"{n:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = rng.integers(0, 256, (4, 4, 3), np.uint8)
        Image.fromarray(pixels).resize((16, 16), Image.Resampling.NEAREST).save(path)
        if n % 3 == 0:
            path.with_suffix(".txt").write_text(f"{TEXTS[n % 9 // 3]}\nimage {n}", encoding="utf-8")
    return root
