"""Opening image files safely: formats, size limit, orientation, colour modes.

A limit on the pixels that all threads of a process decode at once.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import BinaryIO

import numpy as np
from PIL import Image, UnidentifiedImageError, _imaging

from capsearch.encoders.images import formats
from capsearch.encoders.images.formats import (
    BY_SUFFIX,
    FORMATS,
    HEAD_BYTES,
    ImageFormat,
    foreign,
    recognised,
)
from capsearch.engine.errors import InvalidImage

DEFAULT_PIXELS = 200_000_000  # Pillow takes 4 bytes a pixel, and flattening up to three copies


class PixelBudget:
    """A semaphore weighted by pixels, first come, first served.

    An image with more pixels than the whole budget is decoded alone.
    """

    def __init__(self, pixels: int = DEFAULT_PIXELS) -> None:
        self._limit, self._used = pixels, 0
        self._waiting: deque[object] = deque()  # in order, so that large images are not starved
        self._changed = threading.Condition()

    def resize(self, pixels: int) -> None:
        """Sets the limit; images that are being decoded keep what they have."""
        if pixels < 1:
            raise ValueError(f"a budget has at least one pixel, not {pixels}")
        with self._changed:
            self._limit = pixels
            self._changed.notify_all()

    @contextmanager
    def reserve(self, pixels: int) -> Iterator[None]:
        """Waits until `pixels` fit beside those of other threads, and holds them for the block."""
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            try:
                self._changed.wait_for(lambda: self._is_next(ticket, pixels))
                self._used += pixels
            finally:  # also when interrupted
                self._waiting.remove(ticket)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._used -= pixels
                self._changed.notify_all()

    def _is_next(self, ticket: object, pixels: int) -> bool:
        fits = self._used == 0 or self._used + pixels <= self._limit
        return fits and self._waiting[0] is ticket


DECODING = PixelBudget()  # one for the process: memory is shared by all threads

HEIF_SUFFIXES = frozenset(FORMATS["HEIF"].suffixes)  # these need the extra `heif`
IMAGE_SUFFIXES = frozenset(suffix for suffix, one in BY_SUFFIX.items() if one.extra is None)
# Pillow's own limit. Raising that one would raise it for the whole process.
MAX_PIXELS = 178_956_970
_BLOCK_BYTES = 64 << 20  # glibc maps what is larger than 32 MB, and unmaps it when freed
_SIXTEEN_BIT = ("I;16", "I;16B", "I;16L", "I;16N")


@contextmanager
def opened(source: Path | bytes, max_pixels: int = MAX_PIXELS) -> Iterator[Image.Image]:
    """An image, opened lazily and not larger than `max_pixels`; InvalidImage for every problem.

    Only the decoder that belongs to the first bytes sees the others. Of a RAW file it is the
    preview. Waits while the images in other threads use up the process's budget of pixels.
    """
    try:
        with _stream(source) as stream, _image(stream) as image:
            _check_size(image, max_pixels)  # only the header has been read so far
            with DECODING.reserve(_decoded_pixels(image)):
                yield image
    except InvalidImage:
        raise
    except UnidentifiedImageError:
        raise InvalidImage("not an image in a format we read") from None
    except Image.DecompressionBombError as problem:
        raise InvalidImage(f"too large to open safely: {problem}") from None
    except Exception as problem:  # decoders raise OSError, SyntaxError, struct.error, KeyError, ...
        raise InvalidImage(f"broken image: {_reason(problem)}") from problem


def _stream(source: Path | bytes) -> BinaryIO:
    return BytesIO(source) if isinstance(source, bytes) else source.open("rb")


def _image(stream: BinaryIO) -> Image.Image:
    head = stream.read(HEAD_BYTES)
    kind = recognised(head)
    if kind is None:
        name = foreign(head)
        raise InvalidImage(f"not an image in a format we read{f' ({name})' if name else ''}")
    if not kind.supported:
        raise InvalidImage(kind.needs)
    is_raw = kind.name == "RAW" or (kind.name == "TIFF" and formats.is_raw(stream))
    stream.seek(0)
    if is_raw:
        return _preview(stream.read())
    _register(kind)
    _allocate_large_blocks()
    return Image.open(stream, formats=(kind.name,))


@cache
def _allocate_large_blocks() -> None:
    """Lets Pillow's memory for large images go back to the system as soon as they are closed.

    Its default blocks of 16 MB come from the heap of each thread, which keeps them: eight threads
    that decoded one image of 64 megapixels after another held 3.5 GB, and hold 0.6 GB like this.
    """
    if "PILLOW_BLOCK_SIZE" not in os.environ:
        _imaging.set_block_size(_BLOCK_BYTES)


def _preview(data: bytes) -> Image.Image:
    """The largest JPEG in a RAW file, with the orientation, date and texts of the file."""
    preview = formats.largest_preview(data)
    image = Image.open(BytesIO(preview), formats=("JPEG",))
    exif = formats.exif_of(data)
    if exif is not None:
        image.info["exif"] = exif
    xmp = formats.xmp_of(data)
    if xmp is not None:
        image.info["xmp"] = xmp
    image.format = "RAW"
    return image


def _decoded_pixels(image: Image.Image) -> int:
    """The pixels that are in memory at once, with the copies that `flat_rgb` makes.

    Preprocessing draws a baseline JPEG at half its size or less; a progressive one has all its
    coefficients in memory, whatever its size is in the end.
    """
    pixels = image.width * image.height
    if image.format in ("JPEG", "MPO", "RAW") and not image.info.get("progressive"):
        return pixels // 4
    deep = image.mode in _SIXTEEN_BIT or image.mode in ("I", "F")
    return pixels * (1 if is_flat(image) else 3 if deep else 2)


def is_flat(image: Image.Image) -> bool:
    """True for plain RGB: `flat_rgb` would be a mere copy, which large images do without."""
    return image.mode == "RGB" and "transparency" not in image.info


def flat_rgb(image: Image.Image) -> Image.Image:
    """Any mode as RGB: 16 bits scaled to 8, transparent pixels over white."""
    if image.mode in _SIXTEEN_BIT or image.mode in ("I", "F"):
        return _from_deep(image).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "La", "RGBa") or "transparency" in image.info:
        layer = image if image.mode == "RGBA" else image.convert("RGBA")
        white = Image.new("RGB", layer.size, "white")
        white.paste(layer, mask=layer)  # not alpha_composite: that makes two more copies
        return white
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


def _register(kind: ImageFormat) -> None:
    """Tells Pillow of the decoder in an extra."""
    if kind.name == "HEIF" and "HEIF" not in Image.OPEN:
        from pillow_heif import register_heif_opener

        register_heif_opener()
    if kind.name == "JXL" and "JXL" not in Image.OPEN:
        import pillow_jxl  # noqa: F401  # registers itself


def _reason(problem: BaseException) -> str:
    return str(problem).strip() or type(problem).__name__
