"""Accepted and corrected captions are a person's and outlive models; rejected ones stay away."""

from __future__ import annotations

from dataclasses import replace

import pytest
from places import document

from capsearch.engine.errors import IndexBusy, InvalidCaptions
from capsearch.engine.fakes import FakeCaptioner
from capsearch.engine.protocols import Enricher
from capsearch.engine.query import Query
from capsearch.engine.records import Caption
from capsearch.indexer import enrichment
from capsearch.indexer.enrichment import EnrichOptions, enrich
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection

SOURCE = "model:toy-captions@1"
BLUE = Caption("a blue image", "en", SOURCE)


@pytest.fixture
def where(place, image_folder, describing_model):
    with place.create(describing_model) as collection:
        index(collection, [image_folder])
        enrich(collection)
    return place


@pytest.fixture
def blue(where, describing_model) -> str:
    with where.open(describing_model) as collection:
        return document(collection, "blue.png").record.id


def review(action, where, model, *arguments) -> None:
    with where.create(model) as opened:
        action(opened, *arguments)


def texts(where, model, language="en") -> list[tuple[str, str]]:
    with where.open(model) as collection:
        captions = document(collection, "blue.png").captions
        return [(one.text, one.source) for one in captions if one.language == language]


def test_an_accepted_caption_is_a_persons(where, describing_model, blue):
    review(enrichment.accept, where, describing_model, blue, BLUE)
    assert texts(where, describing_model) == [("a blue image", "hand")]
    assert len(texts(where, describing_model, "ja")) == 1  # the others are the model's still


def test_a_corrected_caption_replaces_the_generated_one_and_is_found(where, describing_model, blue):
    review(enrichment.correct, where, describing_model, blue, BLUE, "a cat on a blue sofa")
    assert texts(where, describing_model) == [("a cat on a blue sofa", "hand")]
    with where.open(describing_model) as collection:
        hits = collection.engine().search(Query("cat", mode="cl")).hits
        assert hits[0].contributions.caption.text == "a cat on a blue sofa"
        assert collection.engine().search(Query('"sofa"')).hits[0].image_id == blue


def test_a_rejected_caption_goes_and_does_not_come_back(where, describing_model, blue):
    review(enrichment.reject, where, describing_model, blue, BLUE)
    assert texts(where, describing_model) == []
    other = Enricher(captioner=FakeCaptioner("toy-captions@2"))
    for model in (describing_model, replace(describing_model, enricher=lambda: other)):
        with where.create(model) as collection:
            enrich(collection, EnrichOptions(redo=True))
        assert texts(where, model) == []
    assert len(texts(where, describing_model, "zh")) == 1


def test_people_decide_over_every_later_model(where, describing_model, blue):
    review(enrichment.correct, where, describing_model, blue, BLUE, "the sea")
    other = Enricher(captioner=FakeCaptioner("toy-captions@2"))
    model = replace(describing_model, enricher=lambda: other)
    with where.create(model) as collection:
        enrich(collection)
    assert texts(where, model) == [("the sea", "hand")]
    assert texts(where, model, "zh") == [("蓝色的图像", "model:toy-captions@2")]


def test_what_people_decided_survives_rebuilds_and_files_that_come_and_go(
    where, describing_model, blue, image_folder, image
):
    review(enrichment.accept, where, describing_model, blue, BLUE)
    with where.create(describing_model) as collection:
        index(collection, [], IndexOptions(rebuild=True))
        (image_folder / "blue.png").unlink()
        index(collection, [])
        image(image_folder / "blue.png", "blue")
        index(collection, [])
        enrich(collection)
    assert texts(where, describing_model) == [("a blue image", "hand")]


def test_what_people_decided_follows_an_edited_file(
    where, describing_model, blue, image_folder, image
):
    japanese = Caption("青の画像", "ja", SOURCE)
    review(enrichment.accept, where, describing_model, blue, BLUE)
    review(enrichment.reject, where, describing_model, blue, japanese)
    image(image_folder / "blue.png", "blue", size=17)  # another content
    with where.create(describing_model) as collection:
        index(collection, [])
        enrich(collection)
    assert texts(where, describing_model) == [("a blue image", "hand")]
    assert texts(where, describing_model, "ja") == []


def test_a_caption_that_is_not_there_any_more_is_an_error(where, describing_model, blue):
    review(enrichment.reject, where, describing_model, blue, BLUE)
    for again in (enrichment.reject, enrichment.accept):
        with pytest.raises(InvalidCaptions, match="no generated caption 'a blue image' any more"):
            review(again, where, describing_model, blue, BLUE)


def test_an_empty_correction_changes_nothing(where, describing_model, blue):
    with pytest.raises(InvalidCaptions, match="at least two letters"):
        review(enrichment.correct, where, describing_model, blue, BLUE, " ")
    assert texts(where, describing_model) == [(BLUE.text, SOURCE)]


def test_an_index_folder_has_one_writer_at_a_time(collection):
    with pytest.raises(IndexBusy, match="another capsearch is writing"):
        Collection.create(collection.path, collection.model)
