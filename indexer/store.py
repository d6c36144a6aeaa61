"""What a run of the pipeline reads and writes: an index folder, or a collection in a cluster.

The pipeline decides what is new, has changed or is gone; a store keeps it. `sqlite.store` and
`elastic.store` implement the protocol.

Collections as context managers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, TypeVar

from capsearch.engine.protocols import Head
from capsearch.engine.records import Caption, ImageRecord, Tag, Vectors
from capsearch.indexer.sources.scan import ImageFile

if TYPE_CHECKING:
    from capsearch.encoders.models.registry import Model
    from capsearch.indexer.prepare import Outcome, Prepared
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


class Descriptions(Protocol):
    """What models wrote about images, which model did it, and what people said about that.

    Calls that write are batches, inside `Store.writing`. A model's captions and tags have a source
    that starts with "model:" and are replaced when another model describes the image; what people
    wrote, accepted or rejected is never touched. `folders` are absolute paths: only images there
    and below, or all for none.
    """

    def count(self, head: Head, name: str, folders: Sequence[str] = ()) -> int:
        """How many images with a vector and a file the model called `name` has not described."""
        ...

    def pending(
        self, head: Head, name: str, folders: Sequence[str], after: str, limit: int
    ) -> Sequence[str]:
        """The next of them by id, after one."""
        ...

    def features(self, ids: Sequence[str]) -> Mapping[str, Vectors]:
        """(F,) of images, as they are stored; unknown ids are left out."""
        ...

    def records(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Images by id; unknown ids are left out."""
        ...

    def reset(self, folders: Sequence[str] = ()) -> None:
        """Makes images pending for every model."""
        ...

    def put_tags(self, model: str, tags: Mapping[str, Sequence[Tag]]) -> None:
        """Makes these the only generated tags of images; of equal labels the first counts."""
        ...

    def put_captions(self, model: str, captions: Mapping[str, Sequence[Caption]]) -> int:
        """Makes these the only generated captions of images, but for what people decided.

        Left out are captions that were rejected or are empty, and languages in which a person has
        accepted or written one by hand. A caption that is there already keeps its vector. Returns
        how many there are now.
        """
        ...

    def accept(self, image_id: str, caption: Caption, text: str, language: str) -> bool:
        """A generated caption becomes a person's, as it is or with another `text`.

        It is found by searches that start afterwards. False if the image has no such caption.
        """
        ...

    def reject(self, image_id: str, caption: Caption) -> bool:
        """A generated caption goes and does not come back. False if there is none."""
        ...


class Store(Protocol):
    """Files, captions and vectors of one collection, for one run of the pipeline.

    Every call that writes is a batch: it is there as a whole when the call returns, and a run that
    is killed in between loses nothing else. Numbers of captions count the new ones.
    """

    @property
    def model(self) -> Model:
        """The model that encodes."""
        ...

    @property
    def path(self) -> Path:
        """A folder on this machine for what a run notes about itself; it is not indexed."""
        ...

    # What is known

    def require_same_model(self) -> None:
        """ModelMismatch unless the collection was made with `model`."""
        ...

    def excludes(self) -> Mapping[Path, tuple[str, ...]]:
        """The folders indexed so far, sorted, with the globs that each leaves out."""
        ...

    def mount_points(self) -> set[Path]:
        """Folders below these that were mount points when their images were last seen."""
        ...

    def captions_files(self) -> Mapping[Path, FileState]:
        """The captions files read so far."""
        ...

    def files(self, roots: Sequence[Path]) -> Mapping[str, KnownFile]:
        """The indexed files under `roots` by path; a root may itself be a file."""
        ...

    def skipped(self, roots: Sequence[Path]) -> Mapping[str, tuple[ImageFile, str]]:
        """The files under `roots` that were skipped before, each with its state and the reason."""
        ...

    def encoded_ids(self) -> KnownIds:
        """The ids of all images that have a vector; threads may ask it."""
        ...

    def encoded_ids_among(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that have a vector now."""
        ...

    def image_paths(self) -> Sequence[tuple[str, str]]:
        """(path, image id) of every file."""
        ...

    def missing(self) -> int:
        """How many images have no file."""
        ...

    # A run

    def writing(self, rebuild: bool) -> AbstractContextManager[None]:
        """Surrounds all calls that write. A rebuild is made beside what searches see, or goes on
        with one that was stopped: only what it has encoded counts as encoded then."""
        ...

    def remember(
        self, excludes: Mapping[Path, Sequence[str]], mount_points: Sequence[Path]
    ) -> None:
        """Adds roots with their globs, and mount points."""
        ...

    def put(self, new: Sequence[EncodedImage], batch: Sequence[Outcome]) -> int:
        """New images, and all files of a batch, also of known images and refused ones."""
        ...

    def put_sidecars(self, edited: Sequence[EditedSidecars]) -> int:
        """Makes these the captions of the files' sidecars."""
        ...

    def put_captions_file(
        self, file: Path, state: FileState, pairs: Sequence[tuple[str, NamedCaption]]
    ) -> int:
        """Makes (image id, caption) pairs the only captions of a captions file, and notes it.

        Images without a file match no name and keep theirs.
        """
        ...

    def remove_files(self, files: Sequence[str], skipped: Sequence[str]) -> None:
        """Files that are gone; an image that has none left is not found any more."""
        ...

    def pending_captions(self) -> int:
        """How many captions in the model's languages, or documents with any, are not encoded."""
        ...

    def encode_captions(self) -> Iterator[int]:
        """Encodes them batch by batch; yields how many are done so far."""
        ...

    def index_words(self) -> Iterator[None]:
        """Brings the words of the documents up to date; yields after each batch."""
        ...

    def descriptions(self) -> Descriptions:
        """What models write about the images."""
        ...

    def complete(self) -> None:
        """All files were seen: a rebuild replaces what searches see."""
        ...

    def keep_days(self, given: float | None) -> float | None:
        """How long images without a file are kept; a number that is given is remembered."""
        ...

    def prune(self, days: float) -> int:
        """Deletes images without a file for so long, and their thumbnails; returns how many."""
        ...

    def finish(self) -> None:
        """Ends a run, also one that was stopped."""
        ...


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
