"""ElasticBackend passes the contract of every backend, on a real Elasticsearch."""

from __future__ import annotations

from itertools import count

import pytest
from backend_contract import BackendContract
from elastic_toys import collection_in
from enriched_contract import EnrichedContract

from capsearch.indexer.elastic import backend as elastic
from capsearch.indexer.elastic import collection, requests, search
from capsearch.indexer.elastic.client import Address, connect

pytestmark = pytest.mark.elastic
_NUMBERS = count()


class TestElastic(BackendContract, EnrichedContract):
    shards = 1

    @pytest.fixture(autouse=True)
    def _cluster(self, elastic_node):
        self.node, self.made = elastic_node, []
        yield
        for address in self.made:
            collection.drop(connect(address, self.node.environment), address)

    def build(self, documents, vectors, captions):
        address = Address.parse(f"{self.node.url}/contract-{next(_NUMBERS)}")
        self.made.append(address)
        client = connect(address, self.node.environment)
        collection_in(client, address, documents, vectors, captions, self.shards)
        return elastic.ElasticBackend(client, address)


class TestTwoShards(TestElastic):
    shards = 2


class TestStepByStep(TestElastic):
    """Few candidates at a time, so that pages take many steps and end in a scan."""

    @pytest.fixture(autouse=True)
    def _shallow(self, monkeypatch):
        monkeypatch.setattr(search, "MIN_DEPTH", 4)
        monkeypatch.setattr(search, "MAX_DEPTH", 64)
        monkeypatch.setattr(search, "_FIRST_PART", 1)
        monkeypatch.setattr(elastic, "_PAGE", 50)


class TestWordsOfTooManyDocuments(TestElastic):
    """Answers have room for two documents found by words; others are found all the same."""

    @pytest.fixture(autouse=True)
    def _narrow(self, monkeypatch):
        monkeypatch.setattr(requests, "MAX_WORD_HITS", 2)
        monkeypatch.setattr(search, "MIN_DEPTH", 4)
        monkeypatch.setattr(search, "MAX_DEPTH", 64)
