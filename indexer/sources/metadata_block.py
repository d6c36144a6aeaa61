"""What EXIF, IPTC and XMP say, before it is decided which texts are captions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


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
