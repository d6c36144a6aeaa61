"""Documents as Elasticsearch gets them, without a server: tags, concepts and probabilities."""

from __future__ import annotations

from document_contract import DOCUMENTS

from capsearch.engine.protocols import NewDocument
from capsearch.engine.records import Caption, Document, Filters, Tag
from capsearch.indexer.elastic import mapping, requests

RECORD = DOCUMENTS[0].record
CAT = Document(
    RECORD,
    (Caption("a cat", "en", "model:m", 0.75),),
    (Tag("Grandma", "en", 1.0, "iptc"), Tag("cat", "en", 0.9, "model:m", "cat")),
)


def to_json(document: Document) -> dict:
    return mapping.to_json(NewDocument(document, None, None, {}), str.split)


def test_a_document_comes_back_as_it_was() -> None:
    assert mapping.document(to_json(CAT)) == CAT


def test_a_document_of_the_first_schema_can_be_read() -> None:
    source = to_json(CAT)
    for one in source["captions"]:
        del one["confidence"]
    for one in source["tags"]:
        del one["concept"]
    found = mapping.document(source)
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


def test_words_of_models_are_found_too_with_all_names_of_a_tag() -> None:
    words = to_json(CAT)["words"]
    assert "a cat" in words and "猫" in words and "Grandma" in words
