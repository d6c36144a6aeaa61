"""What a cluster refuses becomes one line that says what to do, and nothing is half-written."""

from __future__ import annotations

from dataclasses import replace

import pytest
from backend_contract import X, document
from elastic_toys import IDENTITY, collection_in, new_documents

from capsearch.engine.errors import IndexMissing, IndexProblem, ModelMismatch, SchemaTooNew
from capsearch.engine.fakes import FakeTextEncoder
from capsearch.indexer.elastic import collection, documents
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.writer import ElasticWriter

pytestmark = pytest.mark.elastic
TWO = [document("a"), document("b")]


@pytest.fixture
def address(elastic_node):
    made = Address.parse(f"{elastic_node.url}/errors")
    yield made
    collection.drop(connect(made, elastic_node.environment), made)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch):
    monkeypatch.setattr("capsearch.indexer.elastic.client.BACKOFF_S", ())


@pytest.fixture
def client(address, elastic_node):
    return connect(address, elastic_node.environment)


@pytest.fixture
def writer(client, address) -> ElasticWriter:
    return collection_in(client, address, TWO, {"a": X, "b": X}, ())


def said(problem: pytest.ExceptionInfo[IndexProblem]) -> str:
    text = str(problem.value)
    assert "\n" not in text
    return text


def test_a_wrong_password(address, elastic_node):
    wrong = {**elastic_node.environment, "CAPSEARCH_ES_PASSWORD": "wrong-secret"}
    with pytest.raises(IndexProblem) as problem:
        len(ElasticBackend(connect(address, wrong), address))
    assert "CAPSEARCH_ES_API_KEY" in said(problem) and "wrong-secret" not in said(problem)


def test_a_self_signed_certificate(address, elastic_node):
    unknown = {key: one for key, one in elastic_node.environment.items() if "CA" not in key[-3:]}
    client = connect(address, unknown).options(max_retries=0)
    with pytest.raises(IndexProblem) as problem:
        len(ElasticBackend(client, address))
    assert "CAPSEARCH_ES_CA" in said(problem)


def test_a_collection_that_is_not_there(client, address):
    with pytest.raises(IndexMissing, match="capsearch index"):
        collection.about_index(client, address)
    with pytest.raises(IndexMissing):
        len(ElasticBackend(client, address))


def test_a_collection_of_other_models_is_kept_until_the_next_version_is_published(
    client, address, writer
):
    other = replace(IDENTITY, model="other", digest="another")
    with pytest.raises(ModelMismatch, match="--rebuild"):
        collection.prepare(client, address, other)
    index = collection.prepare(client, address, other, rebuild=True, replicas=0)
    assert index == "errors-v2" and len(ElasticBackend(client, address)) == 2
    assert (
        collection.prepare(client, address, other, rebuild=True) == index
    )  # a killed load goes on
    collection.publish(client, address, index)
    assert collection.current(client, address) == index
    assert len(ElasticBackend(client, address)) == 0
    assert not client.indices.exists(index="errors-v1")


def test_an_index_of_somebody_else_is_left_alone(client, address):
    client.indices.create(index="errors")
    try:
        with pytest.raises(IndexProblem, match="did not make"):
            collection.prepare(client, address, IDENTITY)
    finally:
        client.indices.delete(index="errors")


def test_a_read_only_index(client, writer):
    client.indices.put_settings(index=writer.index, settings={"index.blocks.write": True})
    with pytest.raises(IndexProblem, match="read-only"):
        writer.upsert(new_documents([document("c")], {"c": X}, ()))
    client.indices.put_settings(index=writer.index, settings={"index.blocks.write": None})
    assert sorted(ElasticBackend(client, writer.address).lookup(["a", "b", "c"])) == ["a", "b"]


def test_a_red_cluster(client, address):
    nowhere = {"index.routing.allocation.require.box": "none", "number_of_replicas": 0}
    client.indices.create(
        index="errors-v1", settings=nowhere, mappings=documents.mapping(IDENTITY),
        wait_for_active_shards=0, aliases={"errors": {}},
    )  # fmt: skip
    with pytest.raises(IndexProblem, match="red"):
        ElasticBackend(client.options(max_retries=0), address).facets()


def test_a_newer_schema(client, address, writer):
    writer.describe(schema=documents.SCHEMA + 1)
    with pytest.raises(SchemaTooNew, match="upgrade"):
        collection.prepare(client, address, IDENTITY)


def test_a_refused_document_is_named(client, writer):
    wide = new_documents([document("c")], {"c": X}, ())[0]
    wrong = {**writer.to_json(wide), "vector": [1.0] * 7}
    with pytest.raises(IndexProblem, match="document c"):
        list(writer.index_json([wrong]))


def test_writing_twice_is_writing_once_and_unknown_ids_are_deleted_in_silence(client, writer):
    backend = ElasticBackend(client, writer.address)
    writer.upsert(new_documents(TWO, {"a": X, "b": X}, ()))
    writer.refresh()
    assert len(backend) == 2
    writer.delete(["a", "unknown"])
    writer.refresh()
    assert sorted(backend.lookup(["a", "b"])) == ["b"]


def settings(client, index: str) -> tuple[str | None, str]:
    found = client.indices.get_settings(index=index)[index]["settings"]["index"]
    return found.get("refresh_interval"), found["number_of_replicas"]


def test_settings_are_relaxed_during_a_load_and_restored_also_after_a_killed_one(client, writer):
    def set_by_hand(interval: str, replicas: int) -> None:
        chosen = {"refresh_interval": interval, "number_of_replicas": replicas}
        client.indices.put_settings(index=writer.index, settings=chosen)

    set_by_hand("7s", 1)
    killed = writer.bulk_load(replicas=0)
    killed.__enter__()
    assert settings(client, writer.index) == ("-1", "1")  # documents there keep their replicas
    with writer.bulk_load("31s"):
        assert settings(client, writer.index) == ("31s", "1")
    assert settings(client, writer.index) == ("7s", "1")
    set_by_hand("9s", 2)
    with pytest.raises(ZeroDivisionError), writer.bulk_load():
        1 / 0  # noqa: B018
    assert settings(client, writer.index) == ("9s", "2")


def test_replicas_of_an_empty_collection_are_lowered_on_request_and_restored(client, address):
    index = collection.prepare(client, address, IDENTITY, replicas=1)
    writer = ElasticWriter(client, address, index, FakeTextEncoder().words)
    killed = writer.bulk_load(replicas=0)
    killed.__enter__()
    assert settings(client, index) == ("-1", "0")
    writer.upsert(new_documents([document("c")], {"c": X}, ()))
    with writer.bulk_load():
        assert settings(client, index) == ("-1", "0")
    assert settings(client, index) == (None, "1")


def test_a_version_that_is_gone_is_not_made_again(client, address, writer):
    other = replace(IDENTITY, model="other", digest="another")
    index = collection.prepare(client, address, other, rebuild=True, replicas=0)
    collection.publish(client, address, index)
    with pytest.raises(IndexProblem, match="rebuilt or deleted in the meantime"):
        writer.upsert(new_documents([document("c")], {"c": X}, ()))
    assert not client.indices.exists(index=writer.index)
