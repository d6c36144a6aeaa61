"""A rebuild goes beside the index: the old vectors serve searches until it is complete."""

from __future__ import annotations

import shutil
import threading

import pytest
from index_contents import captions, counts, first

from capsearch.engine.errors import ModelMismatch
from capsearch.engine.query import Query
from capsearch.engine.records import Progress
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection

REBUILD = IndexOptions(rebuild=True, batch_size=1)


@pytest.fixture
def where(tmp_path, image_folder, make_model):
    (image_folder / "blue.txt").write_text("a cat")
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [image_folder])
    return tmp_path / "index"


def stopped_at(stage: str, stop: threading.Event):
    def show(progress: Progress) -> None:
        if progress.stage == stage and progress.done:
            stop.set()

    return show


def hits(where, model) -> list[object]:
    with Collection.open(where, model) as reader:
        return [
            (hit.image_id, hit.score, hit.contributions.caption)
            for text in ("red", "a cat")
            for hit in reader.engine().search(Query(text)).hits
        ]


@pytest.mark.parametrize("new", [{"backbone": "other"}, {"turn": 1}])
def test_searches_use_the_old_vectors_until_all_new_ones_exist(where, make_model, new):
    """Issue 11, 20."""
    before, seen = hits(where, make_model()), []

    def look(progress: Progress) -> None:
        if progress.stage != "scan":
            seen.append(hits(where, make_model()))

    with Collection.create(where, make_model(**new)) as collection:
        index(collection, [], REBUILD, look)
        assert first(collection, "red") == "red.png"
        assert first(collection, "cat", mode="cl") == "blue.png"
    assert seen and all(one == before for one in seen)
    with pytest.raises(ModelMismatch):
        hits(where, make_model())


def test_an_interrupted_rebuild_serves_the_old_vectors_and_goes_on_later(where, make_model):
    """Issue 11, 20."""
    before, stop, new = hits(where, make_model()), threading.Event(), make_model(backbone="other")
    with Collection.create(where, new) as collection:
        index(collection, [], REBUILD, stopped_at("embed", stop), stop)
    assert hits(where, make_model()) == before
    with Collection.create(where, new) as collection:
        index(collection, [], REBUILD)
        assert captions(collection) == [("a cat", "en", "sidecar")]
    assert new.image.embedded == 4
    assert sorted(path.name for path in where.glob("*.f*")) == [
        "captions-2.f16", "features-2.f16", "vectors-2.f32",
    ]  # fmt: skip


def test_the_old_model_can_index_while_a_rebuild_waits(where, make_model, image_folder, image):
    stop, new = threading.Event(), make_model(backbone="other")
    with Collection.create(where, new) as collection:
        index(collection, [], REBUILD, stopped_at("embed", stop), stop)
    image(image_folder / "new.png", "purple")
    for name in ("red.png", "green.jpg", "trips/2024/yellow.webp"):
        (image_folder / name).unlink()
    with Collection.create(where, make_model()) as collection:
        index(collection, [], IndexOptions(prune=True))  # compacts, too
        assert first(collection, "purple") == "new.png"
    with Collection.create(where, new) as collection:
        index(collection, [], REBUILD)
        assert first(collection, "purple") == "new.png"
        assert len(collection.engine().search(Query("red")).hits) == 2


def test_an_edited_caption_is_encoded_for_the_rebuild(where, make_model, image_folder):
    stop, new = threading.Event(), make_model(backbone="other")
    with Collection.create(where, new) as collection:
        index(collection, [], REBUILD, stopped_at("captions", stop), stop)
    (image_folder / "blue.txt").write_text("a house")
    with Collection.create(where, new) as collection:
        index(collection, [], REBUILD)
        assert first(collection, "house", mode="cl") == "blue.png"
        assert collection.catalog.array("captions").rows <= 2


def test_images_out_of_reach_are_encoded_when_they_are_back(where, make_model, image_folder):
    new = make_model(backbone="other")
    shutil.move(image_folder / "red.png", image_folder.parent / "red.png")
    with Collection.create(where, new) as collection:
        index(collection, [], REBUILD)
        assert len(collection.backend) == 3
        shutil.move(image_folder.parent / "red.png", image_folder / "red.png")
        assert counts(index(collection, []))[0] == 1
        assert first(collection, "red") == "red.png"
