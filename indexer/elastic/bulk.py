"""Bulks of documents: streamed, one at a time, sent again while the cluster is busy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from capsearch.engine.errors import IndexProblem
from capsearch.indexer.elastic.client import BUSY, Address, readable_errors, reason

if TYPE_CHECKING:
    from elasticsearch import Elasticsearch

DOCUMENTS_A_BULK = 250
BYTES_A_BULK = 10_000_000
RETRIES = 8  # of documents that a busy cluster refused, after 1, 2, 4, ... seconds
FIRST_BACKOFF_S = 1.0
MAX_BACKOFF_S = 60.0
_CONFLICT, _NOT_FOUND = 409, 404


def send(
    client: Elasticsearch,
    address: Address,
    index: str,
    actions: Iterable[Mapping[str, Any]],
    *,
    require_alias: bool = False,
) -> Iterator[tuple[str, bool]]:
    """Yields (id, whether it was accepted) as the cluster answers.

    Not accepted are documents that somebody else has changed or created in the meantime (409).
    What a busy cluster refused is sent again; IndexProblem for anything else that it refuses. The
    next bulk is sent when the last one was accepted: a slow cluster slows the reader down. An index
    that is gone would be made again, without a mapping; with `require_alias` it is not.
    """
    from elasticsearch.helpers import streaming_bulk

    with readable_errors(address):
        results = streaming_bulk(
            client,
            (dict(action) for action in actions),
            index=index,
            chunk_size=DOCUMENTS_A_BULK,
            max_chunk_bytes=BYTES_A_BULK,
            max_retries=RETRIES,
            initial_backoff=FIRST_BACKOFF_S,
            max_backoff=MAX_BACKOFF_S,
            retry_on_status=BUSY,
            raise_on_error=False,
            require_alias=require_alias,
        )
        for accepted, result in results:
            operation, outcome = next(iter(result.items()))
            if operation == "delete" and outcome["status"] == _NOT_FOUND:
                accepted = True
            if not accepted and outcome["status"] != _CONFLICT:
                raise _refused(address, outcome)
            yield str(outcome["_id"]), accepted


def _refused(address: Address, outcome: Mapping[str, Any]) -> IndexProblem:
    said = reason(dict(outcome))
    if "cluster_block" in said or "read-only" in said:
        return IndexProblem(
            f"{address} is read-only; free disk space on the cluster or remove the block "
            f"(index.blocks.*), then run the same command again: {said}"
        )
    if outcome["status"] == _NOT_FOUND:
        return IndexProblem(
            f"{address} was rebuilt or deleted in the meantime; run the same command again"
        )
    return IndexProblem(f"{address} refused document {outcome['_id']}: {said}")
