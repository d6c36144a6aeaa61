"""What EXIF, IPTC and XMP say, before it is decided which texts are captions.

When an image was taken: dates in metadata, in file names, and of files.

EXIF: descriptions in every character set that cameras and Windows use, author, camera, date.

IPTC-IIM, the metadata of press photos: headline, abstract, keywords, byline, place, date.

XMP, inside image files and in sidecars: Lightroom, darktable, digiKam, Photoshop.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from PIL import Image, ImageFile, IptcImagePlugin

from capsearch.indexer.sources.charsets import read_text


@dataclass(frozen=True, slots=True)
class Text:
    """A description, title, headline or comment, with its language if the block states it."""

    text: str
    language: str | None = None


@dataclass(frozen=True, slots=True)
class MetadataBlock:
    """The contents of one block of metadata.

    `fields` has the texts that are no descriptions: creator, city, camera, ...
    """

    texts: tuple[Text, ...] = ()
    labels: tuple[str, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    taken_at: datetime | None = None


_EARLIEST = datetime(1980, 1, 2)  # 1980-01-01 is what cameras and archives write without a clock
# 2024-01-31T12:34:56+09:00, 2024:01:31 12:34:56, 20240131: the zone is left out, as in EXIF,
# because people search by the clock on the wall.
_STORED = re.compile(
    r"(\d{4})[-:/.]?(\d{2})[-:/.]?(\d{2})(?:[T ]?(\d{2}):?(\d{2})(?::?(\d{2}))?)?(?!\d)"
)
# IMG_20240131_123456.jpg, PXL_20240131_123456789.jpg, 2024-01-31 12.34.56.jpg,
# Screenshot_2024-01-31-12-34-56, IMG-20240131-WA0001, "... 2024-01-31 at 12.34.56".
_NAMED = re.compile(
    r"(?<!\d)((?:19|20)\d{2})([-_.]?)(0[1-9]|1[0-2])\2(0[1-9]|[12]\d|3[01])"
    r"(?:(?:[-_ T.]| at )([01]\d|2[0-3])[-_.:]?([0-5]\d)[-_.:]?([0-5]\d)(?:\d{3})?(?!\d))?(?!\d)"
)
_MILLISECONDS = re.compile(r"(?:mmexport|wx_camera_|FB_IMG_)(1\d{12})(?!\d)")  # since 1970


def parsed_date(text: str) -> datetime | None:
    """A date as EXIF, IPTC and XMP store it, with or without a time; None if it is not one."""
    found = _STORED.match(text.strip("\0 "))
    return _datetime(*found.groups()) if found else None


def date_in_name(name: str) -> datetime | None:
    """The date that a camera or a messenger put into a file name; None if there is none."""
    since_1970 = _MILLISECONDS.search(name)
    if since_1970:
        return datetime.fromtimestamp(int(since_1970[1]) // 1000)
    found = _NAMED.search(name)
    if found is None:
        return None
    year, _, *rest = found.groups()
    return _datetime(year, *rest)


def date_of_file(mtime_ns: int) -> datetime | None:
    """The time of a file's last change, in local time; None for a clock that was not set."""
    try:
        moment = datetime.fromtimestamp(mtime_ns // 10**9)
    except (OverflowError, OSError, ValueError):
        return None
    return moment if moment >= _EARLIEST else None


def _datetime(*parts: str | None) -> datetime | None:
    try:
        year, month, day, hour, minute, second = (int(part or 0) for part in parts)
        return datetime(year, month, day, hour, minute, second)
    except ValueError:  # 0000:00:00, 2024-13-45
        return None


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
        _exif_date(sub),
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


def _exif_date(sub: dict[int, Any]) -> datetime | None:
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


# Data sets of record 2, IPTC-IIM 4.2 chapter 6.
_ABSTRACT, _HEADLINE, _OBJECT_NAME, _KEYWORDS = (2, 120), (2, 105), (2, 5), (2, 25)
_DATE, _TIME = (2, 55), (2, 60)
_IPTC_FIELDS = {
    "creator": (2, 80),
    "city": (2, 90),
    "location": (2, 92),
    "state": (2, 95),
    "country": (2, 101),
    "credit": (2, 110),
    "copyright": (2, 116),
}


def read_iptc(image: Image.Image) -> MetadataBlock:
    """The IPTC block of an image file; an empty one if it has none."""
    if not isinstance(image, ImageFile.ImageFile):
        return MetadataBlock()
    data = IptcImagePlugin.getiptcinfo(image) or {}
    texts = [text for key in (_ABSTRACT, _HEADLINE, _OBJECT_NAME) for text in _texts(data.get(key))]
    fields = {name: ", ".join(_texts(data.get(key))) for name, key in _IPTC_FIELDS.items()}
    return MetadataBlock(
        tuple(Text(text) for text in texts),
        tuple(_texts(data.get(_KEYWORDS))),
        {name: text for name, text in fields.items() if text},
        _iptc_date(_texts(data.get(_DATE)), _texts(data.get(_TIME))),
    )


def _iptc_date(dates: list[str], times: list[str]) -> datetime | None:
    """20240131 and 123456+0900."""
    if not dates:
        return None
    moment = parsed_date(f"{dates[0]} {times[0][:6]}") if times else None
    return moment or parsed_date(dates[0])


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    texts = (read_text(item).strip("\0 ") for item in values if isinstance(item, bytes))
    return [text for text in texts if text]


_RDF = "http://www.w3.org/1999/02/22-rdf-syntax-ns#"
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"
CAPSEARCH = "tag:capsearch,2026:xmp/1.0/"  # what `capsearch export` says about its sidecars
_SPACES = {
    "dc": "http://purl.org/dc/elements/1.1/",
    "xmp": "http://ns.adobe.com/xap/1.0/",
    "photoshop": "http://ns.adobe.com/photoshop/1.0/",
    "exif": "http://ns.adobe.com/exif/1.0/",
    "tiff": "http://ns.adobe.com/tiff/1.0/",
    "lr": "http://ns.adobe.com/lightroom/1.0/",
    "digiKam": "http://www.digikam.org/ns/1.0/",
    "core": "http://iptc.org/std/Iptc4xmpCore/1.0/xmlns/",
    "capsearch": CAPSEARCH,
}
_TEXTS = (
    "dc:description",
    "dc:title",
    "photoshop:Headline",
    "core:AltTextAccessibility",
    "exif:UserComment",
)
# Texts in other properties that a model wrote: `capsearch export` lists them again here.
_GENERATED = ("capsearch:generatedCaptions", "capsearch:generatedTags")
_LABELS = ("dc:subject", "lr:hierarchicalSubject", "digiKam:TagsList")
_HIERARCHY = re.compile(r"[|/]")  # Places|France|Paris in Lightroom, Places/France in digiKam
_XMP_FIELDS = {
    "creator": "dc:creator",
    "copyright": "dc:rights",
    "location": "core:Location",
    "city": "photoshop:City",
    "state": "photoshop:State",
    "country": "photoshop:Country",
    "credit": "photoshop:Credit",
    "rating": "xmp:Rating",
    "label": "xmp:Label",
    "software": "xmp:CreatorTool",
    "camera": "tiff:Model",
}
# The moment the image was taken, before that of the file.
_DATES = ("exif:DateTimeOriginal", "photoshop:DateCreated", "xmp:CreateDate")


def read_xmp(packet: bytes) -> MetadataBlock:
    """The contents of an XMP packet; ParseError or DefusedXmlException if it is broken.

    What a model wrote, according to a sidecar of `capsearch export`, is not read as a person's.
    """
    from defusedxml import ElementTree

    tree = ElementTree.fromstring(packet.rstrip(b"\0 \n"))
    fields = {
        name: ", ".join(value.text for value in _values(tree, key))
        for name, key in _XMP_FIELDS.items()
    }
    generated = {value.text for key in _GENERATED for value in _values(tree, key)}
    texts = (value for key in _TEXTS for value in _values(tree, key))
    return MetadataBlock(
        tuple(value for value in texts if value.text not in generated),
        tuple(label for label in _labels(tree) if label not in generated),
        {name: text for name, text in fields.items() if text},
        _xmp_date(tree),
    )


def _labels(tree: Any) -> Iterator[str]:
    """Keywords, and every level of hierarchical ones."""
    for key in _LABELS:
        for value in _values(tree, key):
            levels = [value.text] if key == "dc:subject" else _HIERARCHY.split(value.text)
            yield from dict.fromkeys(level.strip() for level in levels)


def _xmp_date(tree: Any) -> datetime | None:
    for key in _DATES:
        for value in _values(tree, key):
            found = parsed_date(value.text)
            if found:
                return found
    return None


def _values(tree: Any, key: str) -> Iterator[Text]:
    """The values of a property: an attribute, a text, or the items of a list, by language."""
    space, name = key.split(":")
    full = f"{{{_SPACES[space]}}}{name}"
    for description in tree.iter(f"{{{_RDF}}}Description"):
        if description.get(full, "").strip():
            yield Text(description.get(full).strip())
    for element in tree.iter(full):
        items = [*element.iter(f"{{{_RDF}}}li")] or [element]
        for item in items:
            text = (item.text or "").strip()
            if text:
                yield Text(text, item.get(_XML_LANG))
