"""What a search asks of a real Elasticsearch: candidates with exact scores, and rows of few."""

from __future__ import annotations

from dataclasses import replace
from itertools import count, pairwise

import numpy as np
import pytest
from backend_contract import CL, CM, calibrated, document, generated, said
from elastic_toys import IDENTITY, collection_in

from capsearch.engine.fakes import FakeBackend
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.engine.vectors import as_document, as_query, unit
from capsearch.indexer.elastic import collection, requests
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.search import OVERSAMPLING

pytestmark = pytest.mark.elastic
WIDTH, IMAGES, OKAPIS = 64, 2000, 90
FUSIONS = {"cm": CM, "cl": CL, "clm": calibrated()}
SEARCHED = {"cm": "vector", "cl": "captions.vector"}


def rows(rng: np.random.Generator, number: int) -> np.ndarray:
    """Of unit length, with a hubness penalty beside: it decides as much as the rest does."""
    return as_document(
        unit(rng.normal(size=(number, WIDTH))), rng.normal(0, 0.1, number).astype(np.float32)
    )


class Counting(ElasticBackend):
    """Knows whose rows were read."""

    read: tuple[str, ...] = ()

    def hits_by_id(self, ids, required, fields=()):
        self.read += tuple(ids)
        return super().hits_by_id(ids, required, fields)


@pytest.fixture(scope="module")
def made():
    """Documents, their vectors, and a third of them with captions."""
    rng = np.random.default_rng(5)
    names = [f"i{n:04}" for n in range(IMAGES)]
    texts = {
        one: [
            said(f"{'okapi' if n < OKAPIS else 'cat'} {one}"),
            *([generated(f"dog {one}")] * (n % 2)),
        ]
        for n, one in enumerate(names[::3])
    }
    captions = [(one, text) for one, known in texts.items() for text in known]
    vectors = zip(captions, rows(rng, len(captions)).astype(np.float16), strict=True)
    return (
        [document(one, *texts.get(one, ())) for one in names],
        dict(zip(names, rows(rng, IMAGES), strict=True)),
        [(one, text, row.astype(np.float32)) for (one, text), row in vectors],
    )


@pytest.fixture(scope="module")
def both(elastic_node, made):
    """A backend that scores every document, and the cluster."""
    address = Address.parse(f"{elastic_node.url}/ranking-{next(count())}")
    client = connect(address, elastic_node.environment)
    identity = replace(IDENTITY, dimension=WIDTH + 1, caption_dimension=WIDTH + 1)
    collection_in(client, address, *made, identity=identity)
    client.indices.forcemerge(index=address.name, max_num_segments=1)  # small ones are no graphs
    client.indices.refresh(index=address.name)
    documents, vectors, captions = made
    by_id = {one.record.id: one for one in documents}
    yield FakeBackend(by_id, vectors, captions), Counting(client, address)
    collection.drop(client, address)


def queries(number: int) -> np.ndarray:
    return as_query(unit(np.random.default_rng(9).normal(size=(number, WIDTH))))


def exact(made, mode: str, query: np.ndarray) -> dict[str, float]:
    """The best score of each document."""
    _, images, captions = made
    pairs = images.items() if mode == "cm" else [(one, row) for one, _, row in captions]
    best: dict[str, float] = {}
    for one, row in pairs:
        best[one] = max(best.get(one, -np.inf), float(row @ query))
    return best


def found_by(cluster, mode: str, query: np.ndarray, depth: int) -> dict[str, float]:
    search = requests.nearest(SEARCHED[mode], query, [requests.SEARCHABLE], OVERSAMPLING * depth)
    hits = cluster.ask(**search)["hits"]["hits"]
    return {requests.id_of(hit): requests.inner_product(hit["_score"]) for hit in hits}


@pytest.mark.parametrize("mode", SEARCHED)
def test_candidates_have_the_scores_of_their_rows(both, made, mode):
    for query in queries(5):
        known, found = exact(made, mode, query), found_by(both[1], mode, query, 50)
        assert len(found) == OVERSAMPLING * 50
        assert found == pytest.approx({one: known[one] for one in found}, abs=1e-3)


def test_a_query_that_is_shortened_for_the_graph_finds_more_of_the_best(both, made, monkeypatch):
    def recall() -> float:
        shares = []
        for query in queries(20):
            known = exact(made, "cm", query)
            best = sorted(known, key=known.__getitem__)[-50:]
            shares.append(len(set(best) & set(found_by(both[1], "cm", query, 50))) / 50)
        return float(np.mean(shares))

    shortened = recall()
    monkeypatch.setattr(requests, "for_graph", lambda vector: vector)
    assert shortened > recall() + 0.05


@pytest.mark.parametrize("mode", FUSIONS)
def test_rows_are_read_of_those_that_can_reach_the_page(both, mode):
    plain, cluster = both
    for at, vector in enumerate(queries(5)):
        query = EncodedQuery(
            FUSIONS[mode],
            vector if mode != "cl" else None,
            vector if mode != "cm" else None,
            words=(f"i{at:04}",) if mode == "clm" else (),
        )
        cluster.read = ()
        found = cluster.search(query, Filters(), 10)
        assert len(set(cluster.read)) == len(cluster.read) < 150  # of 200 by each vector
        expected = plain.search(query, Filters(), 10)
        assert [one.document.record.id for one in found] == [
            one.document.record.id for one in expected
        ]
        assert [one.score for one in found] == pytest.approx(
            [one.score for one in expected], abs=1e-6
        )


def test_of_many_with_a_word_those_are_read_that_look_like_the_query(both):
    plain, cluster = both
    for vector in queries(5):
        query = EncodedQuery(calibrated(), vector, words=("okapi",))
        cluster.read = ()
        found = cluster.search(query, Filters(), 10)
        assert len(cluster.read) < OKAPIS
        assert [one.contributions.words for one in found] == [1.0] * 10
        expected = plain.search(query, Filters(), 10)
        assert [one.document.record.id for one in found] == [
            one.document.record.id for one in expected
        ]


def test_pages_follow_each_other_however_many_steps_they_take(both):
    _, cluster = both
    [vector] = queries(1)
    query = EncodedQuery(calibrated(), vector, vector)
    whole = cluster.search(query, Filters(), 300)
    pages = [cluster.search(query, Filters(), 25, at) for at in range(0, 300, 25)]
    assert tuple(one for page in pages for one in page) == whole
    assert len({one.document.record.id for one in whole}) == 300
    # What the graph missed at first comes after what was settled: hardly any.
    scores = [one.score for one in whole]
    assert sum(after > before for before, after in pairwise(scores)) <= 3
