"""A collection in a cluster, open for searching or writing, as embedded.collection is."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from capsearch.encoders import models
from capsearch.encoders.models import Model
from capsearch.engine.errors import IndexEmpty, ModelMismatch
from capsearch.engine.records import Filters
from capsearch.engine.search import SearchEngine
from capsearch.indexer.closing import Closing
from capsearch.indexer.elastic import mapping, requests, versions
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect, missing, readable_errors
from capsearch.indexer.elastic.state import State
from capsearch.indexer.embedded.manifest import Identity

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

    from capsearch.indexer.elastic.sources import ElasticSources
    from capsearch.indexer.elastic.store import ElasticStore

_ROOTS_S = 5.0  # a page of hits asks for the folders many times


@dataclass(frozen=True, slots=True)
class ElasticStats:
    """Counts of a collection's contents, its bytes in the cluster, and its model."""

    images: int
    captions: int
    captions_by_language: Mapping[str, int]
    captions_by_source: Mapping[str, int]
    roots: tuple[str, ...]
    version: str  # the index behind the alias
    health: str
    shards: int
    replicas: int
    bytes_on_disk: Mapping[str, int]  # primaries, and with replicas
    model: str
    model_digest: str
    backbone: str
    backbone_digest: str
    schema: int
    model_path: str | None = None


class ElasticCollection(Closing):
    """The current version of a collection; `path` is where thumbnails are cached here."""

    def __init__(self, client: Elasticsearch, address: Address, model: Model) -> None:
        self.address, self.model, self._client = address, model, client
        self.backend = ElasticBackend(client, address)
        self.path = user_cache_path("capsearch") / "cluster"
        self._state = State(client, address)
        self._roots: tuple[float, tuple[Path, ...]] | None = None
        self._sizes = (1, 1)  # shards and replicas of a new version
        self._writer: tuple[Path, FileLock] | None = None

    @classmethod
    def open(cls, url: str, model: Model | None = None) -> ElasticCollection:
        """IndexMissing when there is none, ModelMismatch when another model made it."""
        address = Address.parse(url)
        client = connect(address)
        made = mapping.identity_of(versions.about(client, address))
        collection = cls(client, address, model or models.load(made.source))
        collection.require_same_model()
        return collection

    @classmethod
    def create(
        cls, url: str, model: Model | None = None, shards: int = 1, replicas: int = 1
    ) -> ElasticCollection:
        """For writing; a collection that is not there is created by the first run.

        `model` defaults to the one it was made with, or for a new one to the default model.
        """
        address = Address.parse(url)
        client = connect(address)
        index = versions.current(client, address)
        if model is None:
            about = None if index is None else versions.about(client, address, index)
            model = models.load(None if about is None else mapping.identity_of(about).source)
        collection = cls(client, address, model)
        collection._sizes = (shards, replicas)
        return collection

    def require_same_model(self) -> None:
        """ModelMismatch unless the current version was made with `model`."""
        made = mapping.identity_of(versions.about(self._client, self.address))
        this = Identity.of(self.model)
        if not made.same_vectors(this):
            raise ModelMismatch(
                f"{self.address} was made with {made}, this is {this}; run `capsearch index "
                f"--rebuild --model {this.source} --backend {self.address}`, or search with "
                f"--model {made.source}"
            )

    def roots(self) -> tuple[Path, ...]:
        """The folders indexed so far, sorted, as of some seconds ago."""
        known = self._roots
        if known is None or time.monotonic() - known[0] > _ROOTS_S:
            known = self._roots = (time.monotonic(), tuple(self._state.roots()))
        return known[1]

    def store(self) -> ElasticStore:
        """For one run of the pipeline."""
        from capsearch.indexer.elastic.store import ElasticStore  # a search needs no Pillow

        self._writer = self._writer or _writers_folder(self.path, self.address)
        return ElasticStore(
            self._client, self.address, self.model, self._writer[0], self.path, *self._sizes
        )

    def sources(self) -> ElasticSources:
        """The roots and captions files, to let go of one."""
        from capsearch.indexer.elastic.sources import ElasticSources

        return ElasticSources(self, self._state)

    def image_paths(self, filters: Filters) -> Sequence[tuple[str, str]]:
        """(first path, id) of the images that pass filters and have a file, sorted."""
        query = {"bool": {"filter": [requests.HAS_FILE, *requests.conditions(filters)]}}
        pages = self.backend.scan(query, {"source_includes": ["paths"]})
        return sorted((hit["_source"]["paths"][0], hit["_id"]) for hits in pages for hit in hits)

    def for_writing(self) -> ElasticCollection:
        """The same collection, opened for writing."""
        return ElasticCollection.create(str(self.address), self.model)

    def engine(self) -> SearchEngine:
        """A search engine over the collection; IndexEmpty when it has no images."""
        if not len(self.backend):
            raise IndexEmpty(f"{self.address} holds no images; add some with `capsearch index`")
        return SearchEngine(self.backend, self.model.image, self.model.text)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()
        if self._writer is not None:
            self._writer[1].release()


def read_stats(url: str) -> ElasticStats:
    """The statistics of a collection without opening its model, which may be missing."""
    address = Address.parse(url)
    client = connect(address)
    index = versions.current(client, address)
    if index is None:
        raise missing(address)
    about = versions.about(client, address, index)
    identity = mapping.identity_of(about)
    captions = ElasticBackend(client, address).ask(size=0, aggs=_CAPTION_COUNTS)["aggregations"]
    with readable_errors(address):
        stored = client.indices.stats(index=index, metric="store")["_all"]
        settings = client.indices.get_settings(index=index)[index]["settings"]["index"]
        health = client.cluster.health(index=index)["status"]
    return ElasticStats(
        images=len(ElasticBackend(client, address)),
        captions=captions["captions"]["doc_count"],
        captions_by_language=_counts(captions["captions"]["language"]),
        captions_by_source=_counts(captions["captions"]["source"]),
        roots=tuple(str(root) for root in State(client, address).roots()),
        version=index,
        health=health,
        shards=int(settings["number_of_shards"]),
        replicas=int(settings["number_of_replicas"]),
        bytes_on_disk={
            "primaries": stored["primaries"]["store"]["size_in_bytes"],
            "with replicas": stored["total"]["store"]["size_in_bytes"],
        },
        model=identity.model,
        model_digest=identity.digest,
        backbone=identity.backbone,
        backbone_digest=identity.backbone_digest,
        schema=about["schema"],
        model_path=identity.path,
    )


_CAPTION_COUNTS: Mapping[str, Any] = {
    "captions": {
        "nested": {"path": "captions"},
        "aggs": {
            name: {"terms": {"field": f"captions.{name}", "size": 100}}
            for name in ("language", "source")
        },
    }
}


def _counts(found: Mapping[str, Any]) -> dict[str, int]:
    return {one["key"]: one["doc_count"] for one in found["buckets"]}


def _writers_folder(cache: Path, address: Address) -> tuple[Path, FileLock]:
    """A folder for the notes of one writer; that of a killed one goes to the next."""
    digest = hashlib.blake2b(str(address).encode(), digest_size=8).hexdigest()
    number = 0
    while True:
        number += 1
        folder = cache / "writers" / f"{digest}-{number}"
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / "writer.lock", timeout=0)
        try:
            lock.acquire()
        except Timeout:
            continue
        return folder, lock
