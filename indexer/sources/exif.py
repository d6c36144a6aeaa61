"""EXIF: descriptions in every character set that cameras and Windows use, author, camera, date."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from PIL import Image

from capsearch.indexer.sources.charsets import read_text
from capsearch.indexer.sources.dates import parsed_date
from capsearch.indexer.sources.metadata_block import MetadataBlock, Text

_IMAGE_DESCRIPTION, _MAKE, _MODEL, _SOFTWARE, _ARTIST, _COPYRIGHT = (
    0x010E, 0x010F, 0x0110, 0x0131, 0x013B, 0x8298,
)  # fmt: skip
_XP_TITLE, _XP_COMMENT, _XP_AUTHOR, _XP_KEYWORDS, _XP_SUBJECT = (
    0x9C9B, 0x9C9C, 0x9C9D, 0x9C9E, 0x9C9F,
)  # fmt: skip
_EXIF_IFD, _DATE_ORIGINAL, _DATE_DIGITIZED, _USER_COMMENT = 0x8769, 0x9003, 0x9004, 0x9286
_COMMON_RANGES = (("\0", "\u04ff"), ("\u3000", "\u30ff"), ("\u4e00", "\u9fff"))


def read_exif(image: Image.Image) -> MetadataBlock:
    """The EXIF block of an image file; an empty one if it has none."""
    exif = image.getexif()
    sub = exif.get_ifd(_EXIF_IFD)
    texts = [_text(exif.get(_IMAGE_DESCRIPTION, "")), _user_comment(sub.get(_USER_COMMENT, b""))]
    texts.extend(_utf16(exif.get(tag, b"")) for tag in (_XP_TITLE, _XP_COMMENT, _XP_SUBJECT))
    return MetadataBlock(
        tuple(Text(text) for text in texts if text),
        tuple(_utf16(exif.get(_XP_KEYWORDS, b"")).split(";")),
        _fields(exif),
        _date(sub),
    )


def _fields(exif: Image.Exif) -> dict[str, str]:
    make, model = (_text(exif.get(tag, "")).strip("\0 ") for tag in (_MAKE, _MODEL))
    fields = {
        "creator": _text(exif.get(_ARTIST, "")) or _utf16(exif.get(_XP_AUTHOR, b"")),
        "copyright": _text(exif.get(_COPYRIGHT, "")),
        "camera": model if model.startswith(make) else f"{make} {model}",
        "software": _text(exif.get(_SOFTWARE, "")),
    }
    stripped = {name: text.strip("\0 ") for name, text in fields.items()}
    return {name: text for name, text in stripped.items() if text}


def _date(sub: dict[int, Any]) -> datetime | None:
    for tag in (_DATE_ORIGINAL, _DATE_DIGITIZED):
        moment = parsed_date(str(sub.get(tag, "")))
        if moment:
            return moment
    return None


def _text(value: object) -> str:
    """An EXIF string, which Pillow decodes as Latin-1 although most are in other encodings."""
    if isinstance(value, bytes):
        return read_text(value)
    try:
        return read_text(str(value).encode("latin-1"))
    except UnicodeEncodeError:
        return str(value)


def _utf16(value: object) -> str:
    data = bytes(value) if isinstance(value, bytes | tuple) else b""
    return data.decode("utf-16-le", errors="ignore").rstrip("\0")


def _user_comment(value: object) -> str:
    """EXIF 2.3 section 4.6.5: eight bytes for the character set, then the text."""
    if not isinstance(value, bytes):
        return str(value)
    charset, text = value[:8], value[8:]
    if charset == b"UNICODE\0":
        return _either_endian(text)
    if charset.startswith(b"JIS"):
        return text.decode("iso2022_jp", errors="ignore")
    return read_text(text if charset in (b"ASCII\0\0\0", b"\0" * 8) else value)


def _either_endian(data: bytes) -> str:
    """UTF-16 in the byte order that yields more common characters; the file's is often wrong."""
    decodings = [data.decode(name, errors="ignore") for name in ("utf-16-le", "utf-16-be")]
    return min(decodings, key=lambda text: sum(not _common(c) for c in text))


def _common(character: str) -> bool:
    """True for European letters, kana and Han, except those that byte-swapped ASCII becomes."""
    if character >= "\u2000" and ord(character) % 256 == 0:
        return False
    return any(low <= character <= high for low, high in _COMMON_RANGES)
