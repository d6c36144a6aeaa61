"""Enriched documents are found and scored in a cluster as in an index folder."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
from backend_contract import CL, CM, ZERO, document, generated, said
from elastic_toys import collection_in
from embedded_toys import collection_of

from capsearch.encoders.text import concepts
from capsearch.engine.errors import SchemaTooOld
from capsearch.engine.evidence import (
    CalibratedEvidence,
    ConvexCombination,
    EvidenceModel,
    KindWeights,
)
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Document, Filters, Tag
from capsearch.indexer.elastic import collection as versions
from capsearch.indexer.elastic import search
from capsearch.indexer.elastic.backend import ElasticBackend
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.documents import WHOLE, whole
from capsearch.indexer.enrichment import enrich
from capsearch.indexer.pipeline import IndexOptions, index

pytestmark = pytest.mark.elastic
_NUMBERS = count()
ALL = {"image": 2.0, "words": 3.0, "generated_words": 1.5, "tag": 4.0}
CALIBRATED = CalibratedEvidence(
    EvidenceModel(
        kinds={
            "": KindWeights(-1.0, ALL, {}),
            "caption": KindWeights(-2.0, {**ALL, "caption": 4.0}, {}),
            "generated": KindWeights(-1.5, {**ALL, "generated": 2.5}, {}),
            "caption+generated": KindWeights(-2.2, {**ALL, "caption": 3.0, "generated": 1.0}, {}),
        },
        size=1, size_exponent=0.0, cutoff=0.0,
    ),
    {}, documents=1,
)  # fmt: skip
FUSIONS = {"cm": CM, "cl": CL, "clm": CALIBRATED, "weighted": ConvexCombination(0.4, 0.1)}
ANIMALS = concepts.under("animal")
NAMES = ("cat", "dog", "couch", "horse", "car", "siamese-cat", "no-concept")


def unit(rng: np.random.Generator) -> np.ndarray:
    vector = rng.normal(size=3)
    return (vector / np.linalg.norm(vector)).astype(np.float32)


def collection(rng: np.random.Generator) -> tuple[list[Document], dict, list]:
    """Captions and tags of people and of models, at random."""
    documents, vectors, captions = [], {}, []
    for number in range(260):
        image_id = f"i{number:03}"
        texts = []
        for write, share in ((said, 0.4), (generated, 0.7)):
            if rng.random() < share:
                words = rng.choice([*NAMES, "okapi", "zoo", "sky"], 3)
                texts.append(write(f"{' '.join(words)} {number}"))
        tags = [
            Tag(name, "en", round(float(rng.random()), 3), "model:m", name)
            for name in NAMES
            if rng.random() < 0.3
        ]
        if rng.random() < 0.1:
            tags.append(Tag("猫", "zh", 1.0, "iptc", "cat"))
        plain = document(image_id, *texts)
        tags.sort(key=lambda one: -one.confidence)
        documents.append(Document(plain.record, plain.captions, tuple(tags)))
        vectors[image_id] = unit(rng)
        captions += [(image_id, one, unit(rng)) for one in texts]
    return documents, vectors, captions


@pytest.fixture(scope="module")
def both(elastic_node, tmp_path_factory):
    made = collection(np.random.default_rng(7))
    address = Address.parse(f"{elastic_node.url}/enriched-{next(_NUMBERS)}")
    client = connect(address, elastic_node.environment)
    collection_in(client, address, *made, shards=2)
    with collection_of(tmp_path_factory.mktemp("embedded") / "index", *made) as embedded:
        yield embedded.backend, ElasticBackend(client, address)
    versions.drop(client, address)


def queries(fusion) -> list[EncodedQuery]:
    rng = np.random.default_rng(3)
    vectors = [(unit(rng), unit(rng)) for _ in range(4)]
    return [
        *(EncodedQuery(fusion, *pair) for pair in vectors),
        EncodedQuery(fusion, *vectors[0], words=("okapi", "17", "unheard")),
        EncodedQuery(fusion, *vectors[1], concepts=(concepts.under("cat"),)),
        EncodedQuery(
            fusion, *vectors[2], words=("23", "zoo"), concepts=(ANIMALS, frozenset({"couch"}))
        ),
        EncodedQuery(fusion, *vectors[3], phrases=(("okapi",),), concepts=(ANIMALS,)),
        EncodedQuery(fusion, ZERO, ZERO, words=("31", "77"), concepts=(frozenset({"car"}),)),
        EncodedQuery(fusion, ZERO, ZERO, words=("31", "77")),
    ]


def answer(backend, query, filters, number=float) -> list[tuple]:
    found = backend.search(query, filters, 10)
    return [
        (
            one.document.record.id,
            number(one.score),
            number(one.contributions.tag or 0),
            {name: number(value) for name, value in one.contributions.log_odds.items()},
            one.contributions.caption,
        )
        for one in found
    ]


def nearly(value: float) -> object:
    return pytest.approx(value, abs=1e-3)


@pytest.mark.parametrize("depth", [100, 200])  # int8 of three numbers is coarse
@pytest.mark.parametrize("mode", FUSIONS)
def test_the_best_ten_and_their_scores_are_those_of_an_index_folder(both, mode, depth, monkeypatch):
    monkeypatch.setattr(search, "MIN_DEPTH", depth)
    embedded, cluster = both
    for number, query in enumerate(queries(FUSIONS[mode])):
        for filters in (Filters(), Filters(tags=("cat",)), Filters(written_by="models")):
            expected = answer(embedded, query, filters, nearly)
            assert answer(cluster, query, filters) == expected, (number, filters)
            assert expected or not query.image.any() or query.phrases


def test_tags_decide_the_best_of_many_that_look_alike(both):
    """Without the evidence of tags this ranking would be another."""
    embedded, cluster = both
    named = EncodedQuery(CALIBRATED, np.zeros(3, np.float32) + 0.01, concepts=(ANIMALS,))
    plain = EncodedQuery(CALIBRATED, named.image)
    first = [one.document.record.id for one in cluster.search(named, Filters(), 10)]
    assert first != [one.document.record.id for one in cluster.search(plain, Filters(), 10)]
    assert first == [one.document.record.id for one in embedded.search(named, Filters(), 10)]


def make_older(cluster) -> None:
    """Documents as schema 3 had them."""
    lacking = ("schema", "generated_words", "surest", "tagger", "captioner", "reviewed")
    editor = cluster.store().documents
    for hits in editor.backend.scan({"match_all": {}}, WHOLE):
        sources = [editor.writer.to_json(whole(hit)) for hit in hits]
        for source in sources:
            source["words"] += source["generated_words"]
            source["checksum"] = "of schema 3"
            for name in lacking:
                del source[name]
        assert len(list(editor.writer.index_json(sources))) == 4
    editor.writer.describe(schema=3)
    editor.writer.refresh()


@pytest.mark.parametrize("place", ["cluster"], indirect=True)
def test_a_collection_of_an_older_schema_is_rebuilt_without_opening_an_image(
    place, image_folder, describing_model, monkeypatch
):
    query = EncodedQuery(
        CALIBRATED, describing_model.text.encode(["blue"], "en").visual[0],
        words=("青の画像",), concepts=(frozenset({"blue"}),),
    )  # fmt: skip
    with place.create(describing_model) as cluster:
        index(cluster, [image_folder])
        enrich(cluster)
        before = cluster.backend.search(query, Filters(), 10)
        assert before[0].contributions.tag == 1
        make_older(cluster)
        for write in (lambda: index(cluster, []), lambda: place.open(describing_model)):
            with pytest.raises(SchemaTooOld, match=r"schema 3.*index --rebuild --backend https"):
                write()
        monkeypatch.setattr("capsearch.indexer.prepare.opened", lambda *_: pytest.fail("decoded"))
        assert index(cluster, [], IndexOptions(rebuild=True)).unchanged == 4
        assert cluster.backend.search(query, Filters(), 10) == before
        assert enrich(cluster).captioned == 0  # known to be described
