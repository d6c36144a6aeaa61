"""Documents as Elasticsearch gets them, without a server: tags, concepts and probabilities."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from document_contract import DOCUMENTS

from capsearch.encoders.text import concepts
from capsearch.engine.records import Caption, Document, Filters, Tag
from capsearch.indexer.document import StoredDocument
from capsearch.indexer.elastic import documents, requests

RECORD = DOCUMENTS[0].record
CAT = Document(
    RECORD,
    (Caption("a cat", "en", "model:m", 0.75),),
    (Tag("Grandma", "en", 1.0, "iptc"), Tag("cat", "en", 0.9, "model:m", "cat")),
)


def to_json(document: Document) -> dict:
    return documents.to_json(StoredDocument.of(document), str.split)


def test_a_document_comes_back_as_it_was() -> None:
    assert documents.document(to_json(CAT)) == CAT


def test_a_document_of_the_first_schema_can_be_read() -> None:
    source = to_json(CAT)
    for one in source["captions"]:
        del one["confidence"]
    for one in source["tags"]:
        del one["concept"]
    found = documents.document(source)
    assert found.captions == (Caption("a cat", "en", "model:m"),)
    assert found.tags[1] == Tag("cat", "en", 0.9, "model:m")


def test_broader_concepts_are_stored_so_that_a_filter_names_one() -> None:
    source = to_json(CAT)
    assert {"cat", "mammal", "pet", "animal"} <= set(source["concepts"])
    assert source["labels"] == ["Grandma"]
    [clause] = requests.conditions(Filters(tags=("动物",)))
    label, named = clause["bool"]["should"]
    assert label == {"term": {"tags.label": "动物"}}
    assert named == {"terms": {"concepts": ["animal"]}}


def test_words_of_models_are_apart_with_all_names_of_a_tag() -> None:
    source = to_json(CAT)
    assert "Grandma" in source["words"] and not {"a cat", "猫"} & set(source["words"])
    assert {"a cat", "猫"} <= set(source["generated_words"])


def test_the_surest_tag_of_each_concept_and_of_what_is_narrower_is_stored() -> None:
    tags = (*CAT.tags, Tag("dog", "en", 0.4, "model:m", "dog"), Tag("x", "en", 0.2, "m", "x"))
    surest = to_json(replace(CAT, tags=tags))["surest"]
    assert (surest["cat"], surest["dog"], surest["animal"], surest["x"]) == (0.9, 0.4, 0.9, 0.2)
    assert "Grandma" not in surest and to_json(DOCUMENTS[2])["surest"] == {}


def test_of_concepts_the_broadest_are_asked_for() -> None:
    assert concepts.broadest(concepts.under("animal")) == ["animal"]
    assert concepts.broadest(frozenset({"cat", "couch", "unknown"})) == ["cat", "couch", "unknown"]


def test_the_confidence_of_a_concept_is_that_of_its_surest_tag() -> None:
    assert documents.tag_confidences(to_json(CAT)) == {"cat": 0.9}


def test_what_a_run_knows_of_a_document_comes_back() -> None:
    known = StoredDocument.of(CAT, None, None, {CAT.captions[0]: np.ones(2, np.float32)})
    known.tagger, known.captioner, known.rejected = "t", "m", frozenset({"a dog"})
    known.past, known.missing_since = {"/was/here.jpg": "2026"}, None
    source = documents.to_json(known, str.split)
    rows = {documents.CAPTION_ROWS: [source["rows"]["captions"]]}
    back = documents.whole({"_source": source, "fields": rows})
    assert {key: one.vector.tolist() for key, one in back.captions.items()} == {
        ("model:m", "", "a cat"): [1.0, 1.0]
    }
    for stored in (*back.captions.values(), *known.captions.values()):
        stored.vector = None
    assert back == known
