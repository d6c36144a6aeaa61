"""An index made before models wrote captions and tags: it opens, is migrated and enriched."""

from __future__ import annotations

from pathlib import Path

import pytest
from old_schemas import downgrade

from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Filters, Tag
from capsearch.indexer.enrichment import enrich
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.schema import SCHEMA
from capsearch.indexer.sqlite.writer import CatalogWriter


@pytest.fixture
def old(tmp_path, image_folder, describing_model) -> Path:
    """Schema 3, with a caption and a tag by people."""
    where = tmp_path / "index"
    (image_folder / "red.txt").write_text("a red car\n", encoding="utf-8")
    with Collection.create(where, describing_model) as collection:
        index(collection, [image_folder])
        sql = "SELECT image_id FROM files WHERE path LIKE '%red.png'"
        [(image_id,)] = collection.catalog.rows(sql)
        writer = CatalogWriter(collection.catalog)
        with writer.transaction():
            writer.metadata.put_tags(image_id, [Tag("猫", "zh", 1.0, "iptc")])
    return downgrade(where, 3)


def tagged(collection: Collection, tag: str) -> int:
    return len(collection.backend.newest(Filters(tags=(tag,)), 9))


def test_a_reader_searches_it_and_links_no_tags(old, describing_model):
    with Collection.open(old, describing_model) as reader:
        assert reader.catalog.schema() == 3
        hits = reader.engine().search(Query("red car", mode="cl")).hits
        assert hits[0].contributions.caption == Caption("a red car", "en", "sidecar")
        assert hits[0].document.tags == (Tag("猫", "zh", 1.0, "iptc"),)
        assert (tagged(reader, "猫"), tagged(reader, "cat")) == (1, 0)
        assert [one.value for one in reader.backend.facets().tags] == ["猫"]


def test_a_writer_migrates_it_and_links_its_tags(old, describing_model):
    with Collection.create(old, describing_model) as writer:
        assert writer.catalog.schema() == SCHEMA
        index(writer, [])
        assert (tagged(writer, "cat"), tagged(writer, "animal")) == (1, 1)
        assert [(one.value, one.concept) for one in writer.backend.facets().tags] == [
            ("cat", "cat")
        ]
        enrich(writer)
        [document] = writer.backend.newest(Filters(tags=("猫",)), 9)
        assert [one.text for one in document.captions][:2] == ["a red car", "a red image"]


def test_a_reader_that_was_open_all_the_time_sees_it(old, describing_model):
    with Collection.open(old, describing_model) as reader:
        assert tagged(reader, "animal") == 0
        with Collection.create(old, describing_model) as writer:
            index(writer, [])
            enrich(writer)
        assert (tagged(reader, "animal"), tagged(reader, "青")) == (1, 1)


def test_links_are_made_anew_when_the_concept_table_changes(old, describing_model, monkeypatch):
    with Collection.create(old, describing_model) as writer:
        index(writer, [])
        with CatalogWriter(writer.catalog).transaction():
            writer.catalog.connection.execute("UPDATE tags SET concept = 'gone'")
        index(writer, [])
        assert tagged(writer, "cat") == 0  # linked with this table: nothing to do
        monkeypatch.setattr("capsearch.encoders.text.concepts.version", lambda: "another")
        index(writer, [])
        assert tagged(writer, "cat") == 1
