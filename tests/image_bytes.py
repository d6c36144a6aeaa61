"""The bytes of image files, valid and broken, for tests."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Mapping
from io import BytesIO

from PIL import ExifTags, Image


def saved(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    stream = BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png_header(width: int, height: int) -> bytes:
    """A PNG whose header claims a size that its data does not have."""
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(b"\0" * 1000)
    chunks = ((b"IHDR", header), (b"IDAT", data), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(name, body) for name, body in chunks)


def jpeg_with_segment(marker: int, body: bytes) -> bytes:
    """A small JPEG with an additional application segment at its start."""
    data = saved(Image.new("RGB", (8, 8), (255, 0, 0)), "JPEG")
    return data[:2] + struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body + data[2:]


def exif(
    fields: Mapping[int, bytes | str] | None = None, sub: Mapping[int, bytes | str] | None = None
) -> Image.Exif:
    """EXIF with `fields` in its main directory and `sub` in its Exif directory.

    In `sub`, a str is stored as ASCII and bytes as UNDEFINED.
    """
    result = Image.Exif()
    result.update(fields or {})
    result.get_ifd(ExifTags.IFD.Exif).update(sub or {})
    return result


def _chunk(name: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + name + body + struct.pack(">I", zlib.crc32(name + body))
