"""What people say about generated captions: accepted or corrected ones become theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from capsearch.encoders.models import Model
from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.records import Caption
from capsearch.indexer.embedded.catalog_writer import CatalogWriter
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.embedded.enriched import HAND, EnrichedTable
from capsearch.indexer.sources.metadata import written_caption


def accept(index: Path, model: Model, image_id: str, caption: Caption) -> None:
    """A generated caption is right: from now on it is a person's.

    Like the others here: InvalidCaptions if the image has no such caption any more, IndexBusy
    while another process writes.
    """
    _change(
        index, model, image_id, caption,
        lambda table: table.accept(image_id, caption, caption.text, caption.language),
    )  # fmt: skip


def correct(index: Path, model: Model, image_id: str, caption: Caption, text: str) -> None:
    """A person's text replaces a generated caption; InvalidCaptions for one that is no caption."""
    written = written_caption(text, HAND, caption.language)
    if written is None:
        raise InvalidCaptions(f"{text!r} is no caption: write at least two letters")
    _change(
        index, model, image_id, caption,
        lambda table: table.accept(image_id, caption, written.text, written.language),
    )  # fmt: skip


def reject(index: Path, model: Model, image_id: str, caption: Caption) -> None:
    """A generated caption is wrong: it goes, and does not come back."""
    _change(index, model, image_id, caption, lambda table: table.reject(image_id, caption))


def _change(
    index: Path,
    model: Model,
    image_id: str,
    caption: Caption,
    change: Callable[[EnrichedTable], None],
) -> None:
    """One transaction, then the vector and the words of what is new: it is found at once."""
    with Collection.create(index, model) as collection:
        writer = CatalogWriter(collection.catalog)
        written = collection.catalog.captions([image_id]).get(image_id, ())
        if not caption.generated or caption not in written:
            raise InvalidCaptions(f"this image has no generated caption {caption.text!r} any more")
        with writer.transaction():
            change(EnrichedTable(collection.catalog))
        store = collection.store()
        for _ in store.encode_captions():
            pass
        for _ in store.index_words():
            pass
