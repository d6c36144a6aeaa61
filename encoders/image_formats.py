"""The image formats that are read, recognised by their first bytes; all others are refused.

A suffix decides what is looked at, the content what is decoded: no decoder runs on bytes that it
is not listed for. Left out on purpose are formats that start other programs (EPS), documents (PDF),
and decoders with a long history of vulnerabilities that no camera needs (JPEG 2000, FLI, ...).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

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
