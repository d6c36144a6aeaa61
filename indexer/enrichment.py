"""Captions and tags that models write about the images of an index.

Vectors come first, so that search works at once; then this, batch by batch, each committed as a
whole: a run that was stopped or killed goes on where it was. Tags are made from the features in the
index. Captions need the feature map, for which images are decoded and encoded again: kept for this,
feature maps (49 x 1,280 float16 an image) would take twenty times the room of the index itself and
save a third of the time.

What people say about generated captions: accepted or corrected ones become theirs.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter

import numpy as np

from capsearch.encoders.images.open import DECODING, DEFAULT_PIXELS, MAX_PIXELS
from capsearch.encoders.models.describe import no_heads
from capsearch.engine.errors import InvalidCaptions, UnknownModel
from capsearch.engine.protocols import Captioner, Enricher, Head, Tagger
from capsearch.engine.records import HAND, Caption, ImageFeatures, Progress
from capsearch.indexer.prepare import DecodeJournal, Prepared, prepare_in_groups
from capsearch.indexer.sources.metadata import written_caption
from capsearch.indexer.sources.scan import ImageFile, Skipped
from capsearch.indexer.store import Descriptions, Store, Writable

_TAGGED_AT_ONCE = 1024
_ENCODED_EVERY = 32  # batches: then captions get vectors, and words are found


@dataclass(frozen=True, slots=True)
class EnrichOptions:
    """Settings of a run; each is an option of `capsearch enrich`."""

    paths: tuple[Path, ...] = ()  # only images here and below; (): all
    redo: bool = False  # also images that these models have described
    batch_size: int = 32
    decode_threads: int | None = None  # None: one per core
    max_pixels: int = MAX_PIXELS
    decode_pixels: int = DEFAULT_PIXELS  # decoded at once, by all threads of the process


_DEFAULTS = EnrichOptions()


@dataclass(frozen=True, slots=True)
class EnrichSummary:
    """What a run did: images tagged and captioned, captions written, files that failed.

    `pending` counts images that are left, because the run was interrupted or their files failed.
    """

    tagged: int
    captioned: int
    captions: int
    pending: int
    skipped: tuple[Skipped, ...]
    interrupted: bool
    seconds: float
    models: tuple[str, ...]


def enrich(
    collection: Writable,
    options: EnrichOptions = _DEFAULTS,
    progress: Callable[[Progress], None] = lambda progress: None,
    stop: threading.Event | None = None,
) -> EnrichSummary:
    """Describes images that the model's tagger and captioner have not described yet.

    What other models wrote about them is replaced, what people wrote is not touched. `stop` ends
    the run after the current batch. UnknownModel when the model has neither tagger nor captioner,
    ModelMismatch when the index was made with another model.
    """
    store = collection.store()
    store.require_same_model()
    enricher = store.model.enricher()
    if not enricher:
        raise UnknownModel(no_heads(store.model.name))
    started = perf_counter()
    with store.writing(rebuild=False):
        written = store.descriptions()
        run = _Run(store, written, enricher, options, progress, stop or threading.Event())
        run.run()
        store.finish()
    return run.summary(perf_counter() - started)


@dataclass(slots=True)
class _Run:
    store: Store
    written: Descriptions
    enricher: Enricher
    options: EnrichOptions
    show: Callable[[Progress], None]
    stop: threading.Event
    skipped: list[Skipped] = field(default_factory=list)
    tagged: int = 0
    captioned: int = 0
    captions: int = 0

    def run(self) -> None:
        for _ in self.store.index_words():  # documents of an older schema do not say who wrote
            pass
        if self.options.redo:
            self.written.reset(self._folders)
        if self.enricher.tagger is not None:
            self._tag(self.enricher.tagger)
        if self.enricher.captioner is not None and not self.stop.is_set():
            self._caption(self.enricher.captioner)
        self._make_searchable()

    def summary(self, seconds: float) -> EnrichSummary:
        return EnrichSummary(
            self.tagged,
            self.captioned,
            self.captions,
            self._pending(),
            tuple(self.skipped),
            self.stop.is_set(),
            seconds,
            tuple(one.name for one in (self.enricher.tagger, self.enricher.captioner) if one),
        )

    @property
    def _folders(self) -> tuple[str, ...]:
        return tuple(str(path.expanduser().resolve()) for path in self.options.paths)

    def _pending(self) -> int:
        tagger, captioner = self.enricher.tagger, self.enricher.captioner
        left = [self.written.count("tagger", tagger.name, self._folders)] if tagger else []
        if captioner is not None:
            left.append(self.written.count("captioner", captioner.name, self._folders))
        return max(left, default=0)

    def _tag(self, tagger: Tagger) -> None:
        """From the stored features: no image is opened."""
        total = self.written.count("tagger", tagger.name, self._folders)
        for batch in self._pending_images("tagger", tagger.name):
            features = self.written.features(batch)
            if features:
                found = tagger.tag(ImageFeatures(np.stack(list(features.values()))))
                self.written.put_tags(tagger.name, dict(zip(features, found, strict=True)))
            self.tagged += len(features)
            self.show(Progress("tag images", self.tagged, total))

    def _caption(self, captioner: Captioner) -> None:
        total, done = self.written.count("captioner", captioner.name, self._folders), 0
        DECODING.resize(self.options.decode_pixels)
        for batch in self._decoded(captioner):
            if not self._put_captions(captioner, batch):
                return  # a backbone without feature maps
            done += len(batch)
            if done // self.options.batch_size % _ENCODED_EVERY == 0:
                self._make_searchable()
            self.show(Progress("caption images", done, total, batch[-1].file.path))

    def _put_captions(self, captioner: Captioner, batch: Sequence[Prepared]) -> bool:
        pixels = [one.decoded.pixels for one in batch if one.decoded is not None]
        features = self.store.model.image.feature_maps(pixels)
        if features.grid is None:
            name = self.store.model.image.name
            self.skipped.append(Skipped(name, "gives no feature map, so no captions are written"))
            self.enricher = replace(self.enricher, captioner=None)
            return False
        found = captioner.caption(features)
        ids = [one.image_id for one in batch]
        self.captions += self.written.put_captions(
            captioner.name, dict(zip(ids, found, strict=True))
        )
        self.captioned += len(batch)
        return True

    def _decoded(self, captioner: Captioner) -> Iterator[list[Prepared]]:
        """Batches of images with pixels; a file that fails or holds another image is named."""
        for pending in self._pending_images("captioner", captioner.name):
            yield from self._batches(pending)

    def _pending_images(self, head: Head, name: str) -> Iterator[Sequence[str]]:
        """Their ids, many at a time; those that fail are not tried again."""
        last = ""
        while not self.stop.is_set() and (
            pending := self.written.pending(head, name, self._folders, last, _TAGGED_AT_ONCE)
        ):
            last = pending[-1]
            yield pending

    def _batches(self, pending: Sequence[str]) -> Iterator[list[Prepared]]:
        files = self._files(pending)
        batch: list[Prepared] = []
        groups = prepare_in_groups(
            list(files),
            (),
            self.store.model.image.preprocess,
            self.options.max_pixels,
            self.options.decode_threads,
            self.stop,
            DecodeJournal(self.store.path),
            self.options.batch_size,
        )
        for outcome in (one for group in groups for one in group):
            if not isinstance(outcome, Prepared):
                self.skipped.extend(outcome.problems)
            elif outcome.image_id != files[outcome.file]:
                reason = "has changed since it was indexed; run `capsearch index`"
                self.skipped.append(Skipped(outcome.file.path, reason))
            else:
                batch.append(outcome)
            if len(batch) >= self.options.batch_size:
                yield batch
                batch = []
        if batch:
            yield batch

    def _files(self, pending: Sequence[str]) -> dict[ImageFile, str]:
        """A file of each image that is still there, and the image's id."""
        records = self.written.records(pending)
        found: dict[ImageFile, str] = {}
        for record in records.values():
            file = next((one for one in map(_file, record.paths) if one), None)
            if file is None:
                self.skipped.append(Skipped(record.path, "is gone; run `capsearch index`"))
            else:
                found[file] = record.id
        return found

    def _make_searchable(self) -> None:
        """Vectors of new captions, words of new captions and tags."""
        total = self.store.pending_captions()
        for done in self.store.encode_captions():
            self.show(Progress("encode captions", done, total))
        for _ in self.store.index_words():
            pass


def _file(path: str) -> ImageFile | None:
    """None if it is gone, or no file."""
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    regular = stat.S_ISREG(status.st_mode)
    return ImageFile(path, status.st_mtime_ns, status.st_size) if regular else None


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
