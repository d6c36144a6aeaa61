"""What a run of the pipeline reads and writes: an index folder, or a collection in a cluster.

The pipeline decides what is new, has changed or is gone; a store keeps it. What becomes of each
document is the same in both (indexer.document); `sqlite.store` and `elastic.store` say how
documents are looked up and written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from capsearch.engine.protocols import Head
from capsearch.engine.records import Caption, ImageRecord, Tag, Vectors
from capsearch.indexer.changes import Change, Documents, Edit, Edits, Item
from capsearch.indexer.document import StoredDocument
from capsearch.indexer.prepare import Outcome, Prepared, Refused
from capsearch.indexer.sources.scan import ImageFile

if TYPE_CHECKING:
    from capsearch.encoders.models.registry import Model
    from capsearch.indexer.sources.captions import NamedCaption


@dataclass(frozen=True, slots=True)
class KnownFile:
    """An image file as a store describes it, as of the last run."""

    path: str
    image_id: str
    mtime_ns: int
    size: int
    sidecars: str  # ImageFile.sidecar_state
    encoded: bool  # its image has a vector


@dataclass(frozen=True, slots=True)
class FileState:
    """The time and size of a captions file when it was last read."""

    mtime_ns: int
    size: int

    @classmethod
    def of(cls, path: Path) -> FileState:
        """As it is now; OSError when it is missing."""
        status = path.stat()
        return cls(status.st_mtime_ns, status.st_size)


@dataclass(frozen=True, slots=True)
class EncodedImage:
    """A new image with what the image encoder made of it."""

    image: Prepared
    feature: Vectors  # (F,) in float16, as it is stored
    vector: Vectors  # (D,)


@dataclass(frozen=True, slots=True)
class EditedSidecars:
    """An unchanged file whose sidecars were edited, and the captions and tags in them.

    Tags are added to those that the image has: nobody knows which of them came from a sidecar.
    """

    file: ImageFile
    image_id: str
    captions: tuple[Caption, ...]
    tags: tuple[Tag, ...] = ()


class KnownIds(Protocol):
    """Ids of images; a set is one."""

    def __contains__(self, image_id: object, /) -> bool: ...

    def add(self, image_id: str, /) -> None:
        """Counts as known from now on; nothing is written."""
        ...


class Descriptions(ABC):
    """What models wrote about images, which model did it, and what people said about that.

    Calls that write are batches, inside `Store.writing`. A model's captions and tags have a source
    that starts with "model:" and are replaced when another model describes the image; what people
    wrote, accepted or rejected is never touched. `folders` are absolute paths: only images there
    and below, or all for none.
    """

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    @abstractmethod
    def count(self, head: Head, name: str, folders: Sequence[str] = ()) -> int:
        """How many images with a vector and a file the model called `name` has not described."""

    @abstractmethod
    def pending(
        self, head: Head, name: str, folders: Sequence[str], after: str, limit: int
    ) -> Sequence[str]:
        """The next of them by id, after one."""

    @abstractmethod
    def features(self, ids: Sequence[str]) -> Mapping[str, Vectors]:
        """(F,) of images, as they are stored; unknown ids are left out."""

    @abstractmethod
    def records(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Images by id; unknown ids are left out."""

    def reset(self, folders: Sequence[str] = ()) -> None:
        """Makes images pending for every model."""
        for ids in self.described(folders):
            self._change(ids, lambda _, document: document.forget_models())

    def put_tags(self, model: str, tags: Mapping[str, Sequence[Tag]]) -> None:
        """Makes these the only generated tags of images."""
        self._change(
            tags, lambda image_id, document: document.put_generated_tags(model, tags[image_id])
        )

    def put_captions(self, model: str, captions: Mapping[str, Sequence[Caption]]) -> int:
        """Makes these the only generated captions of images, but for what people decided."""
        kept = self._change(
            captions,
            lambda image_id, document: document.put_generated_captions(model, captions[image_id]),
        )
        return sum(kept.values())

    def accept(self, image_id: str, caption: Caption, text: str, language: str) -> bool:
        """A generated caption becomes a person's."""
        return self._review(image_id, lambda document: document.accept(caption, text, language))

    def reject(self, image_id: str, caption: Caption) -> bool:
        """A generated caption goes and does not come back."""
        return self._review(image_id, lambda document: document.reject(caption))

    @abstractmethod
    def described(self, folders: Sequence[str]) -> Iterator[Sequence[str]]:
        """Images that any model has described, many at a time."""

    @abstractmethod
    def make_searchable(self) -> None:
        """What was changed is found by searches that start afterwards."""

    def _review(self, image_id: str, step: Callable[[StoredDocument], bool]) -> bool:
        done = self._change([image_id], lambda _, document: step(document))
        self.make_searchable()
        return done.get(image_id, False)

    def _change(
        self, ids: Iterable[str], step: Callable[[str, StoredDocument], Item]
    ) -> dict[str, Item]:
        """Changes documents that are there; what the last call of the step returned for each."""
        results: dict[str, Item] = {}

        def change(image_id: str) -> Change:
            def changed(document: StoredDocument | None) -> StoredDocument | None:
                if document is not None:
                    results[image_id] = step(image_id, document)
                return document

            return changed

        self._documents.edit({image_id: change(image_id) for image_id in ids})
        return results


class Store(ABC):
    """Files, captions and vectors of one collection, for one run of the pipeline.

    Every call that writes is a batch: it is there as a whole when the call returns, and a run that
    is killed in between loses nothing else. Numbers of captions count the new ones.
    """

    def __init__(self, model: Model, path: Path) -> None:
        self.model = model  # encodes
        self.path = path  # a folder here for what a run notes about itself; it is not indexed
        self._new_images: set[str] = set()  # that were not there when this run began

    # What is known

    @abstractmethod
    def require_same_model(self) -> None:
        """ModelMismatch unless the collection was made with `model`."""

    @abstractmethod
    def excludes(self) -> Mapping[Path, tuple[str, ...]]:
        """The folders indexed so far, sorted, with the globs that each leaves out."""

    @abstractmethod
    def mount_points(self) -> set[Path]:
        """Folders below these that were mount points when their images were last seen."""

    @abstractmethod
    def captions_files(self) -> Mapping[Path, FileState]:
        """The captions files read so far."""

    @abstractmethod
    def files(self, roots: Sequence[Path]) -> Mapping[str, KnownFile]:
        """The indexed files under `roots` by path; a root may itself be a file."""

    @abstractmethod
    def skipped(self, roots: Sequence[Path]) -> Mapping[str, tuple[ImageFile, str]]:
        """The files under `roots` that were skipped before, each with its state and the reason."""

    @abstractmethod
    def encoded_ids(self) -> KnownIds:
        """The ids of all images that have a vector; threads may ask it."""

    @abstractmethod
    def encoded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector now."""

    @abstractmethod
    def image_paths(self) -> Sequence[tuple[str, str]]:
        """(path, image id) of every file."""

    @abstractmethod
    def missing(self) -> int:
        """How many images have no file."""

    # A run

    @abstractmethod
    def writing(self, rebuild: bool) -> AbstractContextManager[None]:
        """Surrounds all calls that write. A rebuild is made beside what searches see, or goes on
        with one that was stopped: only what it has encoded counts as encoded then."""

    @abstractmethod
    def remember(
        self, excludes: Mapping[Path, Sequence[str]], mount_points: Sequence[Path]
    ) -> None:
        """Adds roots with their globs, and mount points."""

    @abstractmethod
    def pending_captions(self) -> int:
        """How many captions in the model's languages, or documents with any, are not encoded."""

    @abstractmethod
    def encode_captions(self) -> Iterator[int]:
        """Encodes them batch by batch; yields how many are done so far."""

    @abstractmethod
    def index_words(self) -> Iterator[None]:
        """Brings the words of the documents up to date; yields after each batch."""

    @abstractmethod
    def descriptions(self) -> Descriptions:
        """What models write about the images."""

    @abstractmethod
    def complete(self) -> None:
        """All files were seen: a rebuild replaces what searches see."""

    @abstractmethod
    def keep_days(self, given: float | None) -> float | None:
        """How long images without a file are kept; a number that is given is remembered."""

    @abstractmethod
    def prune(self, days: float) -> int:
        """Deletes images without a file for so long, and their thumbnails; returns how many."""

    @abstractmethod
    def finish(self) -> None:
        """Ends a run, also one that was stopped."""

    # Changes

    @property
    @abstractmethod
    def documents(self) -> Documents:
        """Those that are written to."""

    def put(self, new: Sequence[EncodedImage], batch: Sequence[Outcome]) -> int:
        """New images, and the files of a batch; what held these files before loses them."""
        images = {encoded.image.image_id: encoded for encoded in new}
        absent = set(images) - self.documents.existing(list(images))
        self._new_images |= absent
        edits = Edits({image_id: Edit(image=encoded) for image_id, encoded in images.items()})
        holders = self.documents.holders([outcome.file.path for outcome in batch])
        written = self._written_before(batch, holders)
        for outcome in batch:
            path, holder = outcome.file.path, holders.get(outcome.file.path)
            if isinstance(outcome, Prepared):
                if holder not in (None, outcome.image_id):
                    edits.leave(holders[path], path)
                if path in written:
                    edits.follow(outcome.image_id, written[path])
                file = outcome.file.without_sidecars() if outcome.problems else outcome.file
                edits.arrive(outcome.image_id, file, outcome.sidecar_captions)
            elif outcome.permanent and holder is not None:
                edits.leave(holder, path)
        added = edits.make(self.documents, absent)
        self.put_skipped(
            [one for one in batch if isinstance(one, Refused) and one.permanent],
            [one.file.path for one in batch if isinstance(one, Prepared)],
        )
        return added

    def put_sidecars(self, edited: Sequence[EditedSidecars]) -> int:
        """What edited sidecars say; an image may have several files that have some."""
        edits = Edits()
        for sidecars in edited:
            edits.arrive(sidecars.image_id, sidecars.file, sidecars.captions)
            edits.add_tags(sidecars.image_id, sidecars.tags)
        return edits.make_in_parts(self.documents)

    def put_captions_file(
        self, file: Path, state: FileState, pairs: Sequence[tuple[str, NamedCaption]]
    ) -> int:
        """The captions first; a file is noted when they are there."""
        wanted: dict[str, dict[Caption, None]] = defaultdict(dict)
        for image_id, named in pairs:
            wanted[image_id][named.caption] = None
        stored, edits = self.captions_of_file(str(file)), Edits()
        for image_id in dict.fromkeys([*wanted, *stored]):
            captions = wanted[image_id].keys()
            if stored.get(image_id) != captions:
                edits.put_named(image_id, str(file), captions)
        added = edits.make_in_parts(self.documents)
        self.note_captions_file(file, state)
        return added

    def remove_files(self, files: Sequence[str], skipped: Sequence[str]) -> None:
        """Images that have none left are not found any more."""
        edits = Edits()
        for path, image_id in self.documents.holders(files).items():
            edits.leave(image_id, path)
        edits.make_in_parts(self.documents)
        self.forget_skipped(skipped)

    @abstractmethod
    def put_skipped(self, refused: Sequence[Refused], read: Sequence[str]) -> None:
        """Notes files that cannot be indexed; those that were `read` are not skipped any more."""

    @abstractmethod
    def forget_skipped(self, paths: Sequence[str]) -> None:
        """Files that were skipped before, and are gone."""

    @abstractmethod
    def captions_of_file(self, origin: str) -> Mapping[str, set[Caption]]:
        """The captions of a captions file by image, of images that have a file."""

    @abstractmethod
    def note_captions_file(self, file: Path, state: FileState) -> None:
        """Notes that a captions file was read."""

    def _written_before(
        self, batch: Sequence[Outcome], holders: Mapping[str, str]
    ) -> dict[str, StoredDocument]:
        """What was last at the paths of images that are new: people's texts follow to these."""
        paths = {
            outcome.file.path: outcome.image_id
            for outcome in batch
            if isinstance(outcome, Prepared) and outcome.image_id in self._new_images
        }
        past = self.documents.past_holders([path for path in paths if path not in holders])
        before = {
            path: image_id
            for path, image_id in [*past.items(), *holders.items()]
            if path in paths and image_id != paths[path]
        }
        documents = self.documents.read(sorted(set(before.values())))
        return {path: documents[one] for path, one in before.items() if one in documents}


class Writable(Protocol):
    """A collection that is open for writing."""

    def store(self) -> Store:
        """For one run of the pipeline."""
        ...


Closed = TypeVar("Closed", bound="Closing")


class Closing(ABC):
    """Closed at the end of a `with` block."""

    @abstractmethod
    def close(self) -> None:
        """Releases what it holds."""

    def __enter__(self: Closed) -> Closed:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
