"""Bringing an index up to date with folders of images.

A run scans the folders, compares them with what is stored, encodes new images, removes files that
no longer exist, and encodes new captions. Where all this is stored is the business of a Store.

Encoding images and captions in batches.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np

from capsearch.encoders.images.open import DECODING, DEFAULT_PIXELS, MAX_PIXELS
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Progress, Vectors
from capsearch.indexer.prepare import (
    DecodeJournal,
    Outcome,
    Prepared,
    prepare_in_groups,
    read_sidecars,
    xmp_sidecars,
)
from capsearch.indexer.roots import (
    KEEP_MISSING_DAYS,
    CaptionsFiles,
    Named,
    Removal,
    Roots,
    mount_points,
    read_given,
    refuse_if_all_are_empty,
    scan_roots,
)
from capsearch.indexer.sources.metadata import merged
from capsearch.indexer.sources.scan import ImageFile, Scan, Skipped
from capsearch.indexer.store import EditedSidecars, EncodedImage, KnownFile, Store, Writable

if TYPE_CHECKING:
    from capsearch.indexer.enrichment import EnrichSummary

_MAX_FILES_PER_BATCH = 512  # or the batch size; known and refused files count, too


class ImageEncoding:
    """Collects prepared files, encodes new images, and stores them batch by batch."""

    def __init__(self, store: Store, batch_size: int) -> None:
        self._store, self._batch_size = store, batch_size
        self._batch: list[Outcome] = []
        self._new: dict[str, Prepared] = {}
        self.added = self.captions_added = 0

    def add(self, outcome: Outcome) -> None:
        """Adds a file to the batch; a full batch is encoded and stored."""
        self._batch.append(outcome)
        if isinstance(outcome, Prepared) and outcome.decoded is not None:
            self._new.setdefault(outcome.image_id, outcome)
        max_files = max(self._batch_size, _MAX_FILES_PER_BATCH)
        if len(self._new) >= self._batch_size or len(self._batch) >= max_files:
            self.flush()

    def flush(self) -> None:
        """Encodes and stores the batch."""
        if not self._batch:
            return
        encoded = self._store.encoded_ids_among(list(self._new))
        new = [image for image_id, image in self._new.items() if image_id not in encoded]
        self.captions_added += self._store.put(self._encoded(new), self._batch)
        self.added += len(new)
        self._batch, self._new = [], {}

    def _encoded(self, new: Sequence[Prepared]) -> list[EncodedImage]:
        if not new:
            return []
        encoder = self._store.model.image
        # Projected from the float16 features that are stored: a rebuild must get the same.
        pixels = [image.decoded.pixels for image in new if image.decoded]
        features = encoder.features(pixels).astype(np.float16)
        vectors = encoder.project(features.astype(np.float32))
        rows = zip(new, features, vectors, strict=True)
        return [EncodedImage(*row) for row in rows]


def encode_captions(text: TextEncoder, captions: Sequence[tuple[str, str]]) -> list[Vectors | None]:
    """Vectors of (text, language) pairs; None for those without a token the model knows."""
    rows: list[Vectors | None] = [None] * len(captions)
    for language in sorted({language for _, language in captions}):
        numbers = [at for at, (_, one) in enumerate(captions) if one == language]
        encoded = text.encode([captions[at][0] for at in numbers], language)
        documents = text.as_documents(encoded.caption)
        for at, row, known in zip(numbers, documents, encoded.known, strict=True):
            rows[at] = row if known else None
    return rows


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Settings of a run; each is an option of `capsearch index`."""

    exclude: tuple[str, ...] = ()  # globs to leave out; (): as before, ("",): nothing
    captions: tuple[Path, ...] = ()  # captions files to read; those of earlier runs are read too
    rebuild: bool = False
    confirm_removed: tuple[Path, ...] = ()  # folders whose images were really deleted
    prune: bool = False  # delete images without files now
    keep_missing: float | None = None  # days; None: as before, at first 30
    batch_size: int = 32  # images encoded and committed at once
    decode_threads: int | None = None  # None: one per core
    max_pixels: int = MAX_PIXELS  # larger images are skipped
    follow_symlinks: bool = False  # also enter linked folders
    decode_pixels: int = DEFAULT_PIXELS  # decoded at once, by all threads of the process


_DEFAULTS = IndexOptions()


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What a run did.

    `added` counts images that were encoded; `reused` counts new files whose image already had a
    vector (renamed, copied or restored); `removed` and `unchanged` count files. `found` counts
    image files, `excluded` and `index_folders` what the scan left out. `missing` counts images
    without a file that are kept, `pruned` those that were deleted.
    """

    added: int
    reused: int
    removed: int
    unchanged: int
    captions_added: int
    skipped: tuple[Skipped, ...]
    interrupted: bool
    seconds: float
    found: int = 0
    excluded: int = 0
    index_folders: int = 0
    missing: int = 0
    pruned: int = 0
    enriched: EnrichSummary | None = None  # what the model wrote afterwards, if it did


def index(
    collection: Writable,
    roots: Sequence[Path],
    options: IndexOptions = _DEFAULTS,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> IndexSummary:
    """Brings the index up to date with `roots`; without any, with the roots indexed before.

    Unchanged files are not opened. Images whose files no longer exist are not found any more; what
    is known of them is kept for a while. A root that does not exist, and a folder that has
    suddenly lost all its images, are named and nothing is removed there; RootUnavailable, with no
    change, when this holds for all roots. Each batch is committed as a whole; `stop` ends the run
    after the current one. ModelMismatch when the index was built with another model and
    `options.rebuild` is not set.
    """
    started = perf_counter()
    given = read_given(options.captions)
    store = collection.store()
    if not options.rebuild:
        store.require_same_model()
    wanted = Roots.of(store, roots, options.rebuild, options.exclude)
    named = [*options.confirm_removed, *(roots if options.rebuild else ())]
    confirmed = wanted.paths if options.prune else tuple(path.resolve() for path in named)
    stop = stop or threading.Event()
    run = _Run(store, options, progress or _ignore, stop, wanted, confirmed)
    with warnings.catch_warnings():
        # Pillow warns of broken EXIF, which is ignored, and of sizes, which max_pixels limits.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        run.run(given)
    return run.summary(perf_counter() - started)


def _ignore(progress: Progress) -> None:
    pass


@dataclass(slots=True)
class _Run:
    store: Store
    options: IndexOptions
    show: Callable[[Progress], None]
    stop: threading.Event
    roots: Roots
    confirmed: tuple[Path, ...]  # folders whose images were really deleted
    reused: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    captions_added: int = 0
    added: int = 0
    changed: bool = False  # any file is new, has changed or is gone
    before: frozenset[str] = frozenset()  # files that were known when the run began
    missing: int = 0
    pruned: int = 0
    listing: Scan = field(default_factory=Scan)

    def run(self, given: Named) -> None:
        self.show(Progress("scan", 0, None))
        listing = self.listing = scan_roots(
            self.roots,
            self.store.path,
            self.options.follow_symlinks,
            lambda found: self.show(Progress("scan", found, None)),
        )
        self.show(Progress("scan", len(listing.files), len(listing.files)))
        refuse_if_all_are_empty(self.store, self.roots, listing, self.confirmed)
        self.skipped.extend((*self.roots.problems, *listing.skipped))
        with self.store.writing(self.options.rebuild):
            self._write(listing, given)
            self.store.finish()

    def _write(self, listing: Scan, given: Named) -> None:
        roots = self.roots.paths
        self.store.remember(self.roots.excludes, mount_points(roots, listing))
        self._encode_images(self._changed(roots, listing))
        if not self.stop.is_set():
            self._remove(listing)
            self._add_named_captions(given)
            self._encode_captions()
            self._index_words()
        if not self.stop.is_set():
            self.store.complete()
            self._prune()

    def summary(self, seconds: float) -> IndexSummary:
        return IndexSummary(
            self.added,
            self.reused,
            self.removed,
            self.unchanged,
            self.captions_added,
            tuple(sorted(set(self.skipped), key=lambda skipped: skipped.path)),
            self.stop.is_set(),
            seconds,
            len(self.listing.files),
            self.listing.excluded,
            self.listing.index_folders,
            self.missing,
            self.pruned,
        )

    def _changed(self, roots: Sequence[Path], listing: Scan) -> list[ImageFile]:
        """The new and changed files. Unchanged ones are counted, and edited sidecars are read."""
        known, refused = self.store.files(roots), self.store.skipped(roots)
        self.before = frozenset(known)
        changed, edited = [], []
        for file in listing.files:
            old = known.get(file.path)
            state, reason = refused.get(file.path, (None, ""))
            if state is not None and _same(file, state):
                self.skipped.append(Skipped(file.path, reason))
            elif old is None or not old.encoded or not _same(file, old):
                changed.append(file)
            else:
                self.unchanged += 1
                if old.sidecars != file.sidecar_state:
                    edited.append(self._read_sidecars(file, old.image_id))
        if edited:
            self.captions_added += self.store.put_sidecars(edited)
        self.changed = bool(changed)
        return changed

    def _read_sidecars(self, file: ImageFile, image_id: str) -> EditedSidecars:
        captions, problems = read_sidecars(file)
        self.skipped.extend(problems)
        tags = merged([*xmp_sidecars(file)]).tags
        read = file.without_sidecars() if problems else file
        return EditedSidecars(read, image_id, captions, tags)

    def _encode_images(self, files: Sequence[ImageFile]) -> None:
        encoding = ImageEncoding(self.store, self.options.batch_size)
        known, done = self.store.encoded_ids(), 0
        DECODING.resize(self.options.decode_pixels)
        groups = prepare_in_groups(
            files,
            known,
            self.store.model.image.preprocess,
            self.options.max_pixels,
            self.options.decode_threads,
            self.stop,
            DecodeJournal(self.store.path),
            self.options.batch_size,
        )
        for outcomes in groups:
            for outcome in outcomes:
                done += 1
                self.skipped.extend(outcome.problems)
                encoding.add(outcome)
                if isinstance(outcome, Prepared) and outcome.image_id in known:
                    self.reused += 1
                elif isinstance(outcome, Prepared):
                    known.add(outcome.image_id)
                self.show(Progress("embed", done, len(files), outcome.file.path))
            encoding.flush()
        self.added += encoding.added
        self.captions_added += encoding.captions_added

    def _remove(self, listing: Scan) -> None:
        """Files that are gone leave the index, but for those of folders that look unmounted."""
        removal = Removal.of(self.store, self.roots.paths, listing, self.before, self.confirmed)
        self.skipped.extend(removal.kept)
        self.removed = len(removal.files)
        self.changed |= bool(removal.files)
        self.store.remove_files(removal.files, removal.refused)

    def _prune(self) -> None:
        """Images that have been without a file for long leave the index for good."""
        days = self.store.keep_days(self.options.keep_missing)
        days = KEEP_MISSING_DAYS if days is None else days
        self.pruned = self.store.prune(0.0 if self.options.prune else days)
        self.missing = self.store.missing()

    def _add_named_captions(self, given: Named) -> None:
        files = CaptionsFiles(self.store)
        self.captions_added += files.update(given, self.changed)
        self.skipped.extend(files.skipped)

    def _index_words(self) -> None:
        for _ in self.store.index_words():
            if self.stop.is_set():
                return

    def _encode_captions(self) -> None:
        total = self.store.pending_captions()
        for done in self.store.encode_captions():
            self.show(Progress("captions", done, total))
            if self.stop.is_set():
                return


def _same(file: ImageFile, known: ImageFile | KnownFile) -> bool:
    return (file.mtime_ns, file.size) == (known.mtime_ns, known.size)
