"""What runs change in documents, whether these are in an index folder or in a cluster.

A store reads documents, lets a Change say what becomes of each, and writes what is different. Where
several write to a cluster at once, a change is called again with what another writer has written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from capsearch.engine.records import Caption, Tag
from capsearch.indexer.document import CAPTIONS_FILES, StoredDocument
from capsearch.indexer.prepare import Outcome, Prepared, Refused
from capsearch.indexer.sources.captions import NamedCaption
from capsearch.indexer.sources.scan import ImageFile, is_in
from capsearch.indexer.store import EditedSidecars, EncodedImage, FileState

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


class DocumentStore(ABC):
    """The calls of a Store that change documents."""

    @property
    @abstractmethod
    def documents(self) -> Documents:
        """Those that are written to."""

    def __init__(self) -> None:
        self._new_images: set[str] = set()  # that were not there when this run began

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
        for image_id in wanted.keys() | stored.keys():
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


class DocumentDescriptions(ABC):
    """The calls of Descriptions that change documents."""

    def __init__(self, documents: Documents) -> None:
        self._documents = documents

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


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of at most `size` items, in order."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def _no_captions(change: Callable[[StoredDocument], None]) -> Step:
    def step(document: StoredDocument) -> int:
        change(document)
        return 0

    return step
