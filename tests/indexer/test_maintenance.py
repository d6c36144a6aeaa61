"""Compaction removes unused rows, changes no search result, and survives a kill."""

from __future__ import annotations

import pytest

from capsearch.engine.fakes import COLOURS
from capsearch.engine.query import Query
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite import rebuilding
from capsearch.indexer.sqlite.collection import Collection
from capsearch.indexer.sqlite.writer import CatalogWriter

PRUNE = IndexOptions(prune=True)


@pytest.fixture
def folder(tmp_path, image):
    for colour in COLOURS:
        image(tmp_path / "p" / f"{colour}.png", colour)
        (tmp_path / "p" / f"{colour}.txt").write_text(f"a {colour} car")
    return tmp_path / "p"


@pytest.fixture
def collection(tmp_path, fake_model, folder):
    with Collection.create(tmp_path / "index", fake_model) as opened:
        index(opened, [folder])
        yield opened


def rows(collection) -> dict[str, int]:
    return {
        name: collection.catalog.array(name).rows for name in ("features", "vectors", "captions")
    }


def delete(folder, *colours: str) -> None:
    for colour in colours:
        (folder / f"{colour}.png").unlink()


def hits(collection) -> list[object]:
    return [
        (hit.image_id, hit.score, hit.contributions.caption)
        for hit in collection.engine().search(Query("white car")).hits
    ]


def test_up_to_a_third_of_unused_rows_stay(collection, folder):
    delete(folder, "red", "blue")  # 2 of 8
    index(collection, [folder], PRUNE)
    assert rows(collection) == {"features": 8, "vectors": 8, "captions": 8}
    assert len(hits(collection)) == 6


def test_more_than_a_third_of_unused_rows_are_removed(collection, folder):
    delete(folder, "red", "blue", "green")  # 3 of 8
    index(collection, [folder], PRUNE)
    assert rows(collection) == {"features": 5, "vectors": 5, "captions": 5}
    assert rebuilding.used_slots(collection.catalog, "images").tolist() == [0, 1, 2, 3, 4]
    arrays = sorted(path.name for path in collection.path.glob("*-*.f*"))
    assert arrays == ["captions-2.f16", "features-2.f16", "vectors-2.f32"]


def test_compaction_changes_no_search_result(collection, folder, monkeypatch):
    delete(folder, "red", "blue", "green", "black")
    with monkeypatch.context() as patch:
        patch.setattr(rebuilding, "compact", lambda collection: None)
        index(collection, [folder], PRUNE)
    before = hits(collection)
    rebuilding.compact(collection)
    assert rows(collection)["vectors"] == 4
    assert hits(collection) == before


@pytest.mark.parametrize("moment", ["before the switch", "after the switch"])
def test_a_kill_during_compaction_leaves_a_valid_index(
    collection, folder, tmp_path, fake_model, monkeypatch, moment
):
    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    delete(folder, "red", "blue", "green", "black")
    place = (
        (CatalogWriter, "set_array")
        if moment == "before the switch"
        else (rebuilding, "remove_old_files")
    )
    with monkeypatch.context() as patch:
        patch.setattr(*place, die)
        with pytest.raises(Killed):
            index(collection, [folder], PRUNE)
    collection.close()
    with Collection.create(tmp_path / "index", fake_model) as again:
        index(again, [folder], PRUNE)
        assert len(hits(again)) == 4
        assert rows(again)["vectors"] == 4
        assert len(list(again.path.glob("*-*.f*"))) == 3


def test_images_can_be_added_after_compaction(collection, folder, image):
    delete(folder, "red", "blue", "green")
    index(collection, [folder], PRUNE)
    image(folder / "new.png", "red", "blue")
    assert index(collection, [folder], PRUNE).added == 1
    assert rows(collection)["vectors"] == 6
    assert len(hits(collection)) == 6
