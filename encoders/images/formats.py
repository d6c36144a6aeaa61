"""The image formats that are read, recognised by their first bytes; all others are refused.

A suffix decides what is looked at, the content what is decoded: no decoder runs on bytes that it
is not listed for. Left out on purpose are formats that start other programs (EPS), documents (PDF),
and decoders with a long history of vulnerabilities that no camera needs (JPEG 2000, FLI, ...).

The JPEG previews in the RAW files of cameras: CR2, CR3, NEF, ARW, DNG, RAF, ORF, RW2 and more.

All of them hold at least one, somewhere. They are found by their markers and not through the
containers, of which every maker has an own one. The sensor's data is never decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from typing import BinaryIO

from capsearch.engine.errors import InvalidImage

HEAD_BYTES = 64  # enough for `recognised`


@dataclass(frozen=True, slots=True)
class ImageFormat:
    """A format: its name in Pillow, and the extra and package that decode it if Pillow does not."""

    name: str
    suffixes: tuple[str, ...]
    extra: str | None = None
    package: str | None = None

    @property
    def supported(self) -> bool:
        """True when its decoder is installed."""
        return self.package is None or _installed(self.package)

    @property
    def needs(self) -> str:
        """What to install."""
        return f"{self.name} needs an extra: pip install 'capsearch[{self.extra}]'"


FORMATS = {
    one.name: one
    for one in (
        ImageFormat("JPEG", (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo")),
        ImageFormat("PNG", (".png", ".apng")),
        ImageFormat("WEBP", (".webp",)),
        ImageFormat("GIF", (".gif",)),
        ImageFormat("BMP", (".bmp",)),
        ImageFormat("TIFF", (".tif", ".tiff")),
        ImageFormat("AVIF", (".avif",)),
        ImageFormat("PSD", (".psd",)),  # the composite that Photoshop stores beside the layers
        ImageFormat("HEIF", (".heic", ".heif", ".hif"), "heif", "pillow_heif"),
        ImageFormat("JXL", (".jxl",), "jxl", "pillow_jxl"),
        ImageFormat(  # the JPEG preview that cameras put into it
            "RAW",
            (
                ".cr2", ".cr3", ".nef", ".nrw", ".arw", ".dng", ".raf", ".orf", ".rw2", ".pef",
                ".srw",
            ),
        ),
    )
}  # fmt: skip
BY_SUFFIX = {suffix: one for one in FORMATS.values() for suffix in one.suffixes}
# Image files by their names, that are not read: to be named and counted.
UNREAD_SUFFIXES = frozenset(
    {
        ".jp2", ".j2k", ".jpx", ".jpf", ".psb", ".xcf", ".kra", ".clip", ".svg", ".eps", ".ai",
        ".tga", ".exr", ".dds", ".pcx", ".ppm", ".pgm", ".x3f", ".3fr", ".iiq", ".mrw", ".wdp",
        ".jxr", ".icns", ".wmf", ".emf", ".qoi",
    }
)  # fmt: skip

# (offset, bytes, format). RAW files that begin like TIFF are told from it by `raw_previews`.
_SIGNATURES = (
    (0, b"\xff\xd8\xff", "JPEG"),
    (0, b"\x89PNG\r\n\x1a\n", "PNG"),
    (0, b"GIF87a", "GIF"),
    (0, b"GIF89a", "GIF"),
    (0, b"BM", "BMP"),
    (8, b"CR\x02\0", "RAW"),  # CR2; before TIFF
    (0, b"II*\0", "TIFF"),
    (0, b"MM\0*", "TIFF"),
    (0, b"II+\0", "TIFF"),
    (0, b"MM\0+", "TIFF"),
    (0, b"IIRO", "RAW"),  # ORF
    (0, b"IIRS", "RAW"),
    (0, b"MMOR", "RAW"),
    (0, b"IIU\0", "RAW"),  # RW2
    (0, b"FUJIFILMCCD-RAW", "RAW"),
    (0, b"8BPS\0\x01", "PSD"),
    (0, b"\xff\x0a", "JXL"),
    (0, b"\0\0\0\x0cJXL \r\n\x87\n", "JXL"),
)
_BRANDS = {  # of ISO base media files, ISO/IEC 14496-12
    b"avif": "AVIF", b"avis": "AVIF", b"crx ": "RAW", b"heic": "HEIF", b"heix": "HEIF",
    b"heim": "HEIF", b"heis": "HEIF", b"hevc": "HEIF", b"hevx": "HEIF",
}  # fmt: skip
# What else may be under the name of an image, to say it.
_FOREIGN = (
    (0, b"%PDF", "PDF"),
    (0, b"%!PS", "PostScript"),
    (0, b"\xc5\xd0\xd3\xc6", "PostScript"),
    (0, b"8BPS\0\x02", "PSB"),
    (4, b"jP  \r\n\x87\n", "JPEG 2000"),
    (0, b"\xff\x4f\xff\x51", "JPEG 2000"),
    (0, b"icns", "ICNS"),
    (0, b"\xd7\xcd\xc6\x9a", "WMF"),
    (0, b"gimp xcf", "GIMP"),
    (0, b"PK\x03\x04", "ZIP"),
    (0, b"<svg", "SVG"),
    (0, b"<!DOCTYPE", "HTML"),
    (0, b"<html", "HTML"),
    (4, b"ftyp", "video"),
)


def recognised(head: bytes) -> ImageFormat | None:
    """The format of a file by its first HEAD_BYTES; None for one that is not read."""
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return FORMATS["WEBP"]
    name = _brand(head) if head[4:8] == b"ftyp" else _signed(head, _SIGNATURES)
    return FORMATS[name] if name else None


def foreign(head: bytes) -> str | None:
    """The name of a format that is known, but not read."""
    return _signed(head, _FOREIGN)


def _signed(head: bytes, signatures: tuple[tuple[int, bytes, str], ...]) -> str | None:
    for offset, signature, name in signatures:
        if head[offset : offset + len(signature)] == signature:
            return name
    return None


def _brand(head: bytes) -> str | None:
    """The format of the first known brand: major, then compatible ones ("mif1" says nothing)."""
    brands = [head[8:12], *(head[at : at + 4] for at in range(16, len(head), 4))]
    length = int.from_bytes(head[:4], "big")
    within = brands[: max(1, (length - 12) // 4)]
    return next((_BRANDS[brand] for brand in within if brand in _BRANDS), None)


@cache
def _installed(package: str) -> bool:
    return find_spec(package) is not None


_START = b"\xff\xd8\xff"
# Start of frame: baseline, extended, progressive. Sensor data is lossless JPEG (0xC3).
_FRAMES = frozenset({0xC0, 0xC1, 0xC2})
_OTHER_FRAMES = frozenset({0xC3, 0xC5, 0xC6, 0xC7, 0xC9, 0xCA, 0xCB, 0xCD, 0xCE, 0xCF})
_MAX_PREVIEWS, _MAX_SEGMENTS = 64, 64
_XMP_END = b"</x:xmpmeta>"
_TIFF_HEAD_BYTES = 1 << 20  # the tags of orientation and date lie within
_PHOTOMETRIC, _SUB_IFDS, _DNG_VERSION = 0x0106, 0x014A, 0xC612
_SENSOR_DATA = frozenset({32803, 34892})  # colour filter array, linear raw
_SHORT, _LONG, _IFD = 3, 4, 13
_MAX_DIRECTORIES, _MAX_ENTRIES = 32, 512


def largest_preview(data: bytes) -> bytes:
    """The bytes from the start of the largest preview on; InvalidImage if there is none."""
    largest = max(_previews(data), default=None)
    if largest is None:
        raise InvalidImage("a RAW file without a JPEG preview")
    return data[largest[1] :]


def exif_of(data: bytes) -> bytes | None:
    """The tags of a RAW file as an EXIF block; None if only the preview has some."""
    start = 0
    if data[4:8] == b"ftyp":  # CR3 has a TIFF of its own for the main tags
        start = data[:_TIFF_HEAD_BYTES].find(b"CMT1") + 4
    order = data[start : start + 2]
    if order not in (b"II", b"MM"):
        return None
    # ORF and RW2 differ from TIFF only in the magic number.
    magic = b"*\0" if order == b"II" else b"\0*"
    return b"Exif\0\0" + order + magic + data[start + 4 : start + _TIFF_HEAD_BYTES]


def xmp_of(data: bytes) -> bytes | None:
    """The first XMP packet of a RAW file, as Lightroom writes it into DNG."""
    start = data.find(b"<x:xmpmeta")
    end = data.find(_XMP_END, start)
    return data[start : end + len(_XMP_END)] if 0 <= start < end else None


def is_raw(stream: BinaryIO) -> bool:
    """Whether what begins like TIFF is a RAW file: NEF, ARW, DNG, PEF, ...; only tags are read."""
    for tags in _directories(stream):
        if _DNG_VERSION in tags or _SENSOR_DATA & frozenset(tags.get(_PHOTOMETRIC, ())):
            return True
    return False


def _previews(data: bytes) -> Iterator[tuple[int, int]]:
    """(pixels, offset) of JPEG images that Pillow decodes."""
    at, found = data.find(_START), 0
    while at >= 0 and found < _MAX_PREVIEWS:
        pixels = _jpeg_pixels(data, at)
        if pixels:
            yield pixels, at
            found += 1
        at = data.find(_START, at + 3)


def _jpeg_pixels(data: bytes, at: int) -> int:
    """Width x height by the frame header of the JPEG at `at`; 0 if it is not one."""
    at += 2
    for _ in range(_MAX_SEGMENTS):
        header = data[at : at + 9]
        if len(header) < 9 or header[0] != 0xFF or header[1] in _OTHER_FRAMES:
            return 0
        if header[1] in _FRAMES:
            eight_bits = header[4] == 8
            size = int.from_bytes(header[5:7], "big") * int.from_bytes(header[7:9], "big")
            return size if eight_bits else 0
        at += 2 + int.from_bytes(header[2:4], "big")
    return 0


def _directories(stream: BinaryIO) -> Iterator[dict[int, tuple[int, ...]]]:
    """The integer tags of every image file directory of a TIFF, also of nested ones."""
    big_endian = _bytes(stream, 0, 2) == b"MM"

    def number(at: int, size: int) -> int:
        return int.from_bytes(_bytes(stream, at, size), "big" if big_endian else "little")

    pending, seen = [number(4, 4)], set[int]()
    while pending and len(seen) < _MAX_DIRECTORIES:
        at = pending.pop(0)
        if at in seen or at < 8:
            continue
        seen.add(at)
        count = min(number(at, 2), _MAX_ENTRIES)
        tags = dict(_entry(number, at + 2 + 12 * index) for index in range(count))
        yield tags
        pending.extend(tags.get(_SUB_IFDS, ()))
        pending.append(number(at + 2 + 12 * count, 4))


def _entry(number: Callable[[int, int], int], at: int) -> tuple[int, tuple[int, ...]]:
    """(tag, its values), without those of tags that are no integers or lists of many."""
    tag, kind, count = number(at, 2), number(at + 2, 2), number(at + 4, 4)
    size = {_SHORT: 2, _LONG: 4, _IFD: 4}.get(kind, 0)
    if not size or count > _MAX_DIRECTORIES:
        return tag, ()
    values = at + 8 if size * count <= 4 else number(at + 8, 4)
    return tag, tuple(number(values + size * index, size) for index in range(count))


def _bytes(stream: BinaryIO, at: int, size: int) -> bytes:
    stream.seek(at)
    return stream.read(size)
