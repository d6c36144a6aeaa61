"""An index of an older schema: one error, and the command it names rebuilds it as it was."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from click.testing import CliRunner
from embedded_toys import change
from index_contents import counts, first
from places import document

from capsearch.engine.errors import SchemaTooOld
from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Filters, Tag
from capsearch.indexer import enrichment
from capsearch.indexer.enrichment import enrich
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.schema import SCHEMA
from capsearch.ui.cli.main import cli

REBUILD = IndexOptions(rebuild=True)
CAPTIONER = "model:toy-captions@1"


def age(where: Path, schema: int) -> Path:
    """Makes the catalog what an older schema had of it: fewer tables and columns."""
    with sqlite3.connect(where / "catalog.sqlite") as connection:
        connection.execute(f"PRAGMA user_version = {schema}")
        connection.execute("DELETE FROM meta WHERE key IN ('concepts', 'facets', 'searchable')")
        lacking = ["DROP TABLE facets", "DROP TABLE words", "DROP TABLE generated_words"]
        if schema < 4:
            lacking += [
                "DROP TABLE enriched", "DROP TABLE rejected", "DROP INDEX tags_by_concept",
                "ALTER TABLE tags DROP COLUMN concept",
                "ALTER TABLE captions DROP COLUMN confidence",
            ]  # fmt: skip
        if schema < 2:
            triggers = "SELECT name FROM sqlite_master WHERE type = 'trigger'"
            lacking = [
                *(f"DROP TRIGGER {name}" for (name,) in connection.execute(triggers)),
                *lacking, "DROP TABLE captions_files", "DROP TABLE metadata",
                "DROP TABLE past_files", "DROP INDEX images_by_number",
                "DROP INDEX images_words_stale", "ALTER TABLE images DROP COLUMN number",
            ]  # fmt: skip
        for statement in lacking:
            connection.execute(statement)
    return where


@pytest.fixture
def where(tmp_path, image_folder, describing_model) -> Path:
    """Captions and tags of people and of models, some of them accepted and rejected."""
    path = tmp_path / "an index"
    (image_folder / "red.txt").write_text("a red car\n", encoding="utf-8")
    (tmp_path / "more.csv").write_text("file,caption\nblue.png,the blue sea\n")
    with Collection.create(path, describing_model) as collection:
        index(collection, [image_folder], IndexOptions(captions=(tmp_path / "more.csv",)))
        enrich(collection)
        green, yellow = (document(collection, name) for name in ("green.jpg", "yellow.webp"))
        enrichment.accept(collection, green.record.id, green.captions[0])
        enrichment.reject(collection, yellow.record.id, yellow.captions[0])
    return path


def documents(collection) -> dict[str, object]:
    return {one.record.id: one for one in collection.backend.newest(Filters(), 9)}


@pytest.mark.parametrize("schema", [1, 5])
def test_it_is_an_error_that_names_the_command(where, describing_model, schema):
    age(where, schema)
    for opened in (Collection.open, Collection.create):
        with pytest.raises(SchemaTooOld, match=f"schema {schema}, this .* reads {SCHEMA}; run"):
            opened(where, describing_model)


def test_the_command_that_the_error_names_rebuilds_it(where, describing_model, monkeypatch):
    monkeypatch.setattr("capsearch.encoders.models.registry.load", lambda _: describing_model)
    age(where, 5)
    with pytest.raises(SchemaTooOld) as problem:
        Collection.open(where, describing_model)
    [command] = re.findall("`capsearch (.+?)`", str(problem.value))
    quoted = command.replace(f"'{where}'", "WHERE").split()
    arguments = [str(where) if part == "WHERE" else part for part in quoted]
    result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    with Collection.open(where, describing_model) as collection:
        assert first(collection, "car", mode="cl") == "red.png"


def test_it_is_rebuilt_without_opening_an_image_and_nothing_is_lost(
    where, describing_model, monkeypatch
):
    with Collection.open(where, describing_model) as collection:
        before = documents(collection)
        vectors = bytes(collection.catalog.array("vectors").view())
    age(where, 5)
    monkeypatch.setattr("capsearch.indexer.prepare.opened", lambda *_: pytest.fail("decoded"))
    with Collection.create(where, describing_model, rebuild=True) as collection:
        assert counts(index(collection, [], REBUILD)) == (0, 0, 0, 4)
        assert documents(collection) == before
        assert bytes(collection.catalog.array("vectors").view()) == vectors
        assert enrich(collection).captioned == 0
        yellow = document(collection, "yellow.webp").record.id
        refused = Caption("a yellow image", "en", CAPTIONER)
        again = collection.store().descriptions().put_captions(CAPTIONER, {yellow: [refused]})
        assert again == 0  # still rejected
        [hit] = collection.engine().search(Query('"sea"')).hits
        assert hit.record.path.endswith("blue.png")
        assert collection.stats().captions_files[0].endswith("more.csv")
        assert len(collection.backend.newest(Filters(tags=("青",)), 9)) == 1


def test_the_first_schema_is_rebuilt_too(where, describing_model, tmp_path):
    age(where, 1)
    (tmp_path / "more.csv").unlink()
    with Collection.create(where, describing_model, rebuild=True) as collection:
        assert counts(index(collection, [], REBUILD)) == (0, 0, 0, 4)
        assert describing_model.image.embedded == 8  # 4 vectors, 4 feature maps: before
        [hit] = collection.engine().search(Query('"red car"')).hits
        assert hit.record.path.endswith("red.png")
        assert Caption("the blue sea", "en", "csv") in document(collection, "blue.png").captions
        assert collection.stats().captions_files == (str(tmp_path / "more.csv"),)


def test_with_another_projection_it_is_rebuilt_from_the_stored_features(
    where, make_model, monkeypatch
):
    age(where, 5)
    monkeypatch.setattr("capsearch.indexer.prepare.opened", lambda *_: pytest.fail("decoded"))
    with Collection.create(where, make_model(turn=1), rebuild=True) as collection:
        assert counts(index(collection, [], REBUILD)) == (0, 0, 0, 4)
        assert first(collection, "red", mode="cm") == "red.png"


def test_an_index_of_this_schema_is_rebuilt_as_ever(where, describing_model):
    with Collection.create(where, describing_model, rebuild=True) as collection:
        assert counts(index(collection, [], REBUILD))[0] == 4  # every image is encoded again


def test_links_are_made_anew_when_the_concept_table_changes(
    tmp_path, image_folder, describing_model, monkeypatch
):
    def tagged() -> int:
        return len(collection.backend.newest(Filters(tags=("cat",)), 9))

    with Collection.create(tmp_path / "index", describing_model) as collection:
        index(collection, [image_folder])
        red = document(collection, "red.png").record.id
        tag = Tag("猫", "zh", 1.0, "iptc", "gone")
        change(collection, red, lambda document: document.add_tags([tag]))
        index(collection, [])
        assert tagged() == 0  # linked with this table: nothing to do
        monkeypatch.setattr("capsearch.encoders.text.concepts.version", lambda: "another")
        index(collection, [])
        assert tagged() == 1
