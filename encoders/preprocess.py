"""From an image file to the pixels a network wants.

What exactly it wants (size, squash or crop, interpolation) belongs to the image encoder, whose
`preprocess` is one of the functions here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from PIL import Image

from capsearch.encoders.image_files import (
    MAX_PIXELS,
    flat_rgb,
    opened,
    turned,
    upright_size,
)
from capsearch.engine.records import Pixels

Preprocess: TypeAlias = Callable[[Image.Image], Pixels]
_DRAFT_FACTOR = 2  # JPEG may be decoded this many times larger than needed, no larger


@dataclass(frozen=True, slots=True)
class DecodedImage:
    """An image as a network wants it, with the upright size and the format of its file."""

    pixels: Pixels
    width: int
    height: int
    format: str


def decode(
    source: Path | bytes, preprocess: Preprocess, max_pixels: int = MAX_PIXELS
) -> DecodedImage:
    """An image file through `preprocess`; of an animation the first frame.

    InvalidImage, with the reason, for bytes that are not a whole image, and before anything is
    allocated for one of more than `max_pixels`.
    """
    with opened(source, max_pixels) as image:
        return decode_opened(image, preprocess)


def decode_opened(image: Image.Image, preprocess: Preprocess) -> DecodedImage:
    """What `decode` gives for an image that `opened` has opened; call inside its block."""
    width, height = upright_size(image)
    kind = image.format or "unknown"  # before pixels are loaded: loading may replace the image
    return DecodedImage(preprocess(image), width, height, kind)


def squash(image: Image.Image, size: int) -> Pixels:
    """Upright, over white where transparent, the whole scene squashed to `size` squared."""
    image.draft("RGB", (_DRAFT_FACTOR * size, _DRAFT_FACTOR * size))
    small = flat_rgb(image).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(turned(small, image))
