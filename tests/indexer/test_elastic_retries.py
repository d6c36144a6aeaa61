"""A busy cluster is asked again, later and later, and what it accepted is not lost or doubled."""

from __future__ import annotations

import sys
import types

import pytest
from fake_cluster import BUSY, running_fake

pytest.importorskip("elasticsearch")

from capsearch.engine.errors import IndexProblem, InvalidQuery
from capsearch.engine.records import Filters
from capsearch.indexer.elastic import client, requests, search
from capsearch.indexer.elastic import client as bulk
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.documents import MAX_RESULT_WINDOW


@pytest.fixture
def fake():
    with running_fake() as started:
        yield started


@pytest.fixture
def address(fake) -> Address:
    return Address.parse(f"{fake.url}/images")


@pytest.fixture(autouse=True)
def pauses(monkeypatch) -> list[float]:
    """The seconds that are waited, instead of waiting."""
    waited: list[float] = []
    monkeypatch.setattr(client.time, "sleep", waited.append)
    return waited


def documents(count: int) -> list[dict]:
    return [{"_op_type": "index", "_id": f"d{n}", "_source": {"n": n}} for n in range(count)]


def send(address, actions) -> list[tuple[str, bool]]:
    return list(bulk.send(connect(address, {}), address, "images-v1", actions))


@pytest.mark.parametrize("status", [429, 503])
def test_a_whole_bulk_that_is_refused_is_sent_again(fake, address, pauses, status):
    fake.answers.extend([(status, BUSY)] * 3)
    assert send(address, documents(3)) == [("d0", True), ("d1", True), ("d2", True)]
    assert pauses == list(client.BACKOFF_S[:3])
    assert fake.attempts == {"d0": 1, "d1": 1, "d2": 1}


@pytest.mark.parametrize("status", [429, 503])
def test_only_the_refused_documents_of_a_bulk_are_sent_again(fake, address, pauses, status):
    fake.refused = lambda image_id, attempt: status if image_id == "d1" and attempt < 3 else 0
    assert sorted(send(address, documents(4))) == [(f"d{n}", True) for n in range(4)]
    assert fake.attempts == {"d0": 1, "d1": 3, "d2": 1, "d3": 1}
    assert pauses == [1.0, 2.0]
    assert len(fake.stored) == 4


def test_a_cluster_that_stays_busy_is_an_error_that_says_so(fake, address, pauses):
    fake.refused = lambda image_id, attempt: 429 if image_id == "d1" else 0
    with pytest.raises(IndexProblem, match="refused document d1: es_rejected"):
        send(address, documents(2))
    assert len(pauses) == bulk.BULK_RETRIES and max(pauses) <= bulk.MAX_BACKOFF_S
    fake.answers.extend([(429, BUSY)] * 100)
    with pytest.raises(IndexProblem, match="too much to do; try again later"):
        len(ElasticBackend(connect(address, {}), address))


def test_a_search_is_asked_again_too(fake, address, pauses):
    fake.answers.extend([(503, BUSY), (429, BUSY)])
    assert len(ElasticBackend(connect(address, {}), address)) == 0
    assert pauses == list(client.BACKOFF_S[:2])


def test_more_of_the_newest_than_an_answer_holds_are_refused(address):
    with pytest.raises(InvalidQuery, match="lists the newest 30,000; add a filter"):
        ElasticBackend(connect(address, {}), address).newest(Filters(), 10, offset=29_991)


def test_words_that_too_many_documents_have_are_weighed_but_not_searched_by(monkeypatch):
    assert 2 * search.MAX_DEPTH + 2 * requests.MAX_WORD_HITS <= MAX_RESULT_WINDOW
    monkeypatch.setattr(requests, "MAX_WORD_HITS", 2_000)
    words = requests.Words.of(
        "words", ["cat", "sky", "sea"], [1_200, 900, 800], documents=1_000_000
    )
    assert words.rare == ("sea", "sky", "cat")  # 800 + 900 + 1,200 > 2,000
    assert (words.searched, words.documents) == (("sea", "sky"), 1_700)
    assert words.outside == words.weights[2] / sum(words.weights)


def test_what_somebody_else_created_first_is_told_apart(fake, address):
    fake.stored["d1"] = {}
    actions = [{**one, "_op_type": "create"} for one in documents(3)]
    assert send(address, actions) == [("d0", True), ("d1", False), ("d2", True)]
    assert fake.stored["d1"] == {}


def test_the_next_bulk_is_read_when_the_last_was_accepted(fake, address, monkeypatch):
    monkeypatch.setattr(bulk, "DOCUMENTS_A_BULK", 10)
    read = []

    def source():
        for one in documents(35):
            read.append(one["_id"])
            yield one

    answers = bulk.send(connect(address, {}), address, "images-v1", source())
    next(answers)
    assert len(read) <= 11 and len(fake.stored) == 10
    assert len(list(answers)) == 34 and len(fake.requests) == 4


def test_a_document_without_a_cure_ends_the_load_and_is_named(fake, address):
    fake.refused = lambda image_id, attempt: 400 if image_id == "d2" else 0
    with pytest.raises(IndexProblem, match="refused document d2"):
        send(address, documents(5))
    assert fake.attempts["d2"] == 1


def test_a_second_node_answers_where_the_first_does_not(fake):
    port = fake.url.rpartition(":")[2]
    address = Address.parse(f"http://127.0.0.1:1,127.0.0.1:{port}/images")
    assert str(address) == f"http://127.0.0.1:1,127.0.0.1:{port}/images"
    backend = ElasticBackend(connect(address, {}), address)
    assert [len(backend) for _ in range(4)] == [0] * 4


def test_something_that_is_no_elasticsearch(fake, address):
    fake.product = "a web server"
    with pytest.raises(IndexProblem, match="no Elasticsearch; check host and port") as problem:
        len(ElasticBackend(connect(address, {}), address))
    assert "\n" not in str(problem.value)


@pytest.fixture
def keyring(monkeypatch) -> dict[tuple[str, str], str]:
    """A keyring of this process; raises KeyringError while it has a key "locked"."""
    stored: dict = {}
    module, errors = types.ModuleType("keyring"), types.ModuleType("keyring.errors")

    class KeyringError(Exception):
        pass

    def get_password(service: str, user: str) -> str | None:
        if "locked" in stored:
            raise KeyringError("locked")
        return stored.get((service, user))

    errors.KeyringError = KeyringError
    module.get_password, module.errors = get_password, errors
    monkeypatch.setitem(sys.modules, "keyring", module)
    monkeypatch.setitem(sys.modules, "keyring.errors", errors)
    return stored


def test_credentials_come_from_the_keyring_where_the_environment_has_none(keyring, address):
    def sent(environment: dict[str, str]) -> str | None:
        return connect(address, environment)._headers.get("authorization")

    assert sent({}) is None
    keyring[address.cluster, "api_key"] = "k"
    keyring[address.cluster, "me"] = "secret"
    assert sent({}) == "ApiKey k"
    assert sent({client.USER: "me"}).startswith("Basic ")
    assert sent({client.USER: "me", client.PASSWORD: "x"}) != sent({client.USER: "me"})
    assert sent({client.API_KEY: "mine"}) == "ApiKey mine"
    keyring["locked"] = True
    assert sent({}) is None
    with pytest.raises(IndexProblem, match="keyring set"):
        sent({client.USER: "me"})


def test_a_missing_keyring_package_is_no_error(monkeypatch, address):
    monkeypatch.setitem(sys.modules, "keyring", None)
    assert "authorization" not in connect(address, {})._headers
