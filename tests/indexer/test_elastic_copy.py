"""Collections go from an index folder to a cluster and back, and answer the same there."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
import pytest
from places import document

from capsearch.engine.errors import IndexProblem
from capsearch.engine.query import Query
from capsearch.engine.records import Tag
from capsearch.indexer import enrichment
from capsearch.indexer.elastic import collection as versions
from capsearch.indexer.elastic import copy
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.collection import ElasticCollection, read_stats
from capsearch.indexer.enrichment import EnrichOptions, enrich
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.writer import CatalogWriter

pytestmark = pytest.mark.elastic
QUERIES = [
    Query("red", limit=9),
    Query("blue sky", mode="cm", limit=9),
    Query("yellow", mode="cl", limit=9),
    Query("green", weight=0.4, limit=9),
    Query('"sea"', limit=9),
]


@pytest.fixture
def address(elastic_node, monkeypatch, tmp_path):
    for name, value in elastic_node.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "capsearch.indexer.elastic.collection.user_cache_path", lambda _: tmp_path / "cache"
    )
    made = Address.parse(f"{elastic_node.url}/copies")
    yield made
    versions.drop(connect(made), made)


@pytest.fixture
def indexed(collection, image_folder):
    (image_folder / "blue.txt").write_text("the blue sea", encoding="utf-8")
    (image_folder / "red.txt").write_text("a red wall\n一面红墙", encoding="utf-8")
    index(collection, [image_folder])
    return collection


def send(collection, address, stop=None, **options):
    stop = stop or threading.Event()
    return copy.to_cluster(collection, address, lambda *_: None, stop, replicas=0, **options)


def fetch(address, collection):
    return copy.from_cluster(address, collection, lambda *_: None, threading.Event())


def answers(opened) -> list[list[tuple]]:
    results = [opened.engine().search(query) for query in QUERIES]
    return [
        [(hit.document, pytest.approx(hit.score, abs=1e-3)) for hit in result.hits]
        for result in results
    ]


def plain(opened) -> list[list[tuple]]:
    results = [opened.engine().search(query) for query in QUERIES]
    return [[(hit.document, hit.score) for hit in result.hits] for result in results]


def test_a_copy_answers_as_its_original_does_and_so_does_the_copy_of_the_copy(
    indexed, address, tmp_path, fake_model, image_folder
):
    summary = send(indexed, address)
    assert (summary.copied, summary.unchanged, summary.removed) == (4, 0, 0)
    expected = answers(indexed)
    assert all(expected)
    with ElasticCollection.open(str(address), fake_model) as cluster:
        assert plain(cluster) == expected
    with Collection.create(tmp_path / "back", fake_model) as back:
        assert fetch(address, back).copied == 4
        assert plain(back) == expected
        for name in ("features", "vectors", "captions"):
            mine, theirs = (one.catalog.array(name).view() for one in (back, indexed))
            assert sorted(map(bytes, np.asarray(mine))) == sorted(map(bytes, np.asarray(theirs)))
        again = index(back, [image_folder])  # nothing is opened or encoded again
        assert (again.added, again.reused, again.unchanged, again.removed) == (0, 0, 4, 0)
        assert again.captions_added == 0
        assert fetch(address, back).unchanged == 4


def test_copying_again_sends_what_has_changed(indexed, address, image_folder, fake_model):
    send(indexed, address)
    (image_folder / "green.jpg").unlink()
    (image_folder / "red.txt").write_text("a crimson wall", encoding="utf-8")
    index(indexed, [image_folder])
    summary = send(indexed, address)
    assert (summary.copied, summary.unchanged, summary.removed) == (1, 2, 1)
    with ElasticCollection.open(str(address), fake_model) as cluster:
        assert plain(cluster) == answers(indexed)


def test_a_stopped_copy_is_not_published_and_goes_on_later(indexed, address):
    stop = threading.Event()
    stop.set()
    assert send(indexed, address, stop).interrupted
    assert versions.current(connect(address), address) is None
    summary = send(indexed, address)
    assert summary.copied + summary.unchanged == 4 and not summary.interrupted
    assert versions.current(connect(address), address) == "copies-v1"


def test_statistics_of_a_cluster(indexed, address):
    send(indexed, address)
    stats, mine = read_stats(str(address)), indexed.stats()
    assert (stats.images, stats.captions) == (mine.images, mine.captions) == (4, 3)
    assert stats.captions_by_language == mine.captions_by_language
    assert (stats.model_digest, stats.roots) == (mine.model_digest, mine.roots)
    assert (stats.version, stats.shards, stats.replicas) == ("copies-v1", 1, 0)
    assert stats.health == "green" and stats.bytes_on_disk["primaries"] > 0


def test_a_collection_with_other_folders_is_not_overwritten(
    indexed, address, fake_model, image, tmp_path
):
    image(tmp_path / "other" / "pink.png", "purple")
    with ElasticCollection.create(str(address), fake_model, replicas=0) as cluster:
        index(cluster, [tmp_path / "other"])
        with pytest.raises(IndexProblem, match="copying would delete"):
            send(indexed, address)
        assert len(cluster.backend) == 1


@pytest.fixture
def described(tmp_path, describing_model, image_folder):
    """Captions and tags by a model, of which a person accepted and rejected some."""
    (image_folder / "red.txt").write_text("a red wall", encoding="utf-8")
    with Collection.create(tmp_path / "described", describing_model) as collection:
        index(collection, [image_folder])
        enrich(collection)
        captions = [document(collection, name).captions for name in ("blue.png", "green.jpg")]
        enrichment.accept(collection, document(collection, "blue.png").record.id, captions[0][0])
        enrichment.reject(collection, document(collection, "green.jpg").record.id, captions[1][1])
        sure = replace(captions[0][2], confidence=0.375, source="model:other")
        tag = Tag("sea", "en", 0.625, "model:other", "sea")
        store = collection.store()
        blue = document(collection, "blue.png").record.id
        store.descriptions().put_captions("other", {blue: [sure]})
        store.descriptions().put_tags("other", {blue: [tag]})
        for _ in store.encode_captions():
            pass
        for _ in store.index_words():
            pass
        yield collection


def enriched_states(collection) -> dict:
    ids = sorted(row[0] for row in collection.catalog.rows("SELECT id FROM images"))
    documents = CatalogDocuments(CatalogWriter(collection.catalog)).read(ids)
    return {one: (doc.tagger, doc.captioner, doc.rejected) for one, doc in documents.items()}


def test_what_models_wrote_and_people_said_survives_the_way_to_a_cluster_and_back(
    described, address, tmp_path, describing_model
):
    assert send(described, address).copied == 4
    expected, states = answers(described), enriched_states(described)
    assert [captioner for _, captioner, _ in states.values()].count("other") == 1
    assert sum(len(rejected) for _, _, rejected in states.values()) == 1
    with ElasticCollection.open(str(address), describing_model) as cluster:
        assert plain(cluster) == expected
        assert document(cluster, "blue.png") == document(described, "blue.png")
    with Collection.create(tmp_path / "back", describing_model) as back:
        fetch(address, back)
        assert plain(back) == expected
        assert enriched_states(back) == states
        for name in ("blue.png", "green.jpg", "red.png"):
            assert document(back, name) == document(described, name)
        blue = document(back, "blue.png")
        assert [one.confidence for one in blue.captions if one.generated] == [0.375]
        assert blue.tags == (Tag("sea", "en", 0.625, "model:other", "sea"),)
        # Only what the other model described is described anew, and nothing that was rejected.
        assert enrich(back).captioned == 1
        assert len(document(back, "green.jpg").captions) == 2
    assert send(described, address).unchanged == 4


def test_what_people_said_in_a_cluster_survives_a_copy_over_it(
    described, address, describing_model
):
    send(described, address)
    with ElasticCollection.create(str(address), describing_model) as cluster:
        red = document(cluster, "red.png")
        english, chinese, _ = (one for one in red.captions if one.generated)
        enrichment.correct(cluster, red.record.id, english, "a cat on a wall")
        enrichment.reject(cluster, red.record.id, chinese)
        said = document(cluster, "red.png")
        assert send(described, address).unchanged == 4  # nothing else has changed
        enrich(described, EnrichOptions(redo=True))  # other captions of blue.png
        assert send(described, address).copied == 1
        assert document(cluster, "red.png") == said
        assert document(cluster, "blue.png") == document(described, "blue.png")
        hits = cluster.engine().search(Query("cat", mode="cl", limit=1)).hits
        assert hits[0].contributions.caption.text == "a cat on a wall"
