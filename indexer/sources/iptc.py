"""IPTC-IIM, the metadata of press photos: headline, abstract, keywords, byline, place, date."""

from __future__ import annotations

from datetime import datetime

from PIL import Image, ImageFile, IptcImagePlugin

from capsearch.indexer.sources.charsets import read_text
from capsearch.indexer.sources.dates import parsed_date
from capsearch.indexer.sources.metadata_block import MetadataBlock, Text

# Data sets of record 2, IPTC-IIM 4.2 chapter 6.
_ABSTRACT, _HEADLINE, _OBJECT_NAME, _KEYWORDS = (2, 120), (2, 105), (2, 5), (2, 25)
_DATE, _TIME = (2, 55), (2, 60)
_FIELDS = {
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
    fields = {name: ", ".join(_texts(data.get(key))) for name, key in _FIELDS.items()}
    return MetadataBlock(
        tuple(Text(text) for text in texts),
        tuple(_texts(data.get(_KEYWORDS))),
        {name: text for name, text in fields.items() if text},
        _date(_texts(data.get(_DATE)), _texts(data.get(_TIME))),
    )


def _date(dates: list[str], times: list[str]) -> datetime | None:
    """20240131 and 123456+0900."""
    if not dates:
        return None
    moment = parsed_date(f"{dates[0]} {times[0][:6]}") if times else None
    return moment or parsed_date(dates[0])


def _texts(value: object) -> list[str]:
    values = value if isinstance(value, list) else [value]
    texts = (read_text(item).strip("\0 ") for item in values if isinstance(item, bytes))
    return [text for text in texts if text]
