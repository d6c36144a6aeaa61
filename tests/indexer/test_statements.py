"""What one query costs: statements of SQLite, and sentences that MeCab cuts."""

from __future__ import annotations

import sqlite3

import pytest
from backend_contract import X, document, generated, said
from embedded_toys import collection_of
from enriched_contract import CALIBRATED, CAT

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.encoders.text import tokenizers
from capsearch.engine.fakes import FakeImageEncoder, FakeTextEncoder
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.indexer.sqlite.collection import Collection

NAMES = [f"i{n:02}" for n in range(30)]
MODEL = Model("fake", "digest", FakeImageEncoder(), FakeTextEncoder())
QUERY = EncodedQuery(CALIBRATED, X, X, words=("text3", "nowhere"), concepts=(CAT,))


@pytest.fixture
def statements(monkeypatch) -> list[str]:
    """Those that any connection executes from now on; not what FTS5 does inside of them."""
    executed: list[str] = []
    connect = sqlite3.connect

    def traced(*args, **options):
        connection = connect(*args, **options)
        connection.set_trace_callback(
            lambda sql: None if sql.startswith("--") else executed.append(sql)
        )
        return connection

    monkeypatch.setattr(sqlite3, "connect", traced)
    return executed


@pytest.fixture
def index(tmp_path):
    captions = [
        (one, write(f"text{at} {kind}"), X)
        for at, one in enumerate(NAMES)
        for kind, write in (("a", said), ("b", generated))
    ]
    documents = [document(one, tags=["cat"]) for one in NAMES]
    path = tmp_path / "index"
    with collection_of(path, documents, dict.fromkeys(NAMES, X), captions) as collection:
        collection.finish()
    return path


def test_opening_an_index_and_asking_it_one_query_takes_twelve_statements(index, statements):
    with Collection.open(index, MODEL) as collection:
        backend = collection.engine().backend
        backend.stats()  # as the engine does before it fuses evidence
        assert len(backend.search(QUERY, Filters(), 5)) == 5
    assert len(statements) <= 12, "\n".join(statements)


def test_what_a_query_read_is_not_read_again(index, statements):
    with Collection.open(index, MODEL) as collection:
        hits = collection.backend.search(QUERY, Filters(), 5)
        statements.clear()
        assert collection.backend.search(QUERY, Filters(), 5) == hits
    begin, state, page, commit = statements  # the documents of the page are not kept
    assert (begin, commit) == ("BEGIN", "COMMIT")
    assert "FROM meta" in state and "FROM metadata" in page


@pytest.mark.parametrize(
    ("text", "cuts"), [("ソファの上に猫が寝ている", 1), ("a cat on a couch", 0), ("沙发上的猫", 0)]
)
def test_a_query_is_cut_once(text, cuts, monkeypatch):
    encoder = registry.load(None).text
    asked: list[str] = []
    cut = tokenizers.mecab()
    monkeypatch.setattr(tokenizers, "mecab", lambda: lambda one: asked.append(one) or cut(one))
    understood = encoder.understand(text)
    assert asked == [text] * cuts
    assert understood.concepts and understood.model is not None
