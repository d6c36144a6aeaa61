"""From an image file to the pixels that an image encoder takes.

Size, squash or crop, and interpolation belong to the image encoder: its `preprocess` calls one of
the functions here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from capsearch.encoders.images.open import (
    MAX_PIXELS,
    flat_rgb,
    is_flat,
    opened,
    turned,
    upright_size,
)
from capsearch.engine.records import Pixels

Preprocess: TypeAlias = Callable[[Image.Image], Pixels]
_DRAFT_FACTOR = 2  # JPEG may be decoded this many times larger than needed, no larger


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as its encoder takes it, with the upright size and the format of the file."""

    pixels: Pixels
    width: int
    height: int
    format: str


def decode(
    source: Path | bytes, preprocess: Preprocess, max_pixels: int = MAX_PIXELS
) -> DecodedImage:
    """Decode an image file with `preprocess`; of an animation the first frame.

    InvalidImage, with the reason, if the bytes are not a complete image. An image of more than
    `max_pixels` is refused by its header, before memory is allocated for it.
    """
    with opened(source, max_pixels) as image:
        return decode_opened(image, preprocess)


def decode_opened(image: Image.Image, preprocess: Preprocess) -> DecodedImage:
    """`decode` for an image from `image_files.opened`; call it inside that block."""
    width, height = upright_size(image)
    kind = image.format or "unknown"  # read first: loading pixels may replace the image
    return DecodedImage(preprocess(image), width, height, kind)


def squash(image: Image.Image, size: int, resample: str = "bilinear") -> Pixels:
    """(size, size, 3) pixels of the whole image: squashed, upright, over white if transparent."""
    flat = _flat(image, size)
    small = flat.resize((size, size), Image.Resampling[resample.upper()])
    return np.asarray(turned(small, image))


def crop(image: Image.Image, size: int, resample: str = "bilinear") -> Pixels:
    """(size, size, 3) pixels of the largest square in the middle, as CLIP was trained."""
    flat = _flat(image, size)
    width, height = flat.size
    side = min(width, height)
    left, top = (width - side) / 2, (height - side) / 2
    # Cropped before resizing: a narrow panorama would become huge if its short side grew first.
    small = flat.resize(
        (size, size), Image.Resampling[resample.upper()], (left, top, left + side, top + side)
    )
    return np.asarray(turned(small, image))


def pad(image: Image.Image, size: int, resample: str = "bilinear") -> Pixels:
    """(size, size, 3) pixels of the whole image in its proportions, in the middle of black."""
    flat = _flat(image, size)
    scale = size / max(flat.size)
    width, height = (max(round(side * scale), 1) for side in flat.size)
    small = flat.resize((width, height), Image.Resampling[resample.upper()])
    square = Image.new("RGB", (size, size))
    square.paste(small, ((size - width) // 2, (size - height) // 2))
    return np.asarray(turned(square, image))


# By open_clip's names of what happens to the sides of an image.
RESIZES: Mapping[str, Callable[[Image.Image, int, str], Pixels]] = {
    "squash": squash,
    "shortest": crop,
    "longest": pad,
}


def _flat(image: Image.Image, size: int) -> Image.Image:
    """The image in RGB; a JPEG decoded no larger than needed."""
    image.draft("RGB", (_DRAFT_FACTOR * size, _DRAFT_FACTOR * size))
    return image if is_flat(image) else flat_rgb(image)
