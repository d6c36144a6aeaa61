"""Captions and tags by models: written in batches, resumable, and never over what people wrote."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest
from places import document

from capsearch.engine.errors import UnknownModel
from capsearch.engine.fakes import FakeCaptioner, FakeImageEncoder, FakeTagger
from capsearch.engine.protocols import Enricher
from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Filters, Tag
from capsearch.indexer.enrichment import EnrichOptions, enrich
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.documents import CatalogDocuments
from capsearch.indexer.sqlite.writer import CatalogWriter

TAGGER, CAPTIONER = "model:toy-tags@1", "model:toy-captions@1"


def filled(collection, image_folder):
    """Four images of one colour each, not described yet."""
    (image_folder / "red.txt").write_text("a red car\n", encoding="utf-8")
    index(collection, [image_folder])
    return collection


@pytest.fixture
def indexed(place, image_folder, describing_model):
    """On both backends."""
    with place.create(describing_model) as collection:
        yield filled(collection, image_folder)


@pytest.fixture
def folder(tmp_path, image_folder, describing_model):
    """In an index folder."""
    with Collection.create(tmp_path / "index", describing_model) as collection:
        yield filled(collection, image_folder)


def model_with(collection, tagger=None, captioner=None):
    enricher = Enricher(tagger, captioner)
    collection.model = replace(collection.model, enricher=lambda: enricher)


def test_every_image_gets_tags_and_captions_in_all_languages(indexed):
    summary = enrich(indexed)
    assert (summary.tagged, summary.captioned, summary.captions, summary.pending) == (4, 4, 12, 0)
    blue = document(indexed, "blue.png")
    assert blue.tags == (Tag("blue", "en", 1.0, TAGGER, "blue"),)
    assert blue.captions == (
        Caption("a blue image", "en", CAPTIONER),
        Caption("蓝色的图像", "zh", CAPTIONER),
        Caption("青の画像", "ja", CAPTIONER),
    )


def test_what_people_wrote_stays_and_comes_first(indexed):
    enrich(indexed)
    sources = [one.source for one in document(indexed, "red.png").captions]
    assert sources == ["sidecar", CAPTIONER, CAPTIONER, CAPTIONER]


def test_what_was_described_is_searched_by_caption_word_and_tag(indexed):
    enrich(indexed)
    engine = indexed.engine()
    [best, *_] = engine.search(Query("青の画像", mode="cl")).hits
    assert best.record.path.endswith("blue.png") and best.contributions.caption.generated
    assert [hit.record.path[-8:] for hit in engine.search(Query('"image" "blue"')).hits] == [
        "blue.png"
    ]
    tagged = indexed.backend.newest(Filters(tags=("青",)), 9)
    assert [one.record.path[-8:] for one in tagged] == ["blue.png"]


def test_a_second_run_describes_only_what_is_new(indexed, image_folder, image):
    enrich(indexed)
    image(image_folder / "black.png", "black")
    index(indexed, [])
    summary = enrich(indexed)
    assert (summary.tagged, summary.captioned, summary.captions) == (1, 1, 3)
    assert enrich(indexed).captioned == 0


def test_a_run_that_is_stopped_goes_on_with_the_next_batch(indexed):
    stop = threading.Event()
    options = EnrichOptions(batch_size=1, decode_threads=1)

    def after_two(progress):
        if progress.stage == "caption images" and progress.done == 2:
            stop.set()

    first = enrich(indexed, options, after_two, stop)
    assert (first.tagged, first.captioned, first.interrupted, first.pending) == (4, 2, True, 2)
    second = enrich(indexed, options)
    assert (second.tagged, second.captioned, second.pending) == (0, 2, 0)
    captioner = indexed.model.enricher().captioner
    assert captioner.captioned == 4  # none twice


def test_only_images_below_some_folders(indexed, image_folder):
    summary = enrich(indexed, EnrichOptions(paths=(image_folder / "trips",)))
    assert (summary.tagged, summary.captioned, summary.pending) == (1, 1, 0)
    assert document(indexed, "yellow.webp").tags and not document(indexed, "blue.png").tags
    assert enrich(indexed, EnrichOptions(paths=(image_folder / "blue.png",))).captioned == 1


def test_redo_describes_everything_again_but_writes_nothing_twice(folder):
    enrich(folder)
    slots = "SELECT id, slot FROM captions ORDER BY id"
    before = folder.catalog.rows(slots)
    summary = enrich(folder, EnrichOptions(redo=True))
    assert (summary.tagged, summary.captioned) == (4, 4)
    assert folder.catalog.rows(slots) == before  # equal captions keep their vectors


def test_another_model_replaces_what_the_first_wrote(indexed):
    enrich(indexed)
    model_with(indexed, FakeTagger("toy-tags@2"), FakeCaptioner("toy-captions@2", ("en",)))
    assert enrich(indexed).captioned == 4
    red = document(indexed, "red.png")
    assert [one.source for one in red.captions] == ["sidecar", "model:toy-captions@2"]
    assert {tag.source for tag in red.tags} == {"model:toy-tags@2"}


def test_a_model_without_heads_is_named(indexed):
    model_with(indexed)
    with pytest.raises(UnknownModel, match="fake writes neither captions nor tags"):
        enrich(indexed)


def test_a_tagger_alone_opens_no_image(indexed, image_folder):
    model_with(indexed, tagger=FakeTagger())
    (image_folder / "blue.png").unlink()
    encoder = indexed.model.image
    before = encoder.embedded
    summary = enrich(indexed)
    assert (summary.tagged, summary.captioned, summary.skipped) == (4, 0, ())
    assert encoder.embedded == before


def test_a_backbone_without_feature_maps_gives_tags_but_no_captions(indexed):
    indexed.model = replace(indexed.model, image=FakeImageEncoder(maps=False))
    summary = enrich(indexed)
    assert (summary.tagged, summary.captioned, summary.pending) == (4, 0, 0)
    assert [one.reason for one in summary.skipped] == [
        "gives no feature map, so no captions are written"
    ]


def test_files_that_are_gone_or_changed_are_named_and_left(indexed, image_folder, image):
    (image_folder / "blue.png").unlink()
    image(image_folder / "red.png", "black")
    summary = enrich(indexed)
    assert (summary.tagged, summary.captioned, summary.pending) == (4, 2, 2)
    reasons = {one.path.rpartition("/")[2]: one.reason for one in summary.skipped}
    assert reasons == {
        "blue.png": "is gone; run `capsearch index`",
        "red.png": "has changed since it was indexed; run `capsearch index`",
    }


def test_a_rebuild_keeps_what_models_wrote(indexed):
    enrich(indexed)
    before = document(indexed, "blue.png")
    index(indexed, [], IndexOptions(rebuild=True))
    assert document(indexed, "blue.png") == before
    assert enrich(indexed).captioned == 0
    hits = indexed.engine().search(Query("青の画像", mode="cl")).hits
    assert hits[0].record.path.endswith("blue.png")


def test_a_file_that_returns_is_described_already(indexed, image_folder, image):
    enrich(indexed)
    (image_folder / "blue.png").unlink()
    index(indexed, [])
    image(image_folder / "blue.png", "blue")
    index(indexed, [])
    assert len(document(indexed, "blue.png").captions) == 3
    assert enrich(indexed).captioned == 0


def test_a_copy_of_an_index_knows_what_was_described_and_rejected(
    folder, tmp_path, describing_model
):
    enrich(folder)
    blue = document(folder, "blue.png")
    folder.store().descriptions().reject(blue.record.id, blue.captions[0])
    with Collection.create(tmp_path / "copy", describing_model) as other:
        copy = CatalogDocuments(CatalogWriter(other.catalog))
        with folder.catalog.snapshot():
            for batch in CatalogDocuments(CatalogWriter(folder.catalog)).batches():
                copy.edit({one.record.id: lambda _, one=one: one for one in batch})
        for _ in other.store().index_words():
            pass
        other.finish()
        assert document(other, "blue.png") == document(folder, "blue.png")
        assert enrich(other).captioned == 0
        assert enrich(other, EnrichOptions(redo=True)).captions == 11  # one was rejected


def test_redo_writes_the_same_again(indexed):
    enrich(indexed)
    before = [document(indexed, name) for name in ("blue.png", "red.png", "yellow.webp")]
    summary = enrich(indexed, EnrichOptions(redo=True))
    assert (summary.tagged, summary.captioned, summary.captions) == (4, 4, 12)
    assert [document(indexed, name) for name in ("blue.png", "red.png", "yellow.webp")] == before


def test_of_equal_labels_the_first_counts_and_empty_captions_do_not(indexed):
    blue = document(indexed, "blue.png").record.id
    fruit = Tag("orange", "en", 0.9, TAGGER, "orange")
    colour = Tag("orange", "en", 0.4, TAGGER, "orange-color")
    empty, said = Caption("", "en", CAPTIONER), Caption("青", "ja", CAPTIONER, 0.5)
    store = indexed.store()
    with store.writing(rebuild=False):
        store.descriptions().put_tags("toy-tags@1", {blue: [fruit, colour]})
        assert store.descriptions().put_captions("toy-captions@1", {blue: [empty, said]}) == 1
        store.finish()
    assert document(indexed, "blue.png").tags == (fruit,)
    assert document(indexed, "blue.png").captions == (said,)
