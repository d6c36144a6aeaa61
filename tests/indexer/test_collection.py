"""Collection: opening, locking, model checks, statistics, manifest, caches."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest

from capsearch.encoders.models import registry
from capsearch.engine.errors import IndexBusy, IndexEmpty, IndexMissing, ModelMismatch, SchemaTooNew
from capsearch.engine.query import Query
from capsearch.indexer.pipeline import index
from capsearch.indexer.sqlite import nearest
from capsearch.indexer.sqlite.collection import Collection, default_index_path
from capsearch.indexer.sqlite.schema import SCHEMA


@pytest.fixture
def where(tmp_path, image_folder, fake_model) -> Path:
    path = tmp_path / "index"
    with Collection.create(path, fake_model) as collection:
        index(collection, [image_folder])
    return path


def test_a_reader_finds_what_a_writer_indexed(where, fake_model):
    with Collection.open(where, fake_model) as collection:
        assert len(collection.engine().search(Query("red")).hits) == 4


def test_a_missing_index_is_an_error_with_the_command_that_makes_one(tmp_path, fake_model):
    with pytest.raises(IndexMissing, match="make one with `capsearch index FOLDER`"):
        Collection.open(tmp_path / "nowhere", fake_model)


def test_a_catalog_without_tables_is_not_an_index(tmp_path, fake_model):
    sqlite3.connect(tmp_path / "catalog.sqlite").close()
    with pytest.raises(IndexMissing):
        Collection.open(tmp_path, fake_model)


def test_an_empty_index_is_an_error_with_the_command_that_fills_it(tmp_path, fake_model):
    with (
        Collection.create(tmp_path / "index", fake_model) as collection,
        pytest.raises(IndexEmpty, match="holds no images; add some with"),
    ):
        collection.engine()


def test_a_newer_schema_is_refused_and_the_lock_is_released(where, fake_model):
    connection = sqlite3.connect(where / "catalog.sqlite")
    connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    for _ in range(2):
        with pytest.raises(SchemaTooNew):
            Collection.create(where, fake_model)
        with pytest.raises(SchemaTooNew):
            Collection.open(where, fake_model)


def test_one_process_writes_at_a_time_and_others_may_read(where, fake_model):
    with Collection.create(where, fake_model):
        with pytest.raises(IndexBusy, match="another capsearch is writing"):
            Collection.create(where, fake_model)
        with Collection.open(where, fake_model) as reader:
            assert reader.stats().images == 4
    Collection.create(where, fake_model).close()


def test_another_model_is_refused_with_both_names_and_the_commands_to_use(where, make_model):
    with pytest.raises(ModelMismatch) as caught:
        Collection.open(where, make_model(turn=3))
    message = str(caught.value)
    assert "was built with fake@" in message and "this is fake-3@" in message
    assert message.endswith(
        "`capsearch index --model fake-3 --rebuild` (images are not encoded again)"
        " or search with --model fake"
    )


def test_the_error_for_another_backbone_warns_that_every_image_is_encoded_again(where, make_model):
    with pytest.raises(ModelMismatch, match="every image is encoded again"):
        Collection.open(where, make_model(backbone="other"))


def test_without_a_model_the_model_of_the_index_is_loaded(where, fake_model, monkeypatch):
    loaded = []
    monkeypatch.setattr(
        registry, "load", lambda name=None: loaded.append(name) or fake_model, raising=False
    )
    Collection.open(where).close()
    Collection.create(where).close()
    Collection.create(where.with_name("new")).close()
    assert loaded == ["fake", "fake", None]


def test_vectors_of_another_width_are_refused_even_with_the_same_digest(where, fake_model):
    fake_model.image.dimension -= 1  # as in indexes made before the hubness penalty
    with pytest.raises(ModelMismatch, match=r"\(images are not encoded again\)$"):
        Collection.open(where, fake_model)  # both models have one name: `--model` is no remedy


def test_the_manifest_repeats_what_the_catalog_stores(where):
    manifest = json.loads((where / "manifest.json").read_text())
    assert manifest["schema"] == SCHEMA
    assert manifest["model"] == {"name": "fake", "digest": "digest-of-toy-0"}
    assert manifest["backbone"] == {"name": "toy", "digest": "digest-of-toy"}
    assert manifest["dimensions"] == {"feature": 9, "image": 9, "caption": 17}
    assert manifest["created_at"] <= manifest["updated_at"]


def test_a_deleted_manifest_is_written_again(where, fake_model):
    (where / "manifest.json").unlink()
    Collection.create(where, fake_model).close()
    assert (where / "manifest.json").is_file()


def test_statistics_count_everything(where, image_folder, fake_model):
    (image_folder / "red.txt").write_text("a red car\n一只猫\n一只狗", encoding="utf-8")
    with Collection.create(where, fake_model) as collection:
        index(collection, [])
        stats = collection.stats()
    assert (stats.images, stats.files, stats.captions, stats.tags, stats.skipped) == (4, 4, 3, 0, 0)
    assert stats.captions_by_language == {"zh": 2, "en": 1}
    assert stats.captions_by_source == {"sidecar": 3}
    assert stats.roots == (str(image_folder),)
    assert (stats.model, stats.backbone, stats.schema) == ("fake", "toy", SCHEMA)
    assert stats.bytes_on_disk["features"] == 4 * 9 * 2
    assert stats.bytes_on_disk["vectors"] == 4 * 9 * 4
    assert stats.bytes_on_disk["captions"] == 3 * 17 * 2
    assert stats.bytes_on_disk["catalog"] > 0


def test_an_open_reader_finds_new_images(where, image_folder, fake_model, image):
    with Collection.open(where, fake_model) as reader:
        assert len(reader.engine().search(Query("white")).hits) == 4
        image(image_folder / "white.png", "white")
        with Collection.create(where, fake_model) as writer:
            index(writer, [])
        assert len(reader.engine().search(Query("white")).hits) == 5


def test_uncommitted_rows_are_not_found_and_are_cut_off_by_the_next_writer(where, fake_model):
    vectors = where / "vectors-1.f32"
    size = vectors.stat().st_size
    with vectors.open("ab") as file:
        file.write(np.full(8, 9, np.float32).tobytes())
    with Collection.open(where, fake_model) as reader:
        assert max(hit.score for hit in reader.engine().search(Query("red")).hits) <= 1
    Collection.create(where, fake_model).close()
    assert vectors.stat().st_size == size


@pytest.fixture
def large(monkeypatch):
    """Every file is too large to compare with each row."""
    monkeypatch.setattr(nearest, "EXACT_ROWS", dict.fromkeys(nearest.EXACT_ROWS, 2))


def test_a_large_index_caches_its_codes_and_returns_the_same_hits(where, fake_model, request):
    with Collection.open(where, fake_model) as reader:
        before = reader.engine().search(Query("red"))
    request.getfixturevalue("large")
    with Collection.create(where, fake_model) as writer:
        index(writer, [])
        assert writer.stats().bytes_on_disk["cache"] >= (where / "vectors-1.codes").stat().st_size
    for content in (None, b"something else"):
        if content:
            (where / "vectors-1.codes").write_bytes(content)
        with Collection.open(where, fake_model) as reader:
            assert reader.engine().search(Query("red")).hits == before.hits
            revision = reader.backend._open(reader.catalog.state())
            assert isinstance(revision.images.search, nearest.CodeSearch)


@pytest.mark.usefixtures("large")
def test_recent_codes_are_not_written_again(where, fake_model):
    with Collection.create(where, fake_model) as writer:
        index(writer, [])
        written = (where / "vectors-1.codes").stat().st_mtime_ns
        index(writer, [])
    assert (where / "vectors-1.codes").stat().st_mtime_ns == written


@pytest.mark.usefixtures("large")
def test_codes_of_former_files_are_removed(where, fake_model):
    for former in ("captions-2.codes", "vectors-2.faiss"):
        (where / former).write_bytes(b"old")
    with Collection.create(where, fake_model) as writer:
        index(writer, [])
    names = [path.name for path in [*where.glob("*.codes"), *where.glob("*.faiss")]]
    assert names == ["vectors-1.codes"]


def test_the_environment_can_set_the_default_index(monkeypatch, tmp_path):
    monkeypatch.setenv("CAPSEARCH_INDEX", str(tmp_path))
    assert default_index_path() == tmp_path
    monkeypatch.delenv("CAPSEARCH_INDEX")
    assert default_index_path().parts[-2:] == ("capsearch", "default")
