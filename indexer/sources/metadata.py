"""Metadata of images: captions, tags, other texts and dates from EXIF, IPTC and XMP."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from PIL import Image

from capsearch.encoders.text import concepts, languages
from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.records import Caption, Tag
from capsearch.indexer.sources.blocks import (
    MetadataBlock,
    Text,
    date_in_name,
    date_of_file,
    read_exif,
    read_iptc,
    read_xmp,
)
from capsearch.indexer.sources.junk import kind_of_junk

MAX_CAPTION_CHARACTERS = 2000  # longer texts are generator settings or licences, not captions
MAX_XMP_BYTES = 10_000_000  # darktable and Lightroom keep the whole editing history in sidecars
# Junk that people do not write into captions files and sidecars either; the rest is theirs to say.
_WRITTEN_BY_PROGRAMS = frozenset({"camera", "software", "file name", "settings", "placeholder"})
_PEOPLES_SOURCES = frozenset({"sidecar", "coco", "csv"})
_DATE_SOURCES = ("exif", "xmp", "iptc")  # best first


@dataclass(frozen=True, slots=True)
class Metadata:
    """What the metadata of an image says, each text once.

    `fields` has texts that are not captions, to be searched as text: creator, city, country,
    camera, and under "description" what stands in description fields but is junk. `taken_from`
    says where `taken_at` comes from: "exif", "xmp", "iptc", "name" or "file".
    """

    captions: tuple[Caption, ...] = ()
    tags: tuple[Tag, ...] = ()
    fields: Mapping[str, str] = field(default_factory=dict)
    taken_at: datetime | None = None
    taken_from: str | None = None


def read_metadata(image: Image.Image) -> Metadata:
    """The metadata inside an image file; a broken block counts as none."""
    return merged([_block(source, reader, image) for source, reader in _READERS.items()])


def read_xmp_sidecar(path: Path) -> Metadata:
    """The metadata in NAME.xmp; InvalidCaptions for a file that cannot be read."""
    from defusedxml import DefusedXmlException
    from defusedxml.ElementTree import ParseError

    try:
        if path.stat().st_size > MAX_XMP_BYTES:
            raise InvalidCaptions(f"{path}: more than {MAX_XMP_BYTES / 1e6:g} MB is not a sidecar")
        return _metadata("xmp", read_xmp(path.read_bytes()))
    except OSError as problem:
        raise InvalidCaptions(f"{path}: cannot be read: {problem.strerror or problem}") from problem
    except (ParseError, DefusedXmlException, ValueError) as problem:
        raise InvalidCaptions(f"{path}: not XMP: {problem}") from problem


def merged(parts: Sequence[Metadata]) -> Metadata:
    """One Metadata of several: of equal texts and fields the first, and the best date."""
    fields: dict[str, str] = {}
    for part in parts:
        for name, text in part.fields.items():
            fields.setdefault(name, text)
    dated = [part for part in parts if part.taken_from in _DATE_SOURCES]
    best = min(dated, key=lambda part: _DATE_SOURCES.index(part.taken_from or ""), default=None)
    return Metadata(
        _unique_captions(caption for part in parts for caption in part.captions),
        _unique_tags(tag for part in parts for tag in part.tags),
        fields,
        best.taken_at if best else None,
        best.taken_from if best else None,
    )


def dated(metadata: Metadata, path: str, mtime_ns: int) -> Metadata:
    """The metadata with a date from the file's name or time, if it has none itself."""
    if metadata.taken_at is not None:
        return metadata
    for source, moment in (
        ("name", date_in_name(Path(path).name)),
        ("file", date_of_file(mtime_ns)),
    ):
        if moment is not None:
            return replace(metadata, taken_at=moment, taken_from=source)
    return metadata


def written_caption(text: str, source: str, language: str | None = None) -> Caption | None:
    """A caption; None for text that is none: junk, under two letters, or too long."""
    text = languages.normalise(text.replace("\0", " "))
    letters = sum(character.isalpha() for character in text)
    if letters < 2 or len(text) > MAX_CAPTION_CHARACTERS or _is_junk(text, source):
        return None
    return Caption(text, language_code(language) or languages.detect(text), source)


def language_code(language: str | None) -> str | None:
    """ "zh" for "zh-Hans-CN" or "zh_TW"; None for an empty or undetermined language."""
    code = re.split("[-_]", (language or "").strip().lower())[0]
    return None if code in ("", "x", "und") else code


def _is_junk(text: str, source: str) -> bool:
    kind = kind_of_junk(text)
    if source in _PEOPLES_SOURCES:
        return kind in _WRITTEN_BY_PROGRAMS
    return kind is not None


def _embedded_xmp(image: Image.Image) -> MetadataBlock:
    packet = image.info.get("xmp") or image.info.get("XML:com.adobe.xmp")
    if not packet:
        return MetadataBlock()
    return read_xmp(packet.encode() if isinstance(packet, str) else bytes(packet))


_READERS: Mapping[str, Callable[[Image.Image], MetadataBlock]] = {
    "iptc": read_iptc,
    "xmp": _embedded_xmp,
    "exif": read_exif,
}


def _block(
    source: str, reader: Callable[[Image.Image], MetadataBlock], image: Image.Image
) -> Metadata:
    try:
        return _metadata(source, reader(image))
    except Exception:  # parsers raise anything on broken metadata; the pixels may be fine
        return Metadata()


def _metadata(source: str, block: MetadataBlock) -> Metadata:
    captions, junk = list[Caption](), list[str]()
    for one in block.texts:
        caption = written_caption(one.text, source, one.language)
        if caption is not None:
            captions.append(caption)
        else:
            junk.extend(_searchable(one))
    fields = {name: languages.normalise(text) for name, text in block.fields.items()}
    if junk:
        fields["description"] = " | ".join(dict.fromkeys(junk))
    taken_from = source if block.taken_at else None
    tags = tuple(_tags(block.labels, source))
    return Metadata(tuple(captions), tags, fields, block.taken_at, taken_from)


def _searchable(text: Text) -> Iterator[str]:
    """Junk as text, unless it is too long or says nothing."""
    shown = languages.normalise(text.text.replace("\0", " "))
    if shown and len(shown) <= MAX_CAPTION_CHARACTERS and any(c.isalnum() for c in shown):
        yield shown


def _tags(labels: Iterable[str], source: str) -> Iterator[Tag]:
    for label in labels:
        label = languages.normalise(label.replace("\0", " "))
        if label:
            named = concepts.likeliest(label)
            yield Tag(label, languages.detect(label), 1.0, source, named.id if named else "")


def _unique_captions(captions: Iterable[Caption]) -> tuple[Caption, ...]:
    return tuple({caption.text: caption for caption in reversed([*captions])}.values())[::-1]


def _unique_tags(tags: Iterable[Tag]) -> tuple[Tag, ...]:
    return tuple({tag.label: tag for tag in reversed([*tags])}.values())[::-1]
