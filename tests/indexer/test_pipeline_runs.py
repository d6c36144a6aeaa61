"""Runs of the pipeline: progress, batches, stopping, failures, and other models."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from index_contents import captions, counts, embedded, first, paths

from capsearch.engine.errors import ModelMismatch
from capsearch.engine.query import Query
from capsearch.engine.records import Progress
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection


def test_progress_counts_the_changed_files(collection, image_folder):
    events: list[Progress] = []
    index(collection, [image_folder], progress=events.append)
    embeds = [event for event in events if event.stage == "embed"]
    assert [(event.done, event.total) for event in embeds] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert Path(embeds[0].current).name == "blue.png"
    assert events[0] == Progress("scan", 0, None)


def test_images_are_encoded_in_batches(collection, image_folder):
    index(collection, [image_folder], IndexOptions(batch_size=3))
    assert collection.model.image.batches == [3, 1]


def test_a_stopped_run_commits_its_batch_and_the_next_run_does_the_rest(collection, image_folder):
    stop = threading.Event()

    def after_the_second(progress: Progress) -> None:
        if progress.stage == "embed" and progress.done == 2:
            stop.set()

    summary = index(collection, [image_folder], IndexOptions(), after_the_second, stop)
    assert summary.interrupted and counts(summary) == (2, 0, 0, 0)
    assert counts(index(collection, [image_folder])) == (2, 0, 0, 2)
    assert embedded(collection) == 4


def test_a_stopped_run_removes_nothing(collection, image_folder, image):
    index(collection, [image_folder])
    (image_folder / "red.png").unlink()
    image(image_folder / "new.png", "purple")
    stop = threading.Event()
    stop.set()
    assert counts(index(collection, [image_folder], stop=stop)) == (0, 0, 0, 3)
    assert "red.png" in paths(collection)


def test_an_encoder_failure_is_an_error_and_earlier_batches_stay(
    collection, image_folder, monkeypatch
):
    features = type(collection.model.image).features
    calls = []

    def fail_on_the_second(self, pixels):
        calls.append(len(pixels))
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return features(self, pixels)

    monkeypatch.setattr(type(collection.model.image), "features", fail_on_the_second)
    with pytest.raises(RuntimeError, match="out of memory"):
        index(collection, [image_folder], IndexOptions(batch_size=2))
    assert len(paths(collection)) == 2


def test_another_model_is_refused_without_rebuild(tmp_path, image_folder, make_model):
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [image_folder])
    with Collection.create(tmp_path / "index", make_model(turn=1)) as collection:
        with pytest.raises(ModelMismatch, match=r"built with fake@.*, this is fake-1@.*--rebuild"):
            index(collection, [image_folder])
        with pytest.raises(ModelMismatch):
            collection.engine()


def test_another_projection_encodes_no_image_again(tmp_path, image_folder, make_model, monkeypatch):
    (image_folder / "blue.txt").write_text("a cat")
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [image_folder])
    new = make_model(turn=1)
    monkeypatch.setattr("capsearch.indexer.prepare.opened", lambda *_: pytest.fail("decoded"))
    with Collection.create(tmp_path / "index", new) as collection:
        assert counts(index(collection, [], IndexOptions(rebuild=True))) == (0, 0, 0, 4)
        assert new.image.embedded == 0
        assert first(collection, "red") == "red.png"
        assert first(collection, "cat", mode="cl") == "blue.png"
        assert collection.stats().model == "fake-1"


def test_another_backbone_encodes_every_image_again(tmp_path, image_folder, make_model):
    (image_folder / "blue.txt").write_text("a cat")
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [image_folder])
    new = make_model(backbone="other")
    with Collection.create(tmp_path / "index", new) as collection:
        assert counts(index(collection, [], IndexOptions(rebuild=True))) == (4, 0, 0, 0)
        assert first(collection, "red") == "red.png"
        assert captions(collection) == [("a cat", "en", "sidecar")]
        assert collection.stats().backbone == "other"


def test_a_rebuild_with_the_same_model_encodes_every_image_again(collection, image_folder):
    index(collection, [image_folder])
    assert counts(index(collection, [], IndexOptions(rebuild=True))) == (4, 0, 0, 0)
    assert embedded(collection) == 8


def test_a_stopped_rebuild_continues_where_it_stopped(tmp_path, image_folder, make_model):
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [image_folder])
    new, stop = make_model(backbone="other"), threading.Event()

    def after_the_first(progress: Progress) -> None:
        if progress.stage == "embed":
            stop.set()

    again = IndexOptions(rebuild=True)
    with Collection.create(tmp_path / "index", new) as collection:
        assert index(collection, [], again, after_the_first, stop).added == 1
        assert index(collection, [], again).added == 3
    assert new.image.embedded == 4


def test_captions_by_people_and_models_survive_a_rebuild(collection, image_folder):
    index(collection, [image_folder])
    [image_id] = [hit.image_id for hit in collection.engine().search(Query("red", limit=1)).hits]
    collection.catalog.connection.execute(
        "INSERT INTO captions (image_id, text, language, source, origin) "
        "VALUES (?, 'a flower', 'en', 'model:trio', '')",
        (image_id,),
    )
    index(collection, [], IndexOptions(rebuild=True))
    assert first(collection, "flower", mode="cl") == "red.png"
