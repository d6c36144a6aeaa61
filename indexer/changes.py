"""What runs change in documents, whether these are in an index folder or in a cluster.

A store reads documents, lets a Change say what becomes of each, and writes what is different. Where
several write to a cluster at once, a change is called again with what another writer has written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias, TypeVar

from capsearch.engine.records import Caption, Tag
from capsearch.indexer.document import CAPTIONS_FILES, StoredDocument
from capsearch.indexer.sources.scan import ImageFile, is_in

if TYPE_CHECKING:
    from capsearch.indexer.store import EncodedImage

# None: it is not there, or stays so.
Change: TypeAlias = Callable[[StoredDocument | None], StoredDocument | None]
Step: TypeAlias = Callable[[StoredDocument], int]  # the number of new captions
Item = TypeVar("Item")
DOCUMENTS_AT_ONCE = 1000  # changed in one call


class Documents(Protocol):
    """The documents of a collection, for the one run that changes them."""

    def edit(self, changes: Mapping[str, Change], new: Collection[str] = ()) -> None:
        """Makes changes by id. Those of `new` are thought not to be there and are not read."""
        ...

    def read(self, ids: Sequence[str]) -> Mapping[str, StoredDocument]:
        """Documents by id; unknown ids are left out."""
        ...

    def existing(self, ids: Sequence[str]) -> set[str]:
        """Those of `ids` that are there this moment."""
        ...

    def holders(self, paths: Sequence[str]) -> Mapping[str, str]:
        """The image that each path holds; paths that hold none are left out."""
        ...

    def past_holders(self, paths: Sequence[str]) -> Mapping[str, str]:
        """The image that was last at each path, before it was found gone."""
        ...


@dataclass(slots=True)
class Edit:
    """A Change: steps on one document, and how many captions the last call has added.

    A document that is not there is made of `image`; without one it stays away.
    """

    steps: list[Step] = field(default_factory=list)
    image: EncodedImage | None = None
    added: int = 0

    def __call__(self, document: StoredDocument | None) -> StoredDocument | None:
        """Takes all steps."""
        if document is None:
            if self.image is None:
                return None
            document = StoredDocument(self.image.image.record)
        added = 0 if self.image is None else document.put_image(self.image)
        self.added = added + sum(step(document) for step in self.steps)
        return document


def _no_captions(change: Callable[[StoredDocument], None]) -> Step:
    def step(document: StoredDocument) -> int:
        change(document)
        return 0

    return step


class Edits(dict[str, Edit]):
    """Edits by image id."""

    def __missing__(self, image_id: str) -> Edit:
        self[image_id] = Edit()
        return self[image_id]

    def arrive(self, image_id: str, file: ImageFile, captions: Sequence[Caption]) -> None:
        """A file holds the image, with its sidecars' captions."""
        self[image_id].steps.append(lambda document: document.arrive(file, captions))

    def leave(self, image_id: str, path: str) -> None:
        """A file no longer holds the image."""
        self[image_id].steps.append(_no_captions(lambda document: document.leave(path)))

    def follow(self, image_id: str, before: StoredDocument) -> None:
        """What people wrote about an image goes over to another."""
        self[image_id].steps.append(lambda document: document.follow(before))

    def add_tags(self, image_id: str, tags: Sequence[Tag]) -> None:
        """More tags by people."""
        self[image_id].steps.append(_no_captions(lambda document: document.add_tags(tags)))

    def put_named(self, image_id: str, origin: str, captions: Iterable[Caption]) -> None:
        """The captions of a captions file."""
        self[image_id].steps.append(lambda document: document.put_named(origin, captions))

    def forget_files(self, image_id: str, root: Path) -> None:
        """As if the image had never been in a folder."""
        self[image_id].steps.append(
            _no_captions(lambda document: document.forget_files(lambda path: is_in(path, root)))
        )

    def forget_captions(self, image_id: str, origin: str) -> None:
        """The captions of a captions file go, also from an image without a file."""
        self[image_id].steps.append(
            lambda document: document.replace_captions(CAPTIONS_FILES, origin, ())
        )

    def make(self, documents: Documents, new: Collection[str] = ()) -> int:
        """Makes them all; returns how many captions are new."""
        documents.edit(self, new)
        return sum(edit.added for edit in self.values())

    def make_in_parts(self, documents: Documents) -> int:
        """As `make`, for edits of any number that do not depend on each other."""
        return sum(
            Edits({image_id: self[image_id] for image_id in ids}).make(documents)
            for ids in chunks(self, DOCUMENTS_AT_ONCE)
        )


def instead(new: StoredDocument) -> Change:
    """Puts a document in the place of what may be there."""
    return lambda document: new


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of at most `size` items, in order."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk
