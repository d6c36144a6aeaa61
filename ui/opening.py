"""Opening a collection, wherever it is: in a folder or, given a URL, in a cluster."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Union

from capsearch.ui.commands.options import index_path_or_default

if TYPE_CHECKING:
    from capsearch.indexer.elastic.collection import ElasticCollection
    from capsearch.indexer.embedded.collection import Collection

AnyCollection: TypeAlias = Union["Collection", "ElasticCollection"]


def is_url(place: str) -> bool:
    """Whether a place is in a cluster."""
    return "://" in place


def open_collection(index: Path | None, backend: str | None, model: str | None) -> AnyCollection:
    """Opens the collection at `backend`, or else the index at a path or the default one."""
    from capsearch.encoders import models

    loaded = models.load(model) if model else None
    if backend is not None and index is None:
        from capsearch.indexer.elastic.collection import ElasticCollection

        return ElasticCollection.open(backend, loaded)
    from capsearch.indexer.embedded.collection import Collection

    return Collection.open(index_path_or_default(index), loaded)
