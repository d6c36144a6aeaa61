"""Writing to one index of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import IndexProblem
from capsearch.engine.protocols import NewDocument
from capsearch.indexer.elastic import bulk, mapping
from capsearch.indexer.elastic.client import Address, readable_errors
from capsearch.indexer.elastic.documents import to_json

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

_RELAXED = "relaxed_from"  # in _meta: settings to restore, also after a killed load
_NEVER = "-1"


class ElasticWriter:
    """engine.protocols.BackendWriter over one index.

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

    def upsert(self, documents: Iterable[NewDocument]) -> None:
        """Adds documents, or replaces those of the same id."""
        for _ in self.index_json(self.to_json(one) for one in documents):
            pass

    def to_json(self, document: NewDocument) -> dict[str, Any]:
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
        alias = mapping.write_alias(self.index)
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
        stored = self._meta()[mapping.META]
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
        own = {**stored[mapping.META], **facts}
        kept = {key: one for key, one in own.items() if one is not None}
        with readable_errors(self.address):
            self.client.indices.put_mapping(index=self.index, meta={**stored, mapping.META: kept})

    def _meta(self) -> dict[str, Any]:
        with readable_errors(self.address):
            found = self.client.indices.get_mapping(index=self.index)[self.index]["mappings"]
        return dict(found["_meta"])
