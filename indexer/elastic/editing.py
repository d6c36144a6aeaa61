"""Changing documents that others may change at the same time.

A document is read, changed and written under the condition that nobody has written it since
(optimistic concurrency: if_seq_no). Where somebody has, the change is made to what they wrote.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias, TypeVar

from capsearch.engine.errors import IndexProblem
from capsearch.engine.protocols import TextEncoder
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import readable_errors
from capsearch.indexer.elastic.documents import whole
from capsearch.indexer.elastic.entry import Entry
from capsearch.indexer.elastic.mapping import WHOLE
from capsearch.indexer.elastic.matches import Hit
from capsearch.indexer.elastic.writer import ElasticWriter
from capsearch.indexer.encoding import encode_captions

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
