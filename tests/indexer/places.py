"""Where a collection is: in an index folder or in a cluster. Tests of both take a `place`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Document, Filters
from capsearch.indexer.elastic.collection import ElasticCollection
from capsearch.indexer.roots import Sources
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.sources import opened_sources


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of an index, or the URL of a collection in a cluster."""

    where: Path | str

    def create(self, model: Model) -> Collection | ElasticCollection:
        if isinstance(self.where, str):
            return ElasticCollection.create(self.where, model, replicas=0)
        return Collection.create(self.where, model)

    def open(self, model: Model) -> Collection | ElasticCollection:
        if isinstance(self.where, str):
            return ElasticCollection.open(self.where, model)
        return Collection.open(self.where, model)

    @contextmanager
    def sources(self, model: Model) -> Iterator[Sources]:
        if isinstance(self.where, str):
            with ElasticCollection.open(self.where, model) as collection:
                yield collection.sources()
        else:
            with opened_sources(self.where) as sources:
                yield sources


def document(collection: Collection | ElasticCollection, name: str) -> Document:
    """The one image with a file of this name."""
    found = collection.backend.newest(Filters(), 1000)
    [one] = [one for one in found if any(path.endswith(name) for path in one.record.paths)]
    return one
