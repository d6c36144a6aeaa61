"""Bringing an index up to date with folders of images: scan, compare, embed, forget."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter

from capsearch.encoders.image_files import MAX_PIXELS
from capsearch.engine.errors import IndexProblem, RootUnavailable
from capsearch.indexer.embedded import maintenance
from capsearch.indexer.embedded.catalog_writer import CatalogWriter, KnownFile
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.encoding import CaptionEncoding, Embedding
from capsearch.indexer.prepare import Prepared, prepared, read_sidecars
from capsearch.indexer.sources.captions import NamedCaption, read_captions
from capsearch.indexer.sources.matching import matched
from capsearch.indexer.sources.scan import ImageFile, Scan, Skipped, outermost, scan


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """How to index."""

    exclude: tuple[str, ...] = ()
    captions: tuple[Path, ...] = ()
    rebuild: bool = False
    batch_size: int = 32
    decode_threads: int | None = None  # None: one for each core
    max_pixels: int = MAX_PIXELS
    follow_symlinks: bool = False


_DEFAULTS = IndexOptions()


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: `done` of `total` (None: nobody knows) in "scan", "embed", "captions"."""

    stage: str
    done: int
    total: int | None
    current: str | None = None


@dataclass(frozen=True, slots=True)
class IndexSummary:
    """What a run did.

    `added` images went through the network; `reused` files hold an image that was known
    (renamed, copied or restored); `removed` and `unchanged` are files.
    """

    added: int
    reused: int
    removed: int
    unchanged: int
    captions_added: int
    skipped: tuple[Skipped, ...]
    interrupted: bool
    seconds: float


def index(
    collection: Collection,
    roots: Sequence[Path],
    options: IndexOptions = _DEFAULTS,
    progress: Callable[[Progress], None] | None = None,
    stop: threading.Event | None = None,
) -> IndexSummary:
    """Brings the index up to date with `roots`, or with the roots it knows if there are none.

    Unchanged files cost a stat. Files gone from under these roots leave the index; a root that
    is not there, or suddenly empty, is an error and changes nothing. Each batch is committed
    as a whole; `stop` ends the run after the one in flight. ModelMismatch when the index was
    made with another model and `options.rebuild` is not set.
    """
    started = perf_counter()
    named = {file.resolve(): read_captions(file) for file in options.captions}
    if not options.rebuild:
        collection.require_same_model()
    wanted = _roots(collection, roots, options.rebuild)
    trusted = frozenset(outermost(roots) if options.rebuild else ())
    run = _Run(collection, options, progress or _silent, stop or threading.Event(), trusted)
    with warnings.catch_warnings():
        # Broken EXIF does not matter, and decode refuses what is too large by its own limit.
        warnings.filterwarnings("ignore", module=r"PIL\.")
        run.all(wanted, named)
    collection.finish()
    return run.summary(perf_counter() - started)


def _silent(progress: Progress) -> None:
    pass


def _roots(collection: Collection, given: Sequence[Path], rebuild: bool) -> tuple[Path, ...]:
    """What to look at. Rebuilding concerns the whole index, so all its roots."""
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
    trusted: frozenset[Path]  # roots that may have become empty: named in a rebuild
    reused: int = 0
    removed: int = 0
    unchanged: int = 0
    skipped: list[Skipped] = field(default_factory=list)
    captions_added: int = 0
    added: int = 0

    def all(self, roots: Sequence[Path], named: dict[Path, tuple[NamedCaption, ...]]) -> None:
        writer = CatalogWriter(self.collection.catalog)
        self.show(Progress("scan", 0, None))
        listing = scan(
            roots, self.options.exclude, self.collection.path, self.options.follow_symlinks
        )
        self.show(Progress("scan", len(listing.found), len(listing.found)))
        _refuse_emptied(writer, [root for root in roots if root not in self.trusted], listing)
        if self.options.rebuild:
            maintenance.rebuild(self.collection)
        self.skipped.extend(listing.skipped)
        with writer.transaction(visible=False):
            writer.remember_roots(roots)
        self._embed(writer, self._to_do(writer, roots, listing))
        if not self.stop.is_set():
            self._forget(writer, roots, listing)
            self._name(writer, named)
            self._encode_captions(writer)
        if not self.stop.is_set():
            maintenance.compact(self.collection)
            maintenance.rebuilt(self.collection)

    def summary(self, seconds: float) -> IndexSummary:
        return IndexSummary(
            self.added,
            self.reused,
            self.removed,
            self.unchanged,
            self.captions_added,
            tuple(sorted(set(self.skipped), key=lambda one: one.path)),
            self.stop.is_set(),
            seconds,
        )

    def _to_do(
        self, writer: CatalogWriter, roots: Sequence[Path], listing: Scan
    ) -> list[ImageFile]:
        """The files that must be opened. The others are counted, and their sidecars re-read."""
        known, refused = writer.files(roots), writer.skipped(roots)
        to_do, edited = [], []
        for found in listing.found:
            old = known.get(found.path)
            state, reason = refused.get(found.path, (None, ""))
            if state is not None and _same(found, state):
                self.skipped.append(Skipped(found.path, reason))
            elif old is None or not old.embedded or not _same(found, old):
                to_do.append(found)
            else:
                self.unchanged += 1
                if old.sidecars != found.stamp:
                    edited.append((found, old.image_id))
        self._read_sidecars(writer, edited)
        return to_do

    def _read_sidecars(
        self, writer: CatalogWriter, edited: Sequence[tuple[ImageFile, str]]
    ) -> None:
        with writer.transaction():
            for found, image_id in edited:
                captions, problems = read_sidecars(found)
                self.skipped.extend(problems)
                seen = found.unsettled() if problems else found
                self.captions_added += writer.put_file(seen, image_id, captions)

    def _embed(self, writer: CatalogWriter, to_do: Sequence[ImageFile]) -> None:
        embedding = Embedding(self.collection, writer, self.options.batch_size)
        known = writer.embedded_ids()
        files = prepared(
            to_do,
            known,
            self.collection.model.image.preprocess,
            self.options.max_pixels,
            self.options.decode_threads,
            self.stop,
        )
        for done, one in enumerate(files, start=1):
            self.skipped.extend(one.problems)
            embedding.take(one)
            if isinstance(one, Prepared) and one.image_id in known:
                self.reused += 1
            elif isinstance(one, Prepared):
                known.add(one.image_id)
            self.show(Progress("embed", done, len(to_do), one.found.path))
        embedding.flush()
        self.added += embedding.added
        self.captions_added += embedding.captions_added

    def _forget(self, writer: CatalogWriter, roots: Sequence[Path], listing: Scan) -> None:
        """Files that are no longer there; about folders that cannot be read nothing is known."""
        seen = {found.path for found in listing.found}
        unread = [Path(path) for path in listing.unread]

        def gone(path: str) -> bool:
            return path not in seen and not any(Path(path).is_relative_to(one) for one in unread)

        files = [path for path in writer.files(roots) if gone(path)]
        refused = [path for path in writer.skipped(roots) if gone(path)]
        self.removed = len(files)
        with writer.transaction():
            writer.remove_files([*files, *refused])
            writer.remove_orphans()

    def _name(self, writer: CatalogWriter, named: dict[Path, tuple[NamedCaption, ...]]) -> None:
        for file, captions in named.items():
            pairs, unmatched = matched(self.collection.catalog, file, captions)
            if unmatched:
                reason = f"{unmatched} of {len(captions)} captions name no image of this index"
                self.skipped.append(Skipped(str(file), reason))
            with writer.transaction():
                self.captions_added += writer.replace_named(file, pairs)

    def _encode_captions(self, writer: CatalogWriter) -> None:
        encoding = CaptionEncoding(self.collection, writer)
        total = encoding.waiting()
        for done in encoding.batches():
            self.show(Progress("captions", done, total))
            if self.stop.is_set():
                return


def _same(found: ImageFile, known: ImageFile | KnownFile) -> bool:
    return (found.mtime_ns, found.size) == (known.mtime_ns, known.size)


def _refuse_emptied(writer: CatalogWriter, roots: Sequence[Path], listing: Scan) -> None:
    """An unmounted drive leaves an empty folder behind: that must not empty the index."""
    for root in roots:
        known = len(writer.files([root]))
        if known and not any(Path(found.path).is_relative_to(root) for found in listing.found):
            raise RootUnavailable(
                f"{root} holds no images, but the index knows {known} there; mount the drive, "
                f"or, if they are really gone, run `capsearch index --rebuild {root}`"
            )
