"""A collection in a cluster, open for searching or writing, as sqlite.collection is.

Versions of a collection: indexes NAME-v1, NAME-v2, ... of which the alias NAME is the current.

Searches ask the alias. A load with other models goes into the next version and is published when it
is whole, so that searches see the old collection or the new one and nothing in between.

What a collection knows besides images: folders, captions files, skipped files, options.

One small document each, in the index NAME-state: it belongs to no model, so it outlives versions,
and writers at the same time do not overwrite each other's.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from filelock import FileLock, Timeout
from platformdirs import user_cache_path

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import IndexEmpty, IndexProblem, ModelMismatch, SchemaTooOld
from capsearch.engine.records import Filters
from capsearch.engine.search import SearchEngine
from capsearch.indexer.elastic import client as bulk
from capsearch.indexer.elastic import documents, requests
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect, missing, readable_errors
from capsearch.indexer.elastic.documents import folders
from capsearch.indexer.identity import Identity
from capsearch.indexer.store import Closing

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

    from capsearch.indexer.elastic.sources import ElasticSources
    from capsearch.indexer.elastic.store import ElasticStore


Kind = Literal["root", "mount point", "captions file", "skipped", "option"]
_MAPPING: Mapping[str, Any] = {
    "dynamic": "strict",
    "properties": {
        "kind": {"type": "keyword"},
        "name": {"type": "keyword", "ignore_above": 8000},  # a path, or that of an option
        "folders": {"type": "keyword", "ignore_above": 8000},
        "facts": {"type": "object", "enabled": False},
    },
}
_PAGE = 1000


class State:
    """The documents of NAME-state; there may be none."""

    def __init__(self, client: Elasticsearch, address: Address) -> None:
        self._client, self._address = client, address
        self.index = f"{address.name}-state"

    def create(self) -> None:
        """Makes the index unless it is there."""
        from elasticsearch import BadRequestError

        with readable_errors(self._address):
            if self._client.indices.exists(index=self.index):
                return
            try:
                self._client.indices.create(
                    index=self.index,
                    settings={"number_of_shards": 1, "auto_expand_replicas": "0-1"},
                    mappings=_MAPPING,
                )
            except BadRequestError as problem:  # another writer was faster
                if "resource_already_exists" not in str(problem):
                    raise

    def drop(self) -> None:
        """Deletes all of it."""
        with readable_errors(self._address):
            self._client.indices.delete(index=self.index, ignore_unavailable=True)

    def roots(self) -> dict[Path, tuple[str, ...]]:
        """The folders indexed so far, sorted, with the globs that each leaves out."""
        found = {Path(name): tuple(facts["exclude"]) for name, facts in self.all("root").items()}
        outer = {root: globs for root, globs in found.items() if not _inside(root, list(found))}
        return dict(sorted(outer.items()))

    def add_roots(self, excludes: Mapping[Path, Sequence[str]]) -> None:
        """Adds roots with the globs they leave out; those inside another root are not kept."""
        known = [*map(Path, self.all("root")), *excludes]
        outer = {root: globs for root, globs in excludes.items() if not _inside(root, known)}
        self.put("root", {str(root): {"exclude": list(globs)} for root, globs in outer.items()})
        self.delete("root", [str(root) for root in known if _inside(root, known)])

    def all(self, kind: Kind, below: Sequence[Path] | None = None) -> dict[str, dict[str, Any]]:
        """The facts of one kind by name; with `below`, of those paths and what is below them."""
        clauses: list[dict[str, Any]] = [{"term": {"kind": kind}}]
        if below is not None:
            names = [str(path) for path in below]
            inside = [{"terms": {"folders": names}}, {"terms": {"name": names}}]
            clauses.append({"bool": {"should": inside}})
        return dict(self._scan({"bool": {"filter": clauses}}))

    def put(self, kind: Kind, facts: Mapping[str, Mapping[str, Any]]) -> None:
        """Adds or replaces facts by name."""
        self._send(
            {
                "_op_type": "index",
                "_id": _id(kind, name),
                "kind": kind,
                "name": name,
                "folders": [] if kind == "option" else folders([name]),
                "facts": one,
            }
            for name, one in facts.items()
        )

    def delete(self, kind: Kind, names: Sequence[str]) -> None:
        """Removes facts; unknown names are ignored."""
        self._send({"_op_type": "delete", "_id": _id(kind, name)} for name in names)

    def _send(self, actions: Iterable[Mapping[str, Any]]) -> None:
        for _ in bulk.send(self._client, self._address, self.index, actions):
            pass

    def _scan(self, query: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
        after: dict[str, Any] = {}
        with readable_errors(self._address):
            self._client.indices.refresh(index=self.index, ignore_unavailable=True)
            while True:
                found = self._client.search(
                    index=self.index, query=query, sort=["name"], size=_PAGE,
                    ignore_unavailable=True, **after,
                )["hits"]["hits"]  # fmt: skip
                yield from ((one["_source"]["name"], one["_source"]["facts"]) for one in found)
                if len(found) < _PAGE:
                    return
                after = {"search_after": found[-1]["sort"]}


def _inside(root: Path, others: Sequence[Path]) -> bool:
    return any(other in root.parents for other in others)


def _id(kind: Kind, name: str) -> str:
    return hashlib.blake2b(f"{kind}\0{name}".encode(), digest_size=16).hexdigest()


def current(client: Elasticsearch, address: Address) -> str | None:
    """The index that the alias names, or None."""
    found = _published(client, address, "aliases")
    return None if found is None else found[0]


def about_index(
    client: Elasticsearch, address: Address, index: str | None = None
) -> Mapping[str, Any]:
    """What an index, or the current one, says about itself (documents.meta); IndexMissing."""
    found = _published(client, address, "mappings", index)
    if found is None:
        raise missing(address)
    stored: Mapping[str, Any] | None = found[1]["mappings"].get("_meta", {}).get(documents.META)
    if stored is None:
        raise IndexProblem(f"{found[0]} was not made by capsearch; choose another name")
    return stored


def _published(
    client: Elasticsearch, address: Address, features: str, index: str | None = None
) -> tuple[str, Mapping[str, Any]] | None:
    """The name of an index, or of that which the alias names, and what is asked of it."""
    name = index or address.name
    with readable_errors(address):
        found = client.indices.get(index=name, features=features, ignore_unavailable=True).body
    if index is None and address.name in found:
        raise IndexProblem(
            f"{address} is an index that capsearch did not make; choose another name"
        )
    return next(iter(found.items()), None)


def require_same_model(about: Mapping[str, Any], address: Address, identity: Identity) -> None:
    """ModelMismatch when an index was made with another model, SchemaTooOld."""
    made = documents.identity_of(about)
    if about["schema"] < documents.SCHEMA:
        raise SchemaTooOld(
            f"{address} has schema {about['schema']}, this capsearch reads {documents.SCHEMA}; "
            f"run `capsearch index --rebuild --backend {address}`, which keeps vectors, captions "
            "and what people said about them"
        )
    if not made.same_vectors(identity):
        raise ModelMismatch(
            f"{address} was made with {made}, this is {identity}; run `capsearch index "
            f"--rebuild --model {identity.source} --backend {address}`, or search with "
            f"--model {made.source}"
        )


def prepare(
    client: Elasticsearch,
    address: Address,
    identity: Identity,
    *,
    rebuild: bool = False,
    shards: int = 1,
    replicas: int = 1,
) -> str:
    """The index to write to: the current one, one that a killed load began, or a new one.

    With `rebuild` never the current one; ModelMismatch without it when another model made that.
    """
    published = current(client, address)
    if published is not None and not rebuild:
        require_same_model(about_index(client, address, published), address, identity)
        return published
    known = _versions(client, address)
    for index in known:
        about = about_index(client, address, index)
        same = documents.identity_of(about).same_vectors(identity)
        if index != published and same and about["schema"] == documents.SCHEMA:
            return index
    number = max((_number(one) for one in known), default=0) + 1
    index = f"{address.name}-v{number}"
    _create(client, address, index, identity, shards, replicas)
    return index


def _create(
    client: Elasticsearch, address: Address, index: str, identity: Identity, shards: int,
    replicas: int,
) -> None:  # fmt: skip
    """Unless another writer was faster."""
    from elasticsearch import BadRequestError

    with readable_errors(address):
        try:
            client.indices.create(
                index=index,
                settings=documents.settings(shards, replicas),
                mappings=documents.mapping(identity),
                aliases={documents.write_alias(index): {}},
            )
        except BadRequestError as problem:
            if "resource_already_exists" not in str(problem):
                raise
    require_same_model(about_index(client, address, index), address, identity)


def publish(client: Elasticsearch, address: Address, index: str) -> None:
    """Makes `index` the current version in one step, and deletes the others."""
    with readable_errors(address):
        known = _versions(client, address)
        actions = [
            {"remove": {"index": one, "alias": address.name, "must_exist": False}}
            for one in known
            if one != index
        ]
        added = {"add": {"index": index, "alias": address.name}}
        client.indices.update_aliases(actions=[*actions, added])
        for one in known:
            if one != index:
                client.indices.delete(index=one)


def drop(client: Elasticsearch, address: Address) -> None:
    """Deletes a collection with all its versions."""
    with readable_errors(address):
        for index in _versions(client, address):
            client.indices.delete(index=index)
    State(client, address).drop()


def _versions(client: Elasticsearch, address: Address) -> list[str]:
    with readable_errors(address):
        found = client.indices.get(index=f"{address.name}-v*", features="aliases").body
    return sorted((one for one in found if _is_version(one, address)), key=_number)


def _is_version(index: str, address: Address) -> bool:
    return re.fullmatch(re.escape(address.name) + r"-v\d+", index) is not None


def _number(index: str) -> int:
    return int(index.rpartition("-v")[2])


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
        about = about_index(client, address)
        model = model or registry.load(documents.identity_of(about).source)
        require_same_model(about, address, Identity.of(model))
        return cls(client, address, model)

    @classmethod
    def create(
        cls, url: str, model: Model | None = None, shards: int = 1, replicas: int = 1
    ) -> ElasticCollection:
        """For writing; a collection that is not there is created by the first run.

        `model` defaults to the one it was made with, or for a new one to the default model.
        """
        address = Address.parse(url)
        client = connect(address)
        if model is None:
            made = _published(client, address, "mappings")
            about = None if made is None else about_index(client, address, made[0])
            model = registry.load(None if about is None else documents.identity_of(about).source)
        collection = cls(client, address, model)
        collection._sizes = (shards, replicas)
        return collection

    def require_same_model(self) -> None:
        """ModelMismatch unless the current version was made with `model`, SchemaTooOld."""
        about = about_index(self._client, self.address)
        require_same_model(about, self.address, Identity.of(self.model))

    def roots(self) -> tuple[Path, ...]:
        """The folders indexed so far, sorted, as of some seconds ago."""
        known = self._roots
        if known is None or time.monotonic() - known[0] > _ROOTS_S:
            known = self._roots = (time.monotonic(), tuple(self._state.roots()))
        return known[1]

    def store(self) -> ElasticStore:
        """For one run of the pipeline."""
        from capsearch.indexer.elastic.store import ElasticStore

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
    index = current(client, address)
    if index is None:
        raise missing(address)
    about = about_index(client, address, index)
    identity = documents.identity_of(about)
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
