"""Writing to one index of a cluster.

Changing documents that others may change at the same time.

A document is read, changed and written under the condition that nobody has written it since
(optimistic concurrency: if_seq_no). Where somebody has, the change is made to what they wrote.

The changes that a run of the pipeline makes to documents.

What a run knows of a collection: which file holds which image, and which images are encoded.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from capsearch.engine.errors import IndexProblem
from capsearch.engine.protocols import NewDocument, TextEncoder
from capsearch.engine.records import Caption, Tag
from capsearch.indexer.document import Entry
from capsearch.indexer.elastic import client as bulk
from capsearch.indexer.elastic import documents as mapping
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, readable_errors
from capsearch.indexer.elastic.documents import WHOLE, to_json, whole
from capsearch.indexer.elastic.requests import Hit
from capsearch.indexer.pipeline import encode_captions, record_of
from capsearch.indexer.prepare import Outcome, Prepared
from capsearch.indexer.sources.captions import NamedCaption
from capsearch.indexer.sources.scan import ImageFile
from capsearch.indexer.sqlite.catalog import under
from capsearch.indexer.store import EditedSidecars, EncodedImage, KnownFile

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch


_RELAXED = "relaxed_from"  # in _meta: settings to restore, also after a killed load
_NEVER = "-1"


class ElasticWriter:
    """engine.protocols.BackendWriter over one index.

    A document is replaced as a whole under its id, so sending it twice is the same as once.
    """

    def __init__(
        self,
        client: Elasticsearch,
        address: Address,
        index: str,
        words_of: Callable[[str], Sequence[str]],
    ) -> None:
        self.client, self.address, self.index = client, address, index
        self._words_of = words_of

    def upsert(self, documents: Iterable[NewDocument]) -> None:
        """Adds documents, or replaces those of the same id."""
        for _ in self.index_json(self.to_json(one) for one in documents):
            pass

    def to_json(self, document: NewDocument) -> dict[str, Any]:
        """A document as it is written."""
        return to_json(document, self._words_of)

    def index_json(self, sources: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Documents that are JSON already; yields ids as they are accepted."""
        actions = (
            {"_op_type": "index", "_id": source["id"], "_source": source} for source in sources
        )
        yield from (image_id for image_id, _ in self.send(actions))

    def delete(self, ids: Sequence[str]) -> None:
        """Removes documents; unknown ids are ignored."""
        for _ in self.send({"_op_type": "delete", "_id": one} for one in ids):
            pass

    def send(self, actions: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, bool]]:
        """Actions of any kind; see bulk.send."""
        alias = mapping.write_alias(self.index)
        return bulk.send(self.client, self.address, alias, actions, require_alias=True)

    def refresh(self) -> None:
        """Makes what was written visible to searches that start afterwards."""
        with readable_errors(self.address):
            self.client.indices.refresh(index=self.index)

    @contextmanager
    def bulk_load(
        self, refresh_interval: str = _NEVER, replicas: int | None = None
    ) -> Iterator[None]:
        """Fewer refreshes, and in an empty index so many replicas, until the load ends or fails.

        What to restore is noted in the index first, and stays there: of several loads at once
        each restores the same, and after a killed one the next.
        """
        before = self._settings_to_restore()
        relaxed: dict[str, Any] = {"refresh_interval": refresh_interval}
        with readable_errors(self.address):
            if replicas is not None and not self.client.count(index=self.index)["count"]:
                relaxed["number_of_replicas"] = replicas
            self.describe(**{_RELAXED: before, "loading": relaxed})
            self.client.indices.put_settings(index=self.index, settings=relaxed)
        try:
            yield
        except BaseException:
            with suppress(IndexProblem):  # what ended the load is what to tell
                self._restore(before)
            raise
        self._restore(before)

    def _restore(self, settings: Mapping[str, Any]) -> None:
        with readable_errors(self.address):
            self.client.indices.put_settings(index=self.index, settings=settings)
        self.refresh()

    def _settings_to_restore(self) -> dict[str, Any]:
        """The settings, or what they were before a load that has not ended."""
        stored = self._meta()[mapping.META]
        with readable_errors(self.address):
            found = self.client.indices.get_settings(index=self.index)[self.index]["settings"]
        interval = found["index"].get("refresh_interval")
        if _RELAXED in stored and interval == stored["loading"]["refresh_interval"]:
            return dict(stored[_RELAXED])
        replicas = found["index"]["number_of_replicas"]
        return {"refresh_interval": interval, "number_of_replicas": replicas}

    def describe(self, **facts: Any) -> None:
        """Changes what the index says about itself; None removes a fact."""
        stored = self._meta()
        own = {**stored[mapping.META], **facts}
        kept = {key: one for key, one in own.items() if one is not None}
        with readable_errors(self.address):
            self.client.indices.put_mapping(index=self.index, meta={**stored, mapping.META: kept})

    def _meta(self) -> dict[str, Any]:
        with readable_errors(self.address):
            found = self.client.indices.get_mapping(index=self.index)[self.index]["mappings"]
        return dict(found["_meta"])


DOCUMENTS = 250  # read and changed at once
ATTEMPTS = 20  # at a document that others keep changing
MAX_PAUSE_S = 0.5
Change: TypeAlias = Callable[[Entry | None], Entry | None]  # None: it is not there, or stays so
Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class _Read:
    """A document as it was read, with what makes sure that nobody has changed it since."""

    entry: Entry
    checksum: str
    if_seq_no: int
    if_primary_term: int

    @classmethod
    def of(cls, hit: Hit) -> _Read:
        entry = Entry.of(whole(hit))
        return cls(entry, hit["_source"]["checksum"], hit["_seq_no"], hit["_primary_term"])


class Editor:
    """Changes to the documents of one index; captions are encoded as they are written."""

    def __init__(self, writer: ElasticWriter, text: TextEncoder) -> None:
        self.writer, self._text = writer, text
        self.backend = ElasticBackend(writer.client, writer.address, writer.index)

    def edit(self, changes: Mapping[str, Change], new: Collection[str] = ()) -> None:
        """Makes changes by id. Those of `new` are thought not to be there and not read first.

        A change is called again where somebody else was faster, with what they wrote.
        """
        for ids in chunks(changes, DOCUMENTS):
            self._edit({one: changes[one] for one in ids}, set(new))

    def read(self, ids: Sequence[str]) -> dict[str, Entry]:
        """Documents by id; unknown ids are left out."""
        return {image_id: one.entry for image_id, one in self._read_latest(ids).items()}

    def existing(self, ids: Sequence[str], encoded: bool = False) -> set[str]:
        """Those of `ids` that are there this moment, or with `encoded` have a vector."""
        if not ids:
            return set()
        fields = ["encoded", "searchable"]  # older documents have no `encoded`
        with readable_errors(self.writer.address):
            found = self.writer.client.mget(
                index=self.writer.index, ids=list(ids), source_includes=fields
            )["docs"]
        there = {one["_id"]: one["_source"] for one in found if one.get("found")}
        if not encoded:
            return set(there)
        return {one for one, said in there.items() if said.get("encoded", said["searchable"])}

    def _edit(self, changes: dict[str, Change], absent: set[str]) -> None:
        for attempt in range(ATTEMPTS):
            before = self._read_latest([one for one in changes if one not in absent])
            after = {one: change(_entry(before.get(one))) for one, change in changes.items()}
            entries = {one: entry for one, entry in after.items() if entry is not None}
            self._encode(entries.values())
            sent = self.writer.send(self._actions(entries, before))
            changes = {one: changes[one] for one, accepted in sent if not accepted}
            if not changes:
                return
            time.sleep(random.uniform(0, min(MAX_PAUSE_S, 0.05 * 2**attempt)))
            absent = set()
            self.writer.refresh()
        raise IndexProblem(
            f"{self.writer.address}: other writers keep changing the same images; run the same "
            "command again when they are done"
        )

    def _read_latest(self, ids: Sequence[str]) -> dict[str, _Read]:
        """Also what was written since the last refresh. Of what was changed since, an older state
        may be read: its condition does not hold any more."""
        found = self._read(ids)
        unseen = self.existing([one for one in ids if one not in found])
        if unseen:
            self.writer.refresh()
            found |= self._read(sorted(unseen))
        return found

    def _read(self, ids: Sequence[str]) -> dict[str, _Read]:
        found: dict[str, _Read] = {}
        for chunk in chunks(ids, DOCUMENTS):
            answer = self.backend.ask(
                query={"ids": {"values": chunk}}, size=len(chunk), seq_no_primary_term=True,
                track_total_hits=False, **WHOLE,
            )  # fmt: skip
            found |= {hit["_id"]: _Read.of(hit) for hit in answer["hits"]["hits"]}
        return found

    def _actions(
        self, entries: Mapping[str, Entry], before: Mapping[str, _Read]
    ) -> Iterator[dict[str, Any]]:
        """Creates what is not there, replaces what has changed."""
        for image_id, entry in entries.items():
            source = self.writer.to_json(entry.document())
            read = before.get(image_id)
            if read is None:
                yield {"_op_type": "create", "_id": image_id, "_source": source}
            elif read.checksum != source["checksum"]:
                condition = {"if_seq_no": read.if_seq_no, "if_primary_term": read.if_primary_term}
                yield {"_op_type": "index", "_id": image_id, **condition, "_source": source}

    def _encode(self, entries: Iterable[Entry]) -> None:
        """Encodes the captions in the model's languages that have not been."""
        pending = [
            one
            for entry in entries
            for one in entry.captions
            if not one.encoded and one.caption.language in self._text.languages
        ]
        if not pending:
            return
        texts = [(one.caption.text, one.caption.language) for one in pending]
        for one, vector in zip(pending, encode_captions(self._text, texts), strict=True):
            one.encoded, one.vector = True, vector


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of at most `size` items, in order."""
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def unchanged_delete(hit: Hit) -> dict[str, Any]:
    """Deletes a document unless it has been written since it was found."""
    condition = {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    return {"_op_type": "delete", "_id": hit["_id"], **condition}


def _entry(read: _Read | None) -> Entry | None:
    return None if read is None else read.entry


_FILES: Mapping[str, Any] = {"source_includes": ["encoded", "searchable", "provenance.files"]}


class KnownFiles:
    """The files of a collection as this run found and left them."""

    def __init__(self) -> None:
        self.owners: dict[str, str] = {}  # image id by path
        self.stale: set[tuple[str, str]] = set()  # (path, image id): the path holds another image
        self.new_images: set[str] = set()  # that this run has added
        self._any_past: bool | None = None

    def read(self, backend: ElasticBackend, roots: Sequence[Path]) -> dict[str, KnownFile]:
        """The files under `roots`. Of two images at one path, which a killed run may leave, the
        one with the later file counts."""
        wanted = [str(root) for root in roots]
        folders = [*wanted, *(str(root.parent) for root in roots if not root.is_dir())]
        found: dict[str, KnownFile] = {}
        for hits in backend.scan({"terms": {"folders": folders}}, _FILES):
            for file in _files(hits):
                if file.path in wanted or _inside(file.path, wanted):
                    self._keep_latest(found, file)
        self.owners |= {path: file.image_id for path, file in found.items()}
        return found

    def arrive(self, path: str, image_id: str) -> str | None:
        """Notes that a path holds this image, or None; returns the image that it held before."""
        before = self.owners.pop(path, None)
        if image_id:
            self.owners[path] = image_id
            self.stale.discard((path, image_id))
        return before if before != image_id else None

    def past_owners(self, editor: Editor, paths: Sequence[str]) -> dict[str, Entry]:
        """The images that were last at these paths, before earlier runs found them gone."""
        if self._any_past is None:
            self._any_past = bool(editor.backend.count({"exists": {"field": "past_paths"}}))
        if not self._any_past or not paths:
            return {}
        there = {"terms": {"past_paths": list(paths)}}
        pages = editor.backend.scan(there, {"source": False})
        ids = [hit["_id"] for hits in pages for hit in hits]
        latest: dict[str, tuple[str, Entry]] = {}
        for entry in editor.read(ids).values():
            for path, moment in entry.past.items():
                if path not in latest or latest[path][0] < moment:
                    latest[path] = (moment, entry)
        return {path: latest[path][1] for path in paths if path in latest}

    def _keep_latest(self, found: dict[str, KnownFile], file: KnownFile) -> None:
        other = found.get(file.path)
        found[file.path] = file
        if other is not None:
            latest, stale = sorted((file, other), key=lambda one: (-one.mtime_ns, one.image_id))
            found[file.path] = latest
            self.stale.add((stale.path, stale.image_id))


class EncodedIds:
    """store.KnownIds: asks the cluster about each image once. Threads may share it."""

    def __init__(self, editor: Editor) -> None:
        self._editor, self._asked = editor, dict[str, bool]()

    def __contains__(self, image_id: object) -> bool:
        known = self._asked.get(str(image_id))
        if known is None:
            known = bool(self._editor.existing([str(image_id)], encoded=True))
            self._asked[str(image_id)] = known
        return known

    def add(self, image_id: str) -> None:
        """Counts as known from now on."""
        self._asked[image_id] = True


def _files(hits: Iterable[Mapping[str, Any]]) -> Iterable[KnownFile]:
    for hit in hits:
        source = hit["_source"]
        encoded = source.get("encoded", source["searchable"])  # older documents
        for path, mtime_ns, size, sidecars in source["provenance"].get("files", ()):
            yield KnownFile(path, hit["_id"], mtime_ns, size, sidecars, encoded)


def _inside(path: str, roots: Sequence[str]) -> bool:
    return any(first <= path < last for first, last in map(under, roots))


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
