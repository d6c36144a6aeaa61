"""The changes that a run of the pipeline makes to documents."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from capsearch.engine.records import Caption, Tag
from capsearch.indexer.elastic.editing import Editor
from capsearch.indexer.elastic.entry import Entry
from capsearch.indexer.elastic.known import KnownFiles
from capsearch.indexer.encoding import record_of
from capsearch.indexer.prepare import Outcome, Prepared
from capsearch.indexer.sources.captions import NamedCaption
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.store import EditedSidecars, EncodedImage

CAPTIONS_FILES = ("csv", "coco")  # sources of captions
Step: TypeAlias = Callable[[Entry], int]  # the number of new captions


@dataclass(slots=True)
class Edit:
    """editing.Change: steps on one document, and how many captions the last call has added.

    A document that is not there is made of `image`; without one it stays away.
    """

    steps: list[Step] = field(default_factory=list)
    image: EncodedImage | None = None
    added: int = 0

    def __call__(self, entry: Entry | None) -> Entry | None:
        """Takes all steps."""
        if entry is None:
            if self.image is None:
                return None
            entry = Entry(record_of(self.image.image))
        added = 0 if self.image is None else entry.put_image(self.image)
        self.added = added + sum(step(entry) for step in self.steps)
        return entry


def made(editor: Editor, edits: dict[str, Edit], new: Sequence[str] = ()) -> int:
    """Makes all edits by id; returns how many captions are new."""
    editor.edit(edits, new)
    return sum(one.added for one in edits.values())


def put_batch(
    editor: Editor, files: KnownFiles, new: Sequence[EncodedImage], batch: Sequence[Outcome]
) -> int:
    """New images, and the files of a batch; what held these files before loses them."""
    images = {one.image.image_id: one for one in new}
    absent = set(images) - editor.existing(list(images))
    files.new_images |= absent
    edits: dict[str, Edit] = defaultdict(Edit)
    for image_id, one in images.items():
        edits[image_id].image = one
    before = _owners_before(editor, files, batch)
    for outcome in batch:
        if isinstance(outcome, Prepared):
            _arrive(edits, files, outcome, before.get(outcome.file.path))
        elif outcome.permanent:
            _leave(edits, files.arrive(outcome.file.path, ""), outcome.file.path)
    return made(editor, edits, sorted(absent))


def sidecars(edited: Sequence[EditedSidecars]) -> dict[str, Edit]:
    """What edited sidecars say; an image may have several files that have some."""
    edits: dict[str, Edit] = defaultdict(Edit)
    for one in edited:
        edits[one.image_id].steps += [_arrival(one.file, one.captions), _tagging(one.tags)]
    return edits


def named(origin: str, captions: Sequence[NamedCaption]) -> Edit:
    """Makes these the only captions of a captions file."""
    wanted = tuple(one.caption for one in captions)

    def step(entry: Entry) -> int:
        if not entry.files:  # it matches no name, and keeps what it has
            return 0
        return entry.replace_captions(CAPTIONS_FILES, origin, wanted)

    return Edit([step])


def gone(paths: Iterable[tuple[str, str]]) -> dict[str, Edit]:
    """(path, image id) of files that are not there any more."""
    edits: dict[str, Edit] = defaultdict(Edit)
    for path, image_id in paths:
        _leave(edits, image_id, path)
    return edits


def _arrive(
    edits: dict[str, Edit], files: KnownFiles, image: Prepared, before: Entry | None
) -> None:
    path, image_id = image.file.path, image.image_id
    _leave(edits, files.arrive(path, image_id), path)
    if before is not None and before.record.id != image_id:
        edits[image_id].steps.append(lambda entry: entry.follow(before))
    file = image.file.without_sidecars() if image.problems else image.file
    edits[image_id].steps.append(_arrival(file, image.sidecar_captions))


def _owners_before(editor: Editor, files: KnownFiles, batch: Sequence[Outcome]) -> dict[str, Entry]:
    """What was last at the paths of images that are new: what people wrote follows to these."""
    paths = [
        one.file.path
        for one in batch
        if isinstance(one, Prepared) and one.image_id in files.new_images
    ]
    current = {path: files.owners[path] for path in paths if path in files.owners}
    entries = editor.read(sorted(set(current.values())))
    found = {path: entries[one] for path, one in current.items() if one in entries}
    return files.past_owners(editor, [path for path in paths if path not in current]) | found


def _leave(edits: dict[str, Edit], image_id: str | None, path: str) -> None:
    if image_id is not None:
        edits[image_id].steps.append(lambda entry: entry.leave(path))


def _tagging(tags: Sequence[Tag]) -> Step:
    def step(entry: Entry) -> int:
        entry.tags += [tag for tag in tags if tag not in entry.tags]
        return 0

    return step


def _arrival(file: ImageFile, captions: Sequence[Caption]) -> Step:
    return lambda entry: entry.arrive(file, captions)
