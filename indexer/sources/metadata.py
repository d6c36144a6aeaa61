"""Metadata inside image files: descriptions, keywords and dates in EXIF, IPTC and XMP."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from PIL import Image, ImageFile, IptcImagePlugin

from capsearch.encoders import languages
from capsearch.engine.records import Caption, Tag
from capsearch.indexer.sources.charsets import read_text

MAX_CAPTION_CHARACTERS = 2000  # longer texts are generator settings or licences, not captions

# Texts that cameras and editors write into description fields.
_BOILERPLATE = re.compile(
    r"""(konica\ |minolta\ |olympus\ |kodak\ |samsung\ )*digital\ (still\ )?camera
    | sony\ dsc | dcim | dsc[fn_]?\d* | img[_-]?\d* | pict?\d* | samsung(\ camera\ pictures)?
    | exif[_\ ]jpeg([_\ ]\w+)* | default | untitled | no\ name | ascii | unicode | binary\ comment
    | charset=.* | screenshot | picture | photo | image | jpeg | cof | dav | sdr | hdr | mde | oznor
    | lead\ technologies.* | created\ with\ (the\ )?gimp.* | processed\ with\ .* | hasselblad.*
    | file\ written\ by\ adobe.* | casio\ computer.* | ai[_\ ]scene.* | <.*> | \{.*\} | \[.*\]""",
    re.VERBOSE | re.IGNORECASE | re.DOTALL,
)
_IMAGE_DESCRIPTION, _XP_TITLE, _XP_COMMENT, _XP_KEYWORDS, _XP_SUBJECT = (
    0x010E, 0x9C9B, 0x9C9C, 0x9C9E, 0x9C9F,
)  # fmt: skip
_EXIF_IFD, _DATE_ORIGINAL, _USER_COMMENT = 0x8769, 0x9003, 0x9286
_IPTC_KEYWORD, _IPTC_CAPTION = (2, 25), (2, 120)
_DC, _RDF = "{http://purl.org/dc/elements/1.1/}", "{http://www.w3.org/1999/02/22-rdf-syntax-ns#}"
_COMMON_RANGES = (("\0", "\u04ff"), ("\u3000", "\u30ff"), ("\u4e00", "\u9fff"))
_XML_LANG = "{http://www.w3.org/XML/1998/namespace}lang"


@dataclass(frozen=True, slots=True)
class Metadata:
    """Captions and tags from inside an image file, each text once."""

    captions: tuple[Caption, ...] = ()
    tags: tuple[Tag, ...] = ()


def read_metadata(image: Image.Image) -> Metadata:
    """The captions and tags people wrote into the file; broken metadata counts as none."""
    captions: list[Caption] = []
    tags: list[Tag] = []
    for reader in (_iptc, _xmp, _exif):
        try:
            metadata = reader(image)
        except Exception:  # parsers raise anything on broken metadata; the pixels may be fine
            continue
        captions.extend(metadata.captions)
        tags.extend(metadata.tags)
    return Metadata(_unique_captions(captions), _unique_tags(tags))


def taken_at(image: Image.Image) -> datetime | None:
    """When the image was taken, from EXIF DateTimeOriginal; None if missing or invalid."""
    try:
        text = str(image.getexif().get_ifd(_EXIF_IFD).get(_DATE_ORIGINAL, ""))
        return datetime.strptime(text.strip("\0 ")[:19], "%Y:%m:%d %H:%M:%S")
    except Exception:  # missing, "0000:00:00 00:00:00", or EXIF that cannot be parsed
        return None


def written_caption(text: str, source: str, language: str | None = None) -> Caption | None:
    """A caption; None for text no person wrote: boilerplate, under two letters, or too long."""
    text = languages.normalise(text.replace("\0", " "))
    letters = sum(character.isalpha() for character in text)
    if letters < 2 or len(text) > MAX_CAPTION_CHARACTERS or _BOILERPLATE.fullmatch(text):
        return None
    return Caption(text, language_code(language) or languages.detect(text), source)


def language_code(language: str | None) -> str | None:
    """ "zh" for "zh-Hans-CN" or "zh_TW"; None for an empty or undetermined language."""
    code = re.split("[-_]", (language or "").strip().lower())[0]
    return None if code in ("", "x", "und") else code


def _exif(image: Image.Image) -> Metadata:
    exif = image.getexif()
    texts = [_exif_text(exif.get(_IMAGE_DESCRIPTION, ""))]
    texts.append(_user_comment(exif.get_ifd(_EXIF_IFD).get(_USER_COMMENT, b"")))
    texts.extend(_utf16(exif.get(tag, b"")) for tag in (_XP_TITLE, _XP_COMMENT, _XP_SUBJECT))
    keywords = _utf16(exif.get(_XP_KEYWORDS, b"")).split(";")
    return Metadata(tuple(_captions(texts, "exif")), tuple(_tags(keywords, "exif")))


def _iptc(image: Image.Image) -> Metadata:
    if not isinstance(image, ImageFile.ImageFile):
        return Metadata()
    fields = IptcImagePlugin.getiptcinfo(image) or {}
    return Metadata(
        tuple(_captions(_iptc_texts(fields.get(_IPTC_CAPTION)), "iptc")),
        tuple(_tags(_iptc_texts(fields.get(_IPTC_KEYWORD)), "iptc")),
    )


def _xmp(image: Image.Image) -> Metadata:
    packet = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp")
    if not packet:
        return Metadata()
    from defusedxml import ElementTree

    data = packet.encode() if isinstance(packet, str) else bytes(packet)
    tree = ElementTree.fromstring(data.rstrip(b"\0 \n"))
    captions = (
        written_caption(item.text or "", "xmp", item.get(_XML_LANG))
        for item in tree.iterfind(f".//{_DC}description/{_RDF}Alt/{_RDF}li")
    )
    labels = [item.text or "" for item in tree.iterfind(f".//{_DC}subject/{_RDF}Bag/{_RDF}li")]
    return Metadata(tuple(caption for caption in captions if caption), tuple(_tags(labels, "xmp")))


def _captions(texts: Iterable[str], source: str) -> Iterator[Caption]:
    for text in texts:
        caption = written_caption(text, source)
        if caption is not None:
            yield caption


def _tags(labels: Iterable[str], source: str) -> Iterator[Tag]:
    for label in labels:
        label = languages.normalise(label.replace("\0", " "))
        if label:
            yield Tag(label, languages.detect(label), 1.0, source)


def _exif_text(value: object) -> str:
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


def _iptc_texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    return [read_text(item) for item in values if isinstance(item, bytes)]


def _unique_captions(captions: Iterable[Caption]) -> tuple[Caption, ...]:
    return tuple({caption.text: caption for caption in reversed([*captions])}.values())[::-1]


def _unique_tags(tags: Iterable[Tag]) -> tuple[Tag, ...]:
    return tuple({tag.label: tag for tag in reversed([*tags])}.values())[::-1]
