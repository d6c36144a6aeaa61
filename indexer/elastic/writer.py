"""Writing to one index of a cluster, and changing documents that others may change as well.

A document is read, changed and written under the condition that nobody has written it since
(optimistic concurrency: if_seq_no). Where somebody has, the change is made to what they wrote.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import IndexProblem
from capsearch.engine.protocols import TextEncoder
from capsearch.indexer.changes import Change, chunks
from capsearch.indexer.document import StoredDocument
from capsearch.indexer.elastic import client as bulk
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, readable_errors
from capsearch.indexer.elastic.documents import META, WHOLE, to_json, whole, write_alias
from capsearch.indexer.elastic.requests import Hit
from capsearch.indexer.pipeline import encode_captions
from capsearch.indexer.sources.scan import is_in
from capsearch.indexer.store import KnownFile

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch


_RELAXED = "relaxed_from"  # in _meta: settings to restore, also after a killed load
_NEVER = "-1"


class ElasticWriter:
    """Writes to one index.

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

    def upsert(self, documents: Iterable[StoredDocument]) -> None:
        """Adds documents, or replaces those of the same id."""
        for _ in self.index_json(self.to_json(one) for one in documents):
            pass

    def to_json(self, document: StoredDocument) -> dict[str, Any]:
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
        alias = write_alias(self.index)
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
        stored = self._meta()[META]
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
        own = {**stored[META], **facts}
        kept = {key: one for key, one in own.items() if one is not None}
        with readable_errors(self.address):
            self.client.indices.put_mapping(index=self.index, meta={**stored, META: kept})

    def _meta(self) -> dict[str, Any]:
        with readable_errors(self.address):
            found = self.client.indices.get_mapping(index=self.index)[self.index]["mappings"]
        return dict(found["_meta"])


DOCUMENTS = 250  # read and changed at once
ATTEMPTS = 20  # at a document that others keep changing
MAX_PAUSE_S = 0.5


@dataclass(frozen=True, slots=True)
class _Read:
    """A document as it was read, with what makes sure that nobody has changed it since."""

    document: StoredDocument
    checksum: str
    if_seq_no: int
    if_primary_term: int

    @classmethod
    def of(cls, hit: Hit) -> _Read:
        return cls(whole(hit), hit["_source"]["checksum"], hit["_seq_no"], hit["_primary_term"])


class Editor:
    """changes.Documents of one index; captions are encoded as their documents are written."""

    def __init__(self, writer: ElasticWriter, text: TextEncoder) -> None:
        self.writer, self._text = writer, text
        self.backend = ElasticBackend(writer.client, writer.address, writer.index)
        # Two documents may have one path after a killed run: (path, image id) of the earlier file.
        self.stale: set[tuple[str, str]] = set()
        self._holders: dict[str, str] = {}  # image id by path, as this run found and left them
        self._any_past: bool | None = None

    def edit(self, changes: Mapping[str, Change], new: Collection[str] = ()) -> None:
        """Makes changes by id. Those of `new` are thought not to be there and not read first.

        A change is called again where somebody else was faster, with what they wrote.
        """
        for ids in chunks(changes, DOCUMENTS):
            self._edit({image_id: changes[image_id] for image_id in ids}, set(new))

    def read(self, ids: Sequence[str]) -> dict[str, StoredDocument]:
        """Documents by id; unknown ids are left out."""
        return {image_id: read.document for image_id, read in self._read_latest(ids).items()}

    def existing(self, ids: Sequence[str], encoded: bool = False) -> set[str]:
        """Those of `ids` that are there this moment, or with `encoded` have a vector."""
        if not ids:
            return set()
        with readable_errors(self.writer.address):
            answers = self.writer.client.mget(
                index=self.writer.index, ids=list(ids), source_includes=["encoded"]
            )["docs"]
        there = {one["_id"]: one["_source"] for one in answers if one.get("found")}
        return {image_id for image_id, source in there.items() if source["encoded"] or not encoded}

    def files(self, roots: Sequence[Path]) -> dict[str, KnownFile]:
        """The files under `roots` by path. Of two images at one path the one with the later file
        counts, the other is noted as stale."""
        folders = {str(folder) for root in roots
                   for folder in ((root,) if root.is_dir() else (root, root.parent))}  # fmt: skip
        found: dict[str, KnownFile] = {}
        for hits in self.backend.scan({"terms": {"folders": sorted(folders)}}, _FILES):
            for file in _files(hits):
                if any(is_in(file.path, root) for root in roots):
                    both = (found.get(file.path, file), file)
                    latest, other = sorted(both, key=lambda one: (-one.mtime_ns, one.image_id))
                    found[file.path] = latest
                    if other is not latest:
                        self.stale.add((other.path, other.image_id))
        self._holders |= {path: file.image_id for path, file in found.items()}
        return found

    def holders(self, paths: Sequence[str]) -> dict[str, str]:
        """The image that each path holds, as this run found and left it."""
        return {path: self._holders[path] for path in paths if path in self._holders}

    def note_holder(self, path: str, image_id: str | None) -> None:
        """Notes that this run found an image, or none, at a path."""
        self._holders.pop(path, None)
        if image_id is not None:
            self._holders[path] = image_id
            self.stale.discard((path, image_id))

    def past_holders(self, paths: Sequence[str]) -> dict[str, str]:
        """The image that was last at each path, before earlier runs found it gone."""
        if self._any_past is None:
            self._any_past = bool(self.backend.count({"exists": {"field": "past_paths"}}))
        if not self._any_past or not paths:
            return {}
        latest: dict[str, tuple[str, str]] = {}
        for hits in self.backend.scan({"terms": {"past_paths": list(paths)}}, _PAST):
            for hit in hits:
                for path, moment in hit["_source"]["provenance"]["past_files"]:
                    latest[path] = max(latest.get(path, ("", "")), (moment, hit["_id"]))
        return {path: latest[path][1] for path in paths if path in latest}

    def _edit(self, changes: dict[str, Change], absent: set[str]) -> None:
        for attempt in range(ATTEMPTS):
            before = self._read_latest([one for one in changes if one not in absent])
            after = {
                image_id: change(before[image_id].document if image_id in before else None)
                for image_id, change in changes.items()
            }
            documents = {one: document for one, document in after.items() if document is not None}
            self._encode(documents.values())
            sent = self.writer.send(self._actions(documents, before))
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
        self, documents: Mapping[str, StoredDocument], before: Mapping[str, _Read]
    ) -> Iterator[dict[str, Any]]:
        """Creates what is not there, replaces what has changed."""
        for image_id, document in documents.items():
            source = self.writer.to_json(document)
            read = before.get(image_id)
            if read is None:
                yield {"_op_type": "create", "_id": image_id, "_source": source}
            elif read.checksum != source["checksum"]:
                condition = {"if_seq_no": read.if_seq_no, "if_primary_term": read.if_primary_term}
                yield {"_op_type": "index", "_id": image_id, **condition, "_source": source}

    def _encode(self, documents: Iterable[StoredDocument]) -> None:
        """Encodes the captions in the model's languages that have not been."""
        pending = [
            stored
            for document in documents
            for stored in document.captions.values()
            if not stored.encoded and stored.caption.language in self._text.languages
        ]
        if not pending:
            return
        texts = [(stored.caption.text, stored.caption.language) for stored in pending]
        for stored, vector in zip(pending, encode_captions(self._text, texts), strict=True):
            stored.encoded, stored.vector = True, vector


def unchanged_delete(hit: Hit) -> dict[str, Any]:
    """Deletes a document unless it has been written since it was found."""
    condition = {"if_seq_no": hit["_seq_no"], "if_primary_term": hit["_primary_term"]}
    return {"_op_type": "delete", "_id": hit["_id"], **condition}


_FILES: Mapping[str, Any] = {"source_includes": ["encoded", "provenance.files"]}
_PAST: Mapping[str, Any] = {"source_includes": ["provenance.past_files"]}


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


def _files(hits: Iterable[Hit]) -> Iterator[KnownFile]:
    for hit in hits:
        source = hit["_source"]
        for path, mtime_ns, size, sidecars in source["provenance"].get("files", ()):
            yield KnownFile(path, hit["_id"], mtime_ns, size, sidecars, source["encoded"])
