"""Collections from an embedded index into a cluster and back, without encoding anything.

Both directions can be stopped, killed and run again: what is there already is not sent again. Into
a cluster, copying again brings the collection up to date: documents that changed are replaced,
those that are gone are deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from capsearch.engine.errors import IndexProblem
from capsearch.indexer.changes import instead
from capsearch.indexer.document import StoredDocument
from capsearch.indexer.elastic import collection as versions
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect, readable_errors
from capsearch.indexer.elastic.collection import State
from capsearch.indexer.elastic.documents import WHOLE, whole
from capsearch.indexer.elastic.requests import HAS_FILE
from capsearch.indexer.elastic.writer import ElasticWriter
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.matches import update_words
from capsearch.indexer.sqlite.writer import CatalogWriter

Show = Callable[[int, int], None]  # done, total
_IDS: Mapping[str, Any] = {"source": False}


@dataclass(frozen=True, slots=True)
class CopySummary:
    """What a copy did; `unchanged` were there already."""

    copied: int
    unchanged: int
    removed: int
    interrupted: bool
    seconds: float


@dataclass(slots=True)
class _Counts:
    copied: int = 0
    unchanged: int = 0
    removed: int = 0

    def summary(self, stop: threading.Event, started: float) -> CopySummary:
        seconds = perf_counter() - started
        return CopySummary(self.copied, self.unchanged, self.removed, stop.is_set(), seconds)


def to_cluster(
    collection: Collection,
    address: Address,
    show: Show,
    stop: threading.Event,
    *,
    rebuild: bool = False,
    shards: int = 1,
    replicas: int = 1,
    load_replicas: int | None = None,
) -> CopySummary:
    """Copies an embedded index; searches see a new collection or version when it is whole.

    `load_replicas` are those of an empty collection while it is filled. IndexProblem where other
    folders were indexed into the collection: their images would be deleted.
    """
    client, counts, started = connect(address), _Counts(), perf_counter()
    state = State(client, address)
    documents = CatalogDocuments(CatalogWriter(collection.catalog))
    _require_same_roots(state, collection, address)
    index = versions.prepare(
        client, address, collection.identity, rebuild=rebuild, shards=shards, replicas=replicas
    )
    state.create()
    state.add_roots(collection.catalog.excludes())
    writer = ElasticWriter(client, address, index, collection.model.text.words)
    with collection.catalog.snapshot(), writer.bulk_load(replicas=load_replicas):
        total = len(collection.backend)
        for batch in documents.batches():
            changed = _changed(writer, batch)
            counts.unchanged += len(batch) - len(changed)
            for _ in writer.index_json(changed):
                counts.copied += 1
                show(counts.copied + counts.unchanged, total)
            if stop.is_set():
                break
        else:
            writer.refresh()
            counts.removed = _remove_missing(documents, writer)
    if not stop.is_set():
        versions.publish(client, address, index)
    return counts.summary(stop, started)


def from_cluster(
    address: Address, collection: Collection, show: Show, stop: threading.Event
) -> CopySummary:
    """Copies a cluster's collection into an embedded index of the same model."""
    client, counts, started = connect(address), _Counts(), perf_counter()
    backend, catalog = ElasticBackend(client, address), CatalogWriter(collection.catalog)
    documents, total = CatalogDocuments(catalog), len(backend)
    for hits in backend.scan(HAS_FILE, WHOLE):
        there = documents.found([hit["_id"] for hit in hits], encoded=True)
        new = {hit["_id"]: whole(hit) for hit in hits if hit["_id"] not in there}
        documents.edit({image_id: instead(document) for image_id, document in new.items()})
        counts.unchanged += len(there)
        counts.copied += len(new)
        show(counts.copied + counts.unchanged, total)
        if stop.is_set():
            break
    with catalog.transaction(visible=False):
        catalog.add_roots(State(client, address).roots())
    for _ in update_words(catalog, collection.model.text.words):
        pass
    collection.finish()
    return counts.summary(stop, started)


def _require_same_roots(state: State, collection: Collection, address: Address) -> None:
    mine = collection.roots()
    others = [root for root in state.roots() if not any(root.is_relative_to(one) for one in mine)]
    if others:
        raise IndexProblem(
            f"{address} also holds {others[0]}, which this index does not: copying would delete "
            f"its images; choose another name, or run `capsearch index --backend {address}`"
        )


def _changed(writer: ElasticWriter, batch: Sequence[StoredDocument]) -> list[dict[str, Any]]:
    """The documents that the cluster lacks or has otherwise, with what people said there."""
    sources = {document.record.id: writer.to_json(document) for document in batch}
    there = _checksums(writer, list(sources))
    reviewed = _reviewed(writer, [one for one in there if there[one] != sources[one]["checksum"]])
    for document in batch:
        if before := reviewed.get(document.record.id):
            document.take_reviews(before)
            sources[document.record.id] = writer.to_json(document)
    return [source for one, source in sources.items() if there.get(one) != source["checksum"]]


def _reviewed(writer: ElasticWriter, ids: Sequence[str]) -> dict[str, StoredDocument]:
    """Documents of the cluster in which people have accepted or rejected captions."""
    if not ids:
        return {}
    required = [{"ids": {"values": list(ids)}}, {"term": {"reviewed": True}}]
    found = ElasticBackend(writer.client, writer.address, writer.index).ask(
        query={"bool": {"filter": required}}, size=len(ids), **WHOLE
    )
    return {hit["_id"]: whole(hit) for hit in found["hits"]["hits"]}


def _checksums(writer: ElasticWriter, ids: Sequence[str]) -> dict[str, str]:
    if not ids:
        return {}
    with readable_errors(writer.address):
        found = writer.client.mget(index=writer.index, ids=list(ids), source_includes=["checksum"])
    return {one["_id"]: one["_source"]["checksum"] for one in found["docs"] if one.get("found")}


def _remove_missing(documents: CatalogDocuments, writer: ElasticWriter) -> int:
    backend, removed = ElasticBackend(writer.client, writer.address, writer.index), 0
    for hits in backend.scan({"match_all": {}}, _IDS):
        ids = [hit["_id"] for hit in hits]
        gone = sorted(set(ids) - documents.found(ids))
        writer.delete(gone)
        removed += len(gone)
    return removed
