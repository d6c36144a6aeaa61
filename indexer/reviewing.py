"""What people say about generated captions: accepted or corrected ones become theirs."""

from __future__ import annotations

from collections.abc import Callable

from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.records import Caption
from capsearch.indexer.sources.metadata import written_caption
from capsearch.indexer.store import HAND, Descriptions, Writable


def accept(collection: Writable, image_id: str, caption: Caption) -> None:
    """A generated caption is right: from now on it is a person's.

    Like the others here: InvalidCaptions if the image has no such caption any more. It is found at
    once.
    """
    _change(
        collection, caption,
        lambda written: written.accept(image_id, caption, caption.text, caption.language),
    )  # fmt: skip


def correct(collection: Writable, image_id: str, caption: Caption, text: str) -> None:
    """A person's text replaces a generated caption; InvalidCaptions for one that is no caption."""
    new = written_caption(text, HAND, caption.language)
    if new is None:
        raise InvalidCaptions(f"{text!r} is no caption: write at least two letters")
    _change(
        collection, caption,
        lambda written: written.accept(image_id, caption, new.text, new.language),
    )  # fmt: skip


def reject(collection: Writable, image_id: str, caption: Caption) -> None:
    """A generated caption is wrong: it goes, and does not come back."""
    _change(collection, caption, lambda written: written.reject(image_id, caption))


def _change(collection: Writable, caption: Caption, change: Callable[[Descriptions], bool]) -> None:
    store = collection.store()
    with store.writing(rebuild=False):
        if not caption.generated or not change(store.descriptions()):
            raise InvalidCaptions(f"this image has no generated caption {caption.text!r} any more")
