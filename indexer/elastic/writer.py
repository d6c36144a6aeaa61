"""Writing to a cluster: streamed in bulks, each sent again while the cluster is busy."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import IndexProblem
from capsearch.engine.protocols import NewDocument
from capsearch.indexer.elastic import mapping
from capsearch.indexer.elastic.client import BUSY, Address, readable_errors, reason

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

DOCUMENTS_A_BULK = 250
BYTES_A_BULK = 10_000_000
RETRIES = 8  # of what a busy cluster refused, after 1, 2, 4, ... seconds
MAX_BACKOFF_S = 60
_RELAXED = "relaxed_from"  # in _meta: settings to restore, also after a killed load


class ElasticWriter:
    """engine.protocols.BackendWriter over one index.

    A document is replaced as a whole under its id, so sending it twice is the same as once. The
    next bulk is sent when the last one was accepted: a slow cluster slows the reader down.
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
        return mapping.to_json(document, self._words_of)

    def index_json(self, sources: Iterable[Mapping[str, Any]]) -> Iterator[str]:
        """Documents that are JSON already; yields ids as they are accepted."""
        actions = (
            {"_op_type": "index", "_id": source["id"], "_source": source} for source in sources
        )
        yield from self._bulk(actions)

    def delete(self, ids: Sequence[str]) -> None:
        """Removes documents; unknown ids are ignored."""
        for _ in self._bulk({"_op_type": "delete", "_id": one} for one in ids):
            pass

    def refresh(self) -> None:
        """Makes what was written visible to searches that start afterwards."""
        with readable_errors(self.address):
            self.client.indices.refresh(index=self.index)

    @contextmanager
    def bulk_load(self) -> Iterator[None]:
        """No refresh, and for an empty index no replicas, until the load ends or fails.

        What to restore is noted in the index first: the next load restores it where this one
        was killed.
        """
        before = self._meta()[mapping.META].get(_RELAXED) or self._relaxable()
        relaxed: dict[str, Any] = {"refresh_interval": "-1"}
        with readable_errors(self.address):
            if not self.client.count(index=self.index)["count"]:
                relaxed["number_of_replicas"] = 0
            self.describe(**{_RELAXED: before})
            self.client.indices.put_settings(index=self.index, settings=relaxed)
        try:
            yield
        finally:
            with readable_errors(self.address):
                self.client.indices.put_settings(index=self.index, settings=before)
                self.describe(**{_RELAXED: None})
            self.refresh()

    def _bulk(self, actions: Iterable[dict[str, Any]]) -> Iterator[str]:
        from elasticsearch.helpers import streaming_bulk

        with readable_errors(self.address):
            results = streaming_bulk(
                self.client,
                actions,
                index=self.index,
                chunk_size=DOCUMENTS_A_BULK,
                max_chunk_bytes=BYTES_A_BULK,
                max_retries=RETRIES,
                initial_backoff=1,
                max_backoff=MAX_BACKOFF_S,
                retry_on_status=BUSY,
                raise_on_error=False,
            )
            for accepted, result in results:
                operation, outcome = next(iter(result.items()))
                if not accepted and not (operation == "delete" and outcome["status"] == 404):
                    raise self._refused(outcome)
                yield str(outcome["_id"])

    def _refused(self, outcome: Mapping[str, Any]) -> IndexProblem:
        said = reason(dict(outcome))
        if "cluster_block" in said or "read-only" in said:
            return IndexProblem(
                f"{self.address} is read-only; free disk space on the cluster or remove the "
                f"block (index.blocks.*), then run the same command again: {said}"
            )
        return IndexProblem(f"{self.address} refused document {outcome['_id']}: {said}")

    def _relaxable(self) -> dict[str, Any]:
        with readable_errors(self.address):
            found = self.client.indices.get_settings(index=self.index)[self.index]["settings"]
        replicas = found["index"]["number_of_replicas"]
        interval = found["index"].get("refresh_interval")
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
