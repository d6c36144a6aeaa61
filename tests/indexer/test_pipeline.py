"""Incremental indexing: what each change in a folder does to the index, and what it costs."""

from __future__ import annotations

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

from capsearch.engine.errors import (
    IndexProblem,
    InvalidCaptions,
    ModelMismatch,
    RootUnavailable,
)
from capsearch.engine.records import Caption, Filters, Query
from capsearch.indexer import scan as scanning
from capsearch.indexer.collection import Collection
from capsearch.indexer.pipeline import IndexOptions, Progress, index


@pytest.fixture
def collection(tmp_path, fake_model):
    with Collection.create(tmp_path / "index", fake_model) as opened:
        yield opened


def first(collection: Collection, text: str, **query) -> str:
    """The file name of the best hit."""
    hit = collection.engine().search(Query(text, **query)).hits[0]
    return Path(collection.catalog.images([hit.image_id])[hit.image_id].path).name


def paths(collection: Collection) -> list[str]:
    return [Path(row[0]).name for row in collection.catalog.rows("SELECT path FROM files")]


def captions(collection: Collection) -> list[tuple[str, str, str]]:
    sql = "SELECT text, language, source FROM captions ORDER BY text"
    return [tuple(row) for row in collection.catalog.rows(sql)]


def embedded(collection: Collection) -> int:
    return collection.model.image.embedded


def counts(summary) -> tuple[int, int, int, int]:
    return summary.added, summary.reused, summary.removed, summary.unchanged


def test_a_folder_is_indexed_and_its_pictures_are_found(collection, photos):
    summary = index(collection, [photos])
    assert counts(summary) == (4, 0, 0, 0)
    assert summary.skipped == () and not summary.interrupted
    assert first(collection, "something yellow") == "yellow.webp"
    assert first(collection, "红色的东西") == "red.png"


def test_a_second_run_opens_no_file(collection, photos, monkeypatch):
    index(collection, [photos])
    monkeypatch.setattr(Path, "read_bytes", lambda path: pytest.fail(f"opened {path}"))
    assert counts(index(collection, [photos])) == (0, 0, 0, 4)
    assert embedded(collection) == 4


def test_a_second_run_leaves_open_searches_as_they_are(collection, photos):
    index(collection, [photos])
    engine = collection.engine()
    index(collection, [photos])
    assert collection.engine() is engine


def test_without_roots_the_known_ones_are_looked_at_again(collection, photos, picture):
    index(collection, [photos])
    picture(photos / "new.png", "purple")
    assert counts(index(collection, [])) == (1, 0, 0, 4)


def test_without_any_root_there_is_nothing_to_index(collection):
    with pytest.raises(IndexProblem, match="nothing to index: name a folder"):
        index(collection, [])


def test_a_renamed_file_keeps_its_vector(collection, photos):
    index(collection, [photos])
    (photos / "red.png").rename(photos / "rouge.png")
    assert counts(index(collection, [photos])) == (0, 1, 1, 3)
    assert embedded(collection) == 4
    assert first(collection, "red") == "rouge.png"


def test_a_copied_file_is_the_same_picture_in_two_places(collection, photos):
    index(collection, [photos])
    shutil.copy(photos / "red.png", photos / "trips" / "copy.png")
    assert counts(index(collection, [photos])) == (0, 1, 0, 4)
    result = collection.engine().search(Query("red", mode="cm", min_score=0.9))
    [record] = collection.catalog.images([hit.image_id for hit in result.hits]).values()
    assert [Path(path).name for path in record.paths] == ["red.png", "copy.png"]


def test_copies_that_arrive_together_are_embedded_once(collection, photos):
    shutil.copy(photos / "red.png", photos / "red2.png")
    assert counts(index(collection, [photos])) == (4, 1, 0, 0)
    assert embedded(collection) == 4


def test_two_files_that_swap_names_are_not_embedded_again(collection, photos):
    index(collection, [photos])
    (photos / "red.png").rename(photos / "tmp")
    (photos / "blue.png").rename(photos / "red.png")
    (photos / "tmp").rename(photos / "blue.png")
    index(collection, [photos])
    assert embedded(collection) == 4
    assert first(collection, "red") == "blue.png"


def test_a_deleted_file_leaves_the_index(collection, photos):
    index(collection, [photos])
    (photos / "red.png").unlink()
    assert counts(index(collection, [photos])) == (0, 0, 1, 3)
    assert len(collection.engine().search(Query("red")).hits) == 3


def test_a_changed_file_replaces_its_picture(collection, photos, picture):
    index(collection, [photos])
    picture(photos / "red.png", "purple", size=32)
    assert counts(index(collection, [photos])) == (1, 0, 0, 3)
    assert first(collection, "purple") == "red.png"
    assert collection.stats().images == 4


def test_a_file_that_became_broken_leaves_the_index_and_is_named(collection, photos):
    index(collection, [photos])
    (photos / "red.png").write_bytes(b"oops")
    [skipped] = index(collection, [photos]).skipped
    assert skipped.path.endswith("red.png")
    assert collection.stats().images == 3


def test_only_files_under_the_given_roots_are_removed(collection, photos, picture, tmp_path):
    other = tmp_path / "other"
    picture(other / "white.png", "white")
    index(collection, [photos, other])
    shutil.rmtree(other)
    assert counts(index(collection, [photos])) == (0, 0, 0, 4)
    assert "white.png" in paths(collection)


def test_a_root_that_is_gone_changes_nothing(collection, photos):
    index(collection, [photos])
    photos.rename(photos.with_name("moved"))
    with pytest.raises(RootUnavailable, match="is not there"):
        index(collection, [])
    assert len(paths(collection)) == 4


def test_a_root_that_is_suddenly_empty_changes_nothing(collection, photos):
    index(collection, [photos])
    shutil.rmtree(photos)
    photos.mkdir()
    with pytest.raises(RootUnavailable, match="holds no pictures, but the index knows 4 there"):
        index(collection, [photos])
    assert len(paths(collection)) == 4


def test_a_root_that_is_really_empty_can_be_rebuilt(collection, photos):
    index(collection, [photos])
    shutil.rmtree(photos)
    photos.mkdir()
    assert index(collection, [photos], IndexOptions(rebuild=True)).removed == 4


def test_rebuilding_one_root_does_not_excuse_another_for_being_empty(
    collection, photos, picture, tmp_path
):
    picture(tmp_path / "usb" / "white.png", "white")
    index(collection, [photos, tmp_path / "usb"])
    (tmp_path / "usb" / "white.png").unlink()
    with pytest.raises(RootUnavailable, match="usb holds no pictures"):
        index(collection, [photos], IndexOptions(rebuild=True))


def test_pictures_in_a_folder_that_cannot_be_read_stay(collection, photos, monkeypatch):
    index(collection, [photos])
    listing = os.scandir

    def deny(folder):
        if str(folder).endswith("trips"):
            raise PermissionError(13, "Permission denied")
        return listing(folder)

    monkeypatch.setattr(scanning.os, "scandir", deny)
    summary = index(collection, [photos])
    assert summary.removed == 0
    assert [one.reason for one in summary.skipped] == ["folder cannot be read: Permission denied"]
    assert "yellow.webp" in paths(collection)


def test_excluded_files_are_not_indexed_and_leave_if_they_were(collection, photos):
    index(collection, [photos])
    summary = index(collection, [photos], IndexOptions(exclude=("trips",)))
    assert counts(summary) == (0, 0, 1, 3)


def test_an_index_inside_the_folder_is_not_indexed(fake_model, photos):
    with Collection.create(photos / "index", fake_model) as collection:
        index(collection, [photos])
        (photos / "index" / "thumbnails").mkdir()
        shutil.copy(photos / "red.png", photos / "index" / "thumbnails" / "t.png")
        assert counts(index(collection, [photos])) == (0, 0, 0, 4)


def test_roots_inside_known_roots_are_not_remembered_twice(collection, photos):
    index(collection, [photos / "trips"])
    index(collection, [photos])
    index(collection, [photos / "trips"])
    assert collection.stats().roots == (str(photos),)


# Captions


def test_sidecar_captions_are_read_and_searched(collection, photos):
    (photos / "blue.txt").write_text("a cat\n一只狗", encoding="utf-8")
    assert index(collection, [photos]).captions_added == 2
    assert captions(collection) == [("a cat", "en", "sidecar"), ("一只狗", "zh", "sidecar")]
    assert first(collection, "犬がいる", mode="cl") == "blue.png"


def test_a_caption_written_later_is_noticed_without_opening_the_picture(collection, photos):
    index(collection, [photos])
    (photos / "blue.png.json").write_text('{"caption": "a cat"}')
    summary = index(collection, [photos])
    assert (counts(summary), summary.captions_added) == ((0, 0, 0, 4), 1)
    assert embedded(collection) == 4
    assert first(collection, "cat", mode="cl") == "blue.png"


def test_an_edited_caption_replaces_the_old_one(collection, photos):
    (photos / "blue.txt").write_text("a cat\na dog")
    index(collection, [photos])
    (photos / "blue.txt").write_text("a dog\na house by the sea")
    assert index(collection, [photos]).captions_added == 1
    assert [text for text, _, _ in captions(collection)] == ["a dog", "a house by the sea"]


def test_a_removed_sidecar_takes_its_captions_along(collection, photos):
    (photos / "blue.txt").write_text("a cat")
    index(collection, [photos])
    (photos / "blue.txt").unlink()
    index(collection, [photos])
    assert captions(collection) == []


def test_a_sidecar_moves_with_its_renamed_picture(collection, photos):
    (photos / "blue.txt").write_text("a cat")
    index(collection, [photos])
    (photos / "blue.png").rename(photos / "azure.png")
    (photos / "blue.txt").rename(photos / "azure.txt")
    index(collection, [photos])
    assert captions(collection) == [("a cat", "en", "sidecar")]
    assert first(collection, "cat", mode="cl") == "azure.png"


def test_a_deleted_copy_takes_only_its_own_sidecar_along(collection, photos):
    shutil.copy(photos / "blue.png", photos / "copy.png")
    (photos / "blue.txt").write_text("a cat")
    (photos / "copy.txt").write_text("a dog")
    index(collection, [photos])
    (photos / "copy.png").unlink()
    index(collection, [photos])
    assert captions(collection) == [("a cat", "en", "sidecar")]


def test_a_broken_sidecar_is_named_every_time_and_its_picture_is_indexed(collection, photos):
    (photos / "blue.json").write_text("{oops")
    for _ in range(2):
        [skipped] = index(collection, [photos]).skipped
        assert skipped.path.endswith("blue.json") and "not json" in skipped.reason
    assert "blue.png" in paths(collection)


def test_a_caption_the_model_does_not_understand_is_kept_without_a_vector(collection, photos):
    (photos / "blue.txt").write_text("zyzzyva")
    (photos / "red.json").write_text('{"caption": "un chat", "language": "fr"}')
    index(collection, [photos])
    assert captions(collection) == [("un chat", "fr", "sidecar"), ("zyzzyva", "en", "sidecar")]
    assert len(collection.index_of("captions")) == 0


def test_embedded_metadata_becomes_captions_tags_and_dates(collection, photos):
    import piexif

    exif = {
        "0th": {
            piexif.ImageIFD.ImageDescription: b"a green tree",
            0x9C9E: "tree;park".encode("utf-16-le"),
        },
        "Exif": {piexif.ExifIFD.DateTimeOriginal: b"2024:05:01 10:00:00"},
    }
    piexif.insert(piexif.dump(exif), str(photos / "green.jpg"))
    index(collection, [photos])
    assert captions(collection) == [("a green tree", "en", "exif")]
    [tagged] = collection.catalog.select(Filters(tags=("tree", "park")))
    assert collection.catalog.images([tagged])[tagged].taken_at.year == 2024


def test_a_captions_file_names_pictures_by_path_or_by_name(collection, photos, tmp_path):
    table = tmp_path / "captions.csv"
    rows = ("red.png,a car", "2024/yellow.webp,bread", "photos/blue.png,the sea", "no.png,a dog")
    table.write_text("\n".join(("file,caption", *rows)))
    summary = index(collection, [photos], IndexOptions(captions=(table,)))
    assert summary.captions_added == 3
    assert [one.reason for one in summary.skipped] == [
        "1 of 4 captions name no picture of this index"
    ]
    assert first(collection, "パン", mode="cl") == "yellow.webp"
    assert first(collection, "一辆车", mode="cl") == "red.png"
    assert first(collection, "the sea", mode="cl") == "blue.png"


def test_a_captions_file_read_again_replaces_what_it_said(collection, photos, tmp_path):
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\nred.png,a car\nred.png,a house\n")
    index(collection, [photos], IndexOptions(captions=(table,)))
    table.write_text("file,caption\nred.png,a house\nblue.png,the sea\n")
    assert index(collection, [photos], IndexOptions(captions=(table,))).captions_added == 1
    assert [text for text, _, _ in captions(collection)] == ["a house", "the sea"]
    index(collection, [photos])
    assert [text for text, _, _ in captions(collection)] == ["a house", "the sea"]


def test_a_name_that_several_pictures_have_is_not_guessed(collection, picture, tmp_path):
    picture(tmp_path / "p" / "one" / "a.png", "red")
    picture(tmp_path / "p" / "two" / "a.png", "blue")
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\na.png,a car\ntwo/a.png,the sea\n")
    index(collection, [tmp_path / "p"], IndexOptions(captions=(table,)))
    assert [text for text, _, _ in captions(collection)] == ["the sea"]


def test_coco_captions_are_found_across_languages(collection, photos, tmp_path):
    coco = tmp_path / "coco.json"
    coco.write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "red.png"}],
                "annotations": [{"image_id": 1, "caption": "一只猫和一只狗"}],
            }
        )
    )
    index(collection, [photos], IndexOptions(captions=(coco,)))
    assert first(collection, "a cat and a dog", mode="cl") == "red.png"
    hit = collection.engine().search(Query("cat dog", mode="cl")).hits[0]
    assert hit.contributions.caption == Caption("一只猫和一只狗", "zh", "coco")


def test_a_broken_captions_file_stops_the_run_before_it_begins(collection, photos, tmp_path):
    (tmp_path / "c.csv").write_text("nothing\n")
    with pytest.raises(InvalidCaptions):
        index(collection, [photos], IndexOptions(captions=(tmp_path / "c.csv",)))
    assert paths(collection) == []


# Progress, stopping, batches


def test_progress_counts_the_files_to_do(collection, photos):
    seen: list[Progress] = []
    index(collection, [photos], progress=seen.append)
    embeds = [one for one in seen if one.stage == "embed"]
    assert [(one.done, one.total) for one in embeds] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert Path(embeds[0].current).name == "blue.png"
    assert seen[0] == Progress("scan", 0, None)


def test_pictures_go_through_the_model_in_batches(collection, photos):
    index(collection, [photos], IndexOptions(batch_size=3))
    assert collection.model.image.batches == [3, 1]


def test_stopping_keeps_the_batch_in_flight_and_the_next_run_does_the_rest(collection, photos):
    stop = threading.Event()

    def after_the_second(progress: Progress) -> None:
        if progress.stage == "embed" and progress.done == 2:
            stop.set()

    summary = index(collection, [photos], IndexOptions(), after_the_second, stop)
    assert summary.interrupted and counts(summary) == (2, 0, 0, 0)
    assert counts(index(collection, [photos])) == (2, 0, 0, 2)
    assert embedded(collection) == 4


def test_a_stopped_run_removes_nothing(collection, photos, picture):
    index(collection, [photos])
    (photos / "red.png").unlink()
    picture(photos / "new.png", "purple")
    stop = threading.Event()
    stop.set()
    assert counts(index(collection, [photos], stop=stop)) == (0, 0, 0, 3)
    assert "red.png" in paths(collection)


def test_a_model_that_fails_is_an_error_and_earlier_batches_stay(collection, photos, monkeypatch):
    features = type(collection.model.image).features
    calls = []

    def fail_on_the_second(self, pixels):
        calls.append(len(pixels))
        if len(calls) == 2:
            raise RuntimeError("out of memory")
        return features(self, pixels)

    monkeypatch.setattr(type(collection.model.image), "features", fail_on_the_second)
    with pytest.raises(RuntimeError, match="out of memory"):
        index(collection, [photos], IndexOptions(batch_size=2))
    assert len(paths(collection)) == 2


# Other models


def test_another_model_is_refused_without_rebuild(tmp_path, photos, make_model):
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [photos])
    with Collection.create(tmp_path / "index", make_model(turn=1)) as collection:
        with pytest.raises(ModelMismatch, match=r"built with fake@.*, this is fake-1@.*--rebuild"):
            index(collection, [photos])
        with pytest.raises(ModelMismatch):
            collection.engine()


def test_another_projection_needs_no_photo(tmp_path, photos, make_model, monkeypatch):
    (photos / "blue.txt").write_text("a cat")
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [photos])
    new = make_model(turn=1)
    monkeypatch.setattr("capsearch.indexer.prepare.opened", lambda *_: pytest.fail("decoded"))
    with Collection.create(tmp_path / "index", new) as collection:
        assert counts(index(collection, [], IndexOptions(rebuild=True))) == (0, 0, 0, 4)
        assert new.image.embedded == 0
        assert first(collection, "red") == "red.png"
        assert first(collection, "cat", mode="cl") == "blue.png"
        assert collection.stats().model == "fake-1"


def test_another_backbone_looks_at_every_photo_again(tmp_path, photos, make_model):
    (photos / "blue.txt").write_text("a cat")
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [photos])
    new = make_model(backbone="other")
    with Collection.create(tmp_path / "index", new) as collection:
        assert counts(index(collection, [], IndexOptions(rebuild=True))) == (4, 0, 0, 0)
        assert first(collection, "red") == "red.png"
        assert captions(collection) == [("a cat", "en", "sidecar")]
        assert collection.stats().backbone == "other"


def test_rebuilding_with_the_same_model_starts_afresh(collection, photos):
    index(collection, [photos])
    assert counts(index(collection, [], IndexOptions(rebuild=True))) == (4, 0, 0, 0)
    assert embedded(collection) == 8


def test_a_stopped_rebuild_goes_on_where_it_was(tmp_path, photos, make_model):
    with Collection.create(tmp_path / "index", make_model()) as collection:
        index(collection, [photos])
    new, stop = make_model(backbone="other"), threading.Event()

    def after_the_first(progress: Progress) -> None:
        if progress.stage == "embed":
            stop.set()

    again = IndexOptions(rebuild=True)
    with Collection.create(tmp_path / "index", new) as collection:
        assert index(collection, [], again, after_the_first, stop).added == 1
        assert index(collection, [], again).added == 3
    assert new.image.embedded == 4


def test_captions_by_people_and_models_survive_a_rebuild(collection, photos):
    index(collection, [photos])
    [image_id] = [hit.image_id for hit in collection.engine().search(Query("red", limit=1)).hits]
    collection.catalog.connection.execute(
        "INSERT INTO captions (image_id, text, language, source, origin) "
        "VALUES (?, 'a flower', 'en', 'model:trio', '')",
        (image_id,),
    )
    index(collection, [], IndexOptions(rebuild=True))
    assert first(collection, "flower", mode="cl") == "red.png"
