"""Opening image files safely: formats, size limit, orientation, colour modes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path

import numpy as np
from PIL import Image, UnidentifiedImageError

from capsearch.engine.errors import InvalidImage

IMAGE_SUFFIXES = frozenset(
    {".jpg", ".jpeg", ".png", ".webp", ".avif", ".gif", ".bmp", ".tif", ".tiff"}
)
HEIF_SUFFIXES = frozenset({".heic", ".heif"})  # these need the extra `heif`
# Pillow's own limit. Raising that one would raise it for the whole process.
MAX_PIXELS = 178_956_970
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


@cache
def heif_supported() -> bool:
    """True when the optional HEIF decoder is installed."""
    return find_spec("pillow_heif") is not None


@contextmanager
def opened(source: Path | bytes, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """An image, opened lazily and not larger than `max_pixels`; InvalidImage for every problem."""
    _register_heif()
    try:
        with Image.open(BytesIO(source) if isinstance(source, bytes) else source) as image:
            _check_size(image, max_pixels)  # only the header has been read so far
            yield image
    except InvalidImage:
        raise
    except UnidentifiedImageError:
        raise InvalidImage("not an image in a format we read") from None
    except Image.DecompressionBombError as problem:
        raise InvalidImage(f"too large to open safely: {problem}") from None
    except Exception as problem:  # decoders raise OSError, SyntaxError, struct.error, KeyError, ...
        raise InvalidImage(f"broken image: {_reason(problem)}") from problem


def flat_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: 16 bits scaled to 8, transparent pixels over white."""
    if image.mode in _SIXTEEN_BIT or image.mode in ("I", "F"):
        return _from_deep(image).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image.convert("RGBA")
        white = Image.new("RGBA", layer.size, "white")
        return Image.alpha_composite(white, layer).convert("RGB")
    return image.convert("RGB")


def upright_size(image: Image.Image) -> tuple[int, int]:
    """(width, height) after applying the EXIF orientation."""
    width, height = image.size
    return (height, width) if orientation(image) >= 5 else (width, height)


def orientation(image: Image.Image) -> int:
    """The EXIF orientation, 1 to 8; 1 if it is missing or invalid."""
    try:
        value = image.getexif().get(0x0112, 1)
    except Exception:  # broken EXIF data does not make the pixels unreadable
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def turned(pixels: Image.Image, original: Image.Image) -> Image.Image:
    """`pixels`, turned upright by the EXIF orientation of `original`.

    For a resized copy: turning after resizing moves fewer pixels.
    """
    turn = _TURNS.get(orientation(original))
    return pixels if turn is None else pixels.transpose(turn)


def _from_deep(image: Image.Image) -> Image.Image:
    """More than 8 bits a channel scaled to 8, not clipped.

    The range is 0 to 65535 for 16-bit files, and from minimum to maximum for 32-bit and float.
    """
    values = np.nan_to_num(np.asarray(image).astype(np.float32))
    low, high = float(values.min()), float(values.max())
    if image.mode in _SIXTEEN_BIT or (image.mode == "I" and low >= 0 and high < 65536):
        low, high = 0.0, 65535.0
    spread = max(high - low, 1e-9)
    return Image.fromarray(((values - low) * (255.0 / spread)).round().astype(np.uint8))


def _check_size(image: Image.Image, max_pixels: int) -> None:
    width, height = image.size
    if width * height > max_pixels:
        raise InvalidImage(
            f"{width} x {height} is more than {max_pixels / 1e6:g} megapixels; "
            "make it smaller or raise the limit"
        )
    if width < 1 or height < 1:
        raise InvalidImage("an image without pixels")


def _register_heif() -> None:
    if heif_supported() and "HEIF" not in Image.OPEN:
        from pillow_heif import register_heif_opener

        register_heif_opener()


def _reason(problem: BaseException) -> str:
    return str(problem).strip() or type(problem).__name__
