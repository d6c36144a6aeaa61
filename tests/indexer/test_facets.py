"""Facets of a collection with their counts, and its images by date."""

from __future__ import annotations

from datetime import date, datetime
from pathlib import Path

import pytest
from embedded_toys import arrive, put

from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Caption, Document, Facet, Filters, ImageRecord, Tag
from capsearch.indexer.sqlite.catalog import facets
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.writer import CatalogWriter

IMAGES = (
    # id, file, taken, captions, tags
    ("a", "/p/cats/1.jpg", datetime(2024, 5, 1), [Caption("cat", "en", "exif")], ["cat"]),
    ("b", "/p/cats/old/2.jpg", datetime(2020, 1, 1), [Caption("猫", "zh", "model:m")], ["cat"]),
    ("c", "/p/3.jpg", None, [], ["sea"]),
    ("d", "/p/4.jpg", datetime(2024, 5, 1), [], []),
)


@pytest.fixture
def collection(tmp_path: Path, fake_model: Model) -> Collection:
    created = Collection.create(tmp_path / "index", fake_model)
    writer = CatalogWriter(created.catalog)
    with writer.transaction():
        writer.add_roots({Path("/p"): ()})
    for image_id, path, taken, captions, labels in IMAGES:
        record = ImageRecord(image_id, (path,), 4, 3, 10, "JPEG", taken)
        tags = [Tag(label, "en", 1.0, "iptc") for label in labels]
        put(created, Document(record, tuple(captions), tuple(tags)))
    return created


def test_tags_count_images_and_the_most_common_come_first(collection: Collection) -> None:
    assert facets(collection.catalog).tags == (Facet("cat", 2), Facet("sea", 1))


def test_a_folder_counts_everything_below_it(collection: Collection) -> None:
    assert facets(collection.catalog).folders == (
        Facet("/p", 4), Facet("/p/cats", 2), Facet("/p/cats/old", 1),
    )  # fmt: skip


def test_captions_count_by_language_and_author(collection: Collection) -> None:
    counted = facets(collection.catalog)
    assert counted.caption_languages == (Facet("en", 1), Facet("zh", 1))
    assert counted.written_by == (Facet("models", 1), Facet("people", 1))


def test_dates_span_the_dated_images(collection: Collection) -> None:
    counted = facets(collection.catalog)
    assert (counted.earliest, counted.latest) == (date(2020, 1, 1), date(2024, 5, 1))


def test_an_empty_collection_has_no_facets(tmp_path: Path, fake_model: Model) -> None:
    with Collection.create(tmp_path / "none", fake_model) as empty:
        counted = facets(empty.catalog)
    assert (counted.tags, counted.folders, counted.earliest) == ((), (), None)


def test_newest_first_ties_by_id_undated_last(collection: Collection) -> None:
    assert collection.catalog.newest(Filters(), limit=9) == ("a", "d", "b", "c")


def test_newest_pages_and_filters(collection: Collection) -> None:
    assert collection.catalog.newest(Filters(), limit=2, offset=1) == ("d", "b")
    assert collection.catalog.newest(Filters(tags=("cat",)), limit=9) == ("a", "b")


def test_an_image_with_copies_counts_once_in_each_folder(collection: Collection) -> None:
    """Issue 11, 11: folders are counted by SQL, copies corrected afterwards."""
    for path in ("/p/cats/copy.jpg", "/p/copies/1.jpg"):
        arrive(collection, path, "a")
    assert facets(collection.catalog).folders == (
        Facet("/p", 4), Facet("/p/cats", 2), Facet("/p/cats/old", 1), Facet("/p/copies", 1),
    )  # fmt: skip


def test_readers_take_the_counts_that_a_writer_stored(
    collection: Collection, fake_model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 11, 11: the page counted everything again after each batch of a writer."""
    collection.finish()
    counted = facets(collection.catalog)
    with Collection.open(collection.path, fake_model) as reader:
        monkeypatch.setattr(
            "capsearch.indexer.sqlite.catalog.facets", lambda catalog: pytest.fail("counted")
        )
        assert reader.backend.facets() == counted
        arrive(collection, "/p/5.jpg", "a")  # a writer at work, which has not counted yet
        assert reader.backend.facets() == counted
        reader.backend._facets = None
        assert reader.backend.facets() == counted


def test_newest_and_facets_are_read_by_index(collection: Collection) -> None:
    """Issue 11, 11: no sorting of the whole collection at each click."""
    plans: list[str] = []
    rows = collection.catalog.rows

    def explained(sql: str, values: object = ()) -> list[object]:
        plan = collection.catalog.connection.execute(f"EXPLAIN QUERY PLAN {sql}", values)  # type: ignore[call-overload]
        plans.extend(row[3] for row in plan)
        return rows(sql, values)  # type: ignore[arg-type]

    collection.catalog.rows = explained  # type: ignore[method-assign, assignment]
    collection.catalog.newest(Filters(), limit=2)
    assert any("images_newest" in step for step in plans)
    assert not any("TEMP B-TREE" in step for step in plans)


@pytest.mark.parametrize("few", [True, False], ids=["listed", "checked one by one"])
def test_images_of_a_concept_are_found_by_index(collection: Collection, few: bool) -> None:
    collection.finish()  # links the tags
    catalog, filters = collection.catalog, Filters(tags=("animal",))
    [(condition, values)] = catalog.few(filters, 100) if few else [catalog.where(filters)]
    sql = f"EXPLAIN QUERY PLAN SELECT id FROM images i WHERE {condition}"
    plan = [row[3] for row in collection.catalog.rows(sql, values)]
    assert any(("tags_by_concept" if few else "image_id=?") in step for step in plan), plan
    assert not any(step.startswith(("SCAN tags", "SCAN t ")) for step in plan), plan
