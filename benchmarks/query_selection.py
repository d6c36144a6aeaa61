"""Which captions of a split are queries: the published protocols, and a default for others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from capsearch.encoders.datasets.dataset import CaptionedImage
from capsearch.engine.records import Caption

Protocol: TypeAlias = Callable[[CaptionedImage, str], tuple[Caption, ...]]


def every_caption(image: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """Every caption is a query."""
    return image.captions.get(language, ())


def first_caption(image: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """One query an image: its first caption."""
    return every_caption(image, language)[:1]


def human_chinese(image: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """COCO-CN: Chinese captions written for the image, not translations of its English ones.

    A few images have two or three of them; each is a query. Other languages: every caption.
    """
    captions = every_caption(image, language)
    if language != "zh":
        return captions
    return tuple(caption for caption in captions if caption.source == "coco-cn")


PROTOCOLS: Mapping[str, Protocol] = {
    "test-xtd10": first_caption,
    "test-cococn": human_chinese,
    "test-flickr8k": every_caption,
}


def protocol_of(split: str) -> Protocol:
    """The published protocol of a split; for splits without one, `every_caption`."""
    return PROTOCOLS.get(split, every_caption)
