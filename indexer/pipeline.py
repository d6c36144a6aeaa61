"""Bringing an index up to date with folders of images.

A run scans the folders, compares them with the catalog, encodes new images, removes files that no
longer exist, and encodes new captions.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from capsearch.encoders.image_files import MAX_PIXELS
from capsearch.encoders.pixel_budget import DECODING, DEFAULT_PIXELS
from capsearch.engine.errors import IndexProblem, RootUnavailable
from capsearch.indexer.embedded import maintenance
from capsearch.indexer.embedded.catalog_writer import CatalogWriter, KnownFile
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.embedded.words import tokens_of
from capsearch.indexer.encoding import CaptionEncoding, ImageEncoding
from capsearch.indexer.in_flight import DecodeJournal
from capsearch.indexer.prepare import Prepared, prepare_in_groups, read_sidecars
from capsearch.indexer.sources.captions import NamedCaption, read_captions
from capsearch.indexer.sources.matching import matched
from capsearch.indexer.sources.scan import ImageFile, Scan, Skipped, outermost, scan


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Settings of a run; each is an option of `capsearch index`."""

    exclude: tuple[str, ...] = ()  # globs of files and folders to leave out
    captions: tuple[Path, ...] = ()  # captions files to read
    rebuild: bool = False
    batch_size: int = 32  # images encoded and committed at once
    decode_threads: int | None = None  # None: one per core
    max_pixels: int = MAX_PIXELS  # larger images are skipped
    follow_symlinks: bool = False  # also enter linked folders
    decode_pixels: int = DEFAULT_PIXELS  # decoded at once, by all threads of the process


_DEFAULTS = IndexOptions()
_WORDS_A_BATCH = 2048


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: `done` of `total` (None: unknown) in "scan", "embed" or "captions"."""

    stage: str
    done: int
    total: int | None
    current: str | None = None


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What a run did.

    `added` counts images that were encoded; `reused` counts new files whose image already had a
    vector (renamed, copied or restored); `removed` and `unchanged` count files. `found` counts
    image files, `excluded` and `index_folders` what the scan left out.
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


def index(
    collection: Collection,
    roots: Sequence[Path],
    options: IndexOptions = _DEFAULTS,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> IndexSummary:
    """Brings the index up to date with `roots`; without any, with the roots indexed before.

    Unchanged files are not opened. Files that no longer exist under these roots are removed from
    the index. RootUnavailable, with no change, when a root does not exist or has lost all its
    images. Each batch is committed as a whole; `stop` ends the run after the current one.
    ModelMismatch when the index was built with another model and `options.rebuild` is not set.
    """
    started = perf_counter()
    named = {file.resolve(): read_captions(file) for file in options.captions}
    if not options.rebuild:
        collection.require_same_model()
    wanted = _roots(collection, roots, options.rebuild)
    may_be_empty = frozenset(outermost(roots) if options.rebuild else ())
    run = _Run(collection, options, progress or _ignore, stop or threading.Event(), may_be_empty)
    with warnings.catch_warnings():
        # Pillow warns of broken EXIF, which is ignored, and of sizes, which max_pixels limits.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        run.run(wanted, named)
    collection.finish()
    return run.summary(perf_counter() - started)


def _ignore(progress: Progress) -> None:
    pass


def _roots(collection: Collection, given: Sequence[Path], rebuild: bool) -> tuple[Path, ...]:
    """The roots to scan. A rebuild concerns the whole index, so it includes all known roots."""
    known = collection.catalog.roots()
    wanted = outermost([*given, *known] if rebuild else given or known)
    if not wanted:
        raise IndexProblem("nothing to index: name a folder, as in `capsearch index ~/Pictures`")
    return wanted


@dataclass(slots=True)
class _Run:
    collection: Collection
    options: IndexOptions
    show: Callable[[Progress], None]
    stop: threading.Event
    may_be_empty: frozenset[Path]  # roots named in a rebuild: they may have lost all images
    reused: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    captions_added: int = 0
    added: int = 0
    listing: Scan = field(default_factory=Scan)

    def run(self, roots: Sequence[Path], named: dict[Path, tuple[NamedCaption, ...]]) -> None:
        writer = CatalogWriter(self.collection.catalog)
        self.show(Progress("scan", 0, None))
        listing = self.listing = scan(
            roots,
            self.options.exclude,
            self.collection.path,
            self.options.follow_symlinks,
            lambda found: self.show(Progress("scan", found, None)),
        )
        self.show(Progress("scan", len(listing.files), len(listing.files)))
        _refuse_emptied(writer, [root for root in roots if root not in self.may_be_empty], listing)
        if self.options.rebuild:
            maintenance.rebuild(self.collection)
        self.skipped.extend(listing.skipped)
        with writer.transaction(visible=False):
            writer.add_roots(roots)
        self._encode_images(writer, self._changed(writer, roots, listing))
        if not self.stop.is_set():
            self._remove_missing(writer, roots, listing)
            self._add_named_captions(writer, named)
            self._encode_captions(writer)
            self._index_words(writer)
        if not self.stop.is_set():
            maintenance.compact(self.collection)
            maintenance.finish_rebuild(self.collection)

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
        )

    def _changed(
        self, writer: CatalogWriter, roots: Sequence[Path], listing: Scan
    ) -> list[ImageFile]:
        """The new and changed files. Unchanged ones are counted, and edited sidecars are read."""
        known, refused = writer.files(roots), writer.skipped(roots)
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
                    edited.append((file, old.image_id))
        self._read_sidecars(writer, edited)
        return changed

    def _read_sidecars(
        self, writer: CatalogWriter, edited: Sequence[tuple[ImageFile, str]]
    ) -> None:
        with writer.transaction():
            for file, image_id in edited:
                captions, problems = read_sidecars(file)
                self.skipped.extend(problems)
                state = file.without_sidecars() if problems else file
                self.captions_added += writer.put_file(state, image_id, captions)

    def _encode_images(self, writer: CatalogWriter, files: Sequence[ImageFile]) -> None:
        encoding = ImageEncoding(self.collection, writer, self.options.batch_size)
        known, done = writer.encoded_ids(), 0
        DECODING.resize(self.options.decode_pixels)
        groups = prepare_in_groups(
            files,
            known,
            self.collection.model.image.preprocess,
            self.options.max_pixels,
            self.options.decode_threads,
            self.stop,
            DecodeJournal(self.collection.path),
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

    def _remove_missing(self, writer: CatalogWriter, roots: Sequence[Path], listing: Scan) -> None:
        """Removes files that no longer exist; those in folders that cannot be read stay."""
        present = {file.path for file in listing.files}
        unreadable = [Path(path) for path in listing.unreadable]

        def missing(path: str) -> bool:
            inside = any(Path(path).is_relative_to(folder) for folder in unreadable)
            return path not in present and not inside

        files = [path for path in writer.files(roots) if missing(path)]
        refused = [path for path in writer.skipped(roots) if missing(path)]
        self.removed = len(files)
        with writer.transaction():
            writer.remove_files([*files, *refused])
            writer.remove_orphans()

    def _add_named_captions(
        self, writer: CatalogWriter, named: dict[Path, tuple[NamedCaption, ...]]
    ) -> None:
        for file, captions in named.items():
            pairs, unmatched = matched(self.collection.catalog.image_paths(), file, captions)
            if unmatched:
                reason = f"{unmatched} of {len(captions)} captions name no image of this index"
                self.skipped.append(Skipped(str(file), reason))
            with writer.transaction():
                self.captions_added += writer.replace_named(file, pairs)

    def _index_words(self, writer: CatalogWriter) -> None:
        """Words of captions, tags and file names of images that something was written about."""
        words_of = self.collection.model.text.words
        while stale := writer.stale_words(_WORDS_A_BATCH):
            documents = self.collection.catalog.documents([image_id for image_id, _ in stale])
            with writer.transaction():
                writer.put_words(
                    [
                        (number, tokens_of(documents.get(image_id), words_of))
                        for image_id, number in stale
                    ]
                )
            if self.stop.is_set():
                return

    def _encode_captions(self, writer: CatalogWriter) -> None:
        encoding = CaptionEncoding(self.collection, writer)
        total = encoding.pending()
        for done in encoding.batches():
            self.show(Progress("captions", done, total))
            if self.stop.is_set():
                return


def _same(file: ImageFile, known: ImageFile | KnownFile) -> bool:
    return (file.mtime_ns, file.size) == (known.mtime_ns, known.size)


def _refuse_emptied(writer: CatalogWriter, roots: Sequence[Path], listing: Scan) -> None:
    """RootUnavailable for a root without images that had some: its drive may not be mounted."""
    for root in roots:
        known = len(writer.files([root]))
        if known and not any(Path(file.path).is_relative_to(root) for file in listing.files):
            raise RootUnavailable(
                f"{root} holds no images, but the index has {known} from there; mount the drive, "
                f"or, if they were deleted, run `capsearch index --rebuild {root}`"
            )
