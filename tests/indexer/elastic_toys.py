"""Collections in a cluster, with chosen vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from capsearch.engine.fakes import FakeTextEncoder
from capsearch.engine.records import Caption, Document, Vectors
from capsearch.indexer.document import StoredDocument
from capsearch.indexer.elastic import collection
from capsearch.indexer.elastic.client import Address
from capsearch.indexer.elastic.writer import ElasticWriter
from capsearch.indexer.identity import Identity

WIDTH = 3
IDENTITY = Identity("fake", "digest", "toy", "toy-digest", 4, WIDTH, WIDTH)


def new_documents(
    documents: Sequence[Document],
    vectors: Mapping[str, Vectors],
    captions: Sequence[tuple[str, Caption, Vectors]],
) -> list[StoredDocument]:
    """Documents with the captions that were written later than they."""
    return [_new(one, vectors.get(one.record.id), captions) for one in documents]


def collection_in(
    client,
    address: Address,
    documents: Sequence[Document],
    vectors: Mapping[str, Vectors],
    captions: Sequence[tuple[str, Caption, Vectors]],
    shards: int = 1,
    identity: Identity = IDENTITY,
) -> ElasticWriter:
    index = collection.prepare(client, address, identity, shards=shards, replicas=0)
    writer = ElasticWriter(client, address, index, FakeTextEncoder().words)
    writer.upsert(new_documents(documents, vectors, captions))
    writer.refresh()
    collection.publish(client, address, index)
    return writer


def _new(
    document: Document, vector: Vectors | None, captions: Sequence[tuple[str, Caption, Vectors]]
) -> StoredDocument:
    own = {caption: row for owner, caption, row in captions if owner == document.record.id}
    feature = None if vector is None else np.zeros(4, np.float32)
    return StoredDocument.of(document, feature, vector, own)
