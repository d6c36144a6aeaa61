"""Collections from an embedded index into a cluster and back, without encoding anything.

Both directions can be stopped, killed and run again: what is there already is not sent again. Into
a cluster, copying again brings the collection up to date: documents that changed are replaced,
those that are gone are deleted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from capsearch.engine.protocols import NewDocument
from capsearch.engine.records import Vectors
from capsearch.indexer.elastic import mapping, versions
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.candidates import Hit
from capsearch.indexer.elastic.client import Address, connect, readable_errors
from capsearch.indexer.elastic.requests import HAS_FILE
from capsearch.indexer.elastic.writer import ElasticWriter
from capsearch.indexer.embedded import transfer
from capsearch.indexer.embedded.collection import Collection

Show = Callable[[int, int], None]  # done, total
_WHOLE: Mapping[str, Any] = {
    "docvalue_fields": [mapping.IMAGE_ROW, mapping.CAPTION_ROWS, mapping.FEATURE_ROW]
}
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
) -> CopySummary:
    """Copies an embedded index; searches see a new collection or version when it is whole."""
    client, counts, started = connect(address), _Counts(), perf_counter()
    roots = [str(root) for root in collection.catalog.roots()]
    index = versions.prepare(
        client, address, collection.identity, roots, rebuild=rebuild, shards=shards,
        replicas=replicas,
    )  # fmt: skip
    writer = ElasticWriter(client, address, index, collection.model.text.words)
    writer.describe(roots=roots)
    with collection.catalog.snapshot(), writer.bulk_load():
        total = len(collection.backend)
        for batch in transfer.read(collection.catalog):
            changed = _changed(writer, batch)
            counts.unchanged += len(batch) - len(changed)
            for _ in writer.index_json(changed):
                counts.copied += 1
                show(counts.copied + counts.unchanged, total)
            if stop.is_set():
                break
        else:
            writer.refresh()
            counts.removed = _remove_missing(collection, writer)
    if not stop.is_set():
        versions.publish(client, address, index)
    return counts.summary(stop, started)


def from_cluster(
    address: Address, collection: Collection, show: Show, stop: threading.Event
) -> CopySummary:
    """Copies a cluster's collection into an embedded index of the same model."""
    client, counts, started = connect(address), _Counts(), perf_counter()
    backend = ElasticBackend(client, address)
    total = len(backend)
    for hits in backend.scan(HAS_FILE, _WHOLE):
        there = transfer.known(collection.catalog, [hit["_id"] for hit in hits], encoded=True)
        new = [_document(hit) for hit in hits if hit["_id"] not in there]
        transfer.write(collection, new)
        counts.unchanged += len(there)
        counts.copied += len(new)
        show(counts.copied + counts.unchanged, total)
        if stop.is_set():
            break
    transfer.add_roots(collection, versions.about(client, address)["roots"])
    transfer.index_words(collection)
    collection.finish()
    return counts.summary(stop, started)


def _changed(writer: ElasticWriter, batch: Sequence[NewDocument]) -> list[dict[str, Any]]:
    """The documents that the cluster lacks or has otherwise."""
    sources = [writer.to_json(one) for one in batch]
    there = _checksums(writer, [source["id"] for source in sources])
    return [source for source in sources if there.get(source["id"]) != source["checksum"]]


def _checksums(writer: ElasticWriter, ids: Sequence[str]) -> dict[str, str]:
    if not ids:
        return {}
    with readable_errors(writer.address):
        found = writer.client.mget(index=writer.index, ids=list(ids), source_includes=["checksum"])
    return {one["_id"]: one["_source"]["checksum"] for one in found["docs"] if one.get("found")}


def _remove_missing(collection: Collection, writer: ElasticWriter) -> int:
    backend, removed = ElasticBackend(writer.client, writer.address, writer.index), 0
    for hits in backend.scan({"match_all": {}}, _IDS):
        ids = [hit["_id"] for hit in hits]
        gone = sorted(set(ids) - transfer.known(collection.catalog, ids))
        writer.delete(gone)
        removed += len(gone)
    return removed


def _document(hit: Hit) -> NewDocument:
    source, fields = hit["_source"], hit.get("fields", {})
    encoded = [mapping.caption(one) for one in source.get("captions", ()) if one["encoded"]]
    table = mapping.row(fields, mapping.CAPTION_ROWS, "<f2")
    return NewDocument(
        mapping.document(source),
        mapping.row(fields, mapping.FEATURE_ROW, "<f2"),
        mapping.row(fields, mapping.IMAGE_ROW, "<f4"),
        dict(zip(encoded, _rows(table, len(encoded)), strict=True)),
        source.get("provenance") or {},
    )


def _rows(table: Vectors | None, count: int) -> Iterator[Vectors]:
    return iter(()) if table is None else iter(table.reshape(count, -1))
