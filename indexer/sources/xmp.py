"""XMP, inside image files and in sidecars: Lightroom, darktable, digiKam, Photoshop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from capsearch.indexer.sources.dates import parsed_date
from capsearch.indexer.sources.metadata_block import MetadataBlock, Text

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
_FIELDS = {
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
        name: ", ".join(value.text for value in _values(tree, key)) for name, key in _FIELDS.items()
    }
    generated = {value.text for key in _GENERATED for value in _values(tree, key)}
    texts = (value for key in _TEXTS for value in _values(tree, key))
    return MetadataBlock(
        tuple(value for value in texts if value.text not in generated),
        tuple(label for label in _labels(tree) if label not in generated),
        {name: text for name, text in fields.items() if text},
        _date(tree),
    )


def _labels(tree: Any) -> Iterator[str]:
    """Keywords, and every level of hierarchical ones."""
    for key in _LABELS:
        for value in _values(tree, key):
            levels = [value.text] if key == "dc:subject" else _HIERARCHY.split(value.text)
            yield from dict.fromkeys(level.strip() for level in levels)


def _date(tree: Any) -> datetime | None:
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
