"""A collection in a cluster, open for searching: the counterpart of embedded.collection."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from platformdirs import user_cache_path

from capsearch.encoders import models
from capsearch.encoders.models import Model
from capsearch.engine.errors import IndexEmpty, ModelMismatch
from capsearch.engine.search import SearchEngine
from capsearch.indexer.elastic import mapping, versions
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect, missing, readable_errors
from capsearch.indexer.embedded.manifest import Identity

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch


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


class ElasticCollection:
    """The current version of a collection; `path` is where thumbnails are cached here."""

    def __init__(self, client: Elasticsearch, address: Address, model: Model) -> None:
        self.address, self.model, self._client = address, model, client
        self.backend = ElasticBackend(client, address)
        self.path = user_cache_path("capsearch") / "cluster"

    @classmethod
    def open(cls, url: str, model: Model | None = None) -> ElasticCollection:
        """IndexMissing when there is none, ModelMismatch when another model made it."""
        address = Address.parse(url)
        client = connect(address)
        made = mapping.identity_of(versions.about(client, address))
        model = model or models.load(made.source)
        this = Identity.of(model)
        if not made.same_vectors(this):
            raise ModelMismatch(
                f"{address} was made with {made}, this is {this}; index your images with {this} "
                f"and run `capsearch copy --rebuild INDEX_FOLDER {address}`, or install {made}"
            )
        return cls(client, address, model)

    def engine(self) -> SearchEngine:
        """A search engine over the collection; IndexEmpty when it has no images."""
        if not len(self.backend):
            raise IndexEmpty(f"{self.address} holds no images; add some with `capsearch copy`")
        return SearchEngine(self.backend, self.model.image, self.model.text)

    def close(self) -> None:
        """Closes the connections."""
        self._client.close()

    def __enter__(self) -> ElasticCollection:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


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
        roots=tuple(about["roots"]),
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
