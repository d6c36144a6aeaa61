"""Which captions of a split are queries: the published protocols, and the rule for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from capsearch.encoders.datasets.dataset import CaptionedImage
from capsearch.engine.records import Caption

Protocol: TypeAlias = Callable[[CaptionedImage, str], tuple[Caption, ...]]


def every_caption(photo: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """Each caption is a query."""
    return photo.captions.get(language, ())


def first_caption(photo: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """One query a photo: its first caption."""
    return every_caption(photo, language)[:1]


def people_s_chinese(photo: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """COCO-CN: Chinese that people wrote for the photo, not translations of its English.

    A few photos have two or three such sentences; each is a query. Other languages: all.
    """
    captions = every_caption(photo, language)
    if language != "zh":
        return captions
    return tuple(caption for caption in captions if caption.source == "coco-cn")


PROTOCOLS: Mapping[str, Protocol] = {
    "test-xtd10": first_caption,
    "test-cococn": people_s_chinese,
    "test-flickr8k": every_caption,
}


def protocol_of(split: str) -> Protocol:
    """The split's published protocol; every caption a query for all others."""
    return PROTOCOLS.get(split, every_caption)
