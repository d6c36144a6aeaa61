"""Opening a collection, wherever it is: in a folder or, given a URL, in a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

if TYPE_CHECKING:
    from capsearch.encoders.models.registry import Model
    from capsearch.indexer.elastic.collection import ElasticCollection
    from capsearch.indexer.forgetting import Sources
    from capsearch.indexer.sqlite.collection import Collection


AnyCollection: TypeAlias = Union["Collection", "ElasticCollection"]
Place: TypeAlias = Path | str  # the folder of an index, or the URL of a collection in a cluster


def is_url(place: str) -> bool:
    """Whether a place is in a cluster."""
    return "://" in place


def place_of(index: Path | None, backend: str | None) -> Place:
    """The folder that is given, or else the URL, or else the default folder."""
    from capsearch.indexer.sqlite.collection import default_index_path

    return index or backend or default_index_path()


def open_at(place: Place, model: Model | None = None) -> AnyCollection:
    """For searching; raises what Collection.open and ElasticCollection.open raise."""
    if isinstance(place, str):
        from capsearch.indexer.elastic.collection import ElasticCollection

        return ElasticCollection.open(place, model)
    from capsearch.indexer.sqlite.collection import Collection

    return Collection.open(place, model)


def create_at(
    place: Place,
    model: Model | None = None,
    shards: int = 1,
    replicas: int = 1,
    rebuild: bool = False,
) -> AnyCollection:
    """For writing; shards and replicas are those of a new collection in a cluster.

    To `rebuild` it, a collection of an older schema is opened too.
    """
    if isinstance(place, str):
        from capsearch.indexer.elastic.collection import ElasticCollection

        return ElasticCollection.create(place, model, shards, replicas)
    from capsearch.indexer.sqlite.collection import Collection

    return Collection.create(place, model, rebuild)


@contextmanager
def sources_at(place: Place) -> Iterator[Sources]:
    """Roots and captions files, to let go of one; what opened_sources and `open` raise."""
    if isinstance(place, str):
        from capsearch.indexer.elastic.collection import ElasticCollection

        with ElasticCollection.open(place) as collection:
            yield collection.sources()
    else:
        from capsearch.indexer.sqlite.sources import opened_sources

        with opened_sources(place) as sources:
            yield sources
