"""A node of three is killed during a load and a query loop: nothing is lost, and queries answer."""

from __future__ import annotations

import threading
import time

import pytest
from elastic_folders import many_images
from test_elastic_writers import documents, expected, start

from capsearch.engine.query import Query
from capsearch.indexer.elastic import collection as versions
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.collection import ElasticCollection
from capsearch.indexer.pipeline import index

pytestmark = [pytest.mark.elastic, pytest.mark.slow]
IMAGES = 120
QUERIES = [Query("red car", limit=20), Query("一只猫", mode="cl"), Query("blue", mode="cm")]


class QueryLoop(threading.Thread):
    """Asks the same queries until it is stopped; their answers must stay the same."""

    def __init__(self, collection: ElasticCollection) -> None:
        super().__init__(daemon=True)
        self._engine, self._stop_asking = collection.engine(), threading.Event()
        self.first = self.answers()
        self.asked, self.slowest_s, self.problems = 0, 0.0, list[object]()

    def answers(self) -> list[list[tuple[str, float]]]:
        results = [self._engine.search(query) for query in QUERIES]
        return [[(hit.image_id, hit.score) for hit in one.hits] for one in results]

    def run(self) -> None:
        while not self._stop_asking.is_set():
            started = time.monotonic()
            try:
                if self.answers() != self.first:
                    self.problems.append("another answer")
            except Exception as problem:
                self.problems.append(problem)
            self.asked += len(QUERIES)
            self.slowest_s = max(self.slowest_s, time.monotonic() - started)
            time.sleep(0.1)

    def end(self) -> None:
        self._stop_asking.set()
        self.join()


def test_a_killed_node_loses_nothing_and_queries_keep_answering(
    three_nodes, monkeypatch, tmp_path, fake_model
):
    for name, value in three_nodes[0].environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    hosts = ",".join(node.url.removeprefix("https://") for node in three_nodes)
    asked, loaded = (Address.parse(f"https://{hosts}/{name}") for name in ("asked", "loaded"))
    before, during = (many_images(tmp_path / f"{n}", IMAGES, seed=n) for n in (1, 2))
    with ElasticCollection.create(str(asked), fake_model, shards=2) as collection:
        index(collection, [before])
        client = connect(asked)
        client.cluster.health(wait_for_status="green", timeout="120s")
        loop = QueryLoop(collection)
        loop.start()
        writer = start(loaded, [during], fake_model, log := tmp_path / "load.log")
        while log.read_text().count("e") < IMAGES // 3 and writer.is_alive():
            time.sleep(0.05)
        assert writer.is_alive()
        # Until its replica is there, a new collection is as safe as its only node.
        client.cluster.health(index=loaded.name, wait_for_status="green", timeout="120s")
        assert writer.is_alive()
        holder = client.cat.shards(index=versions.current(client, loaded), format="json")
        [primary] = [one["node"] for one in holder if one["prirep"] == "p"]
        [victim] = [node for node in three_nodes if node.name == primary]
        victim.kill()
        writer.join()
        loop.end()
    assert writer.exitcode == 0
    assert loop.problems == [] and loop.asked > 0
    with ElasticCollection.open(str(loaded), fake_model) as opened:
        assert documents(opened) == expected(during, fake_model, tmp_path)
    print(f"{loop.asked} queries, the slowest three took {loop.slowest_s:.1f} s")
