"""Indexing captions: from sidecars, metadata and captions files."""

from __future__ import annotations

import json
import shutil

import pytest
from image_bytes import exif
from index_contents import captions, counts, embedded, first, paths
from PIL import ExifTags, Image

from capsearch.engine.errors import InvalidCaptions
from capsearch.engine.query import Query
from capsearch.engine.records import Caption, Filters
from capsearch.indexer.pipeline import IndexOptions, index


def test_sidecar_captions_are_read_and_searched(collection, image_folder):
    (image_folder / "blue.txt").write_text("a cat\n一只狗", encoding="utf-8")
    assert index(collection, [image_folder]).captions_added == 2
    assert captions(collection) == [("a cat", "en", "sidecar"), ("一只狗", "zh", "sidecar")]
    assert first(collection, "犬がいる", mode="cl") == "blue.png"


def test_a_caption_written_later_is_noticed_without_opening_the_image(collection, image_folder):
    index(collection, [image_folder])
    (image_folder / "blue.png.json").write_text('{"caption": "a cat"}')
    summary = index(collection, [image_folder])
    assert (counts(summary), summary.captions_added) == ((0, 0, 0, 4), 1)
    assert embedded(collection) == 4
    assert first(collection, "cat", mode="cl") == "blue.png"


def test_an_edited_caption_replaces_the_old_one(collection, image_folder):
    (image_folder / "blue.txt").write_text("a cat\na dog")
    index(collection, [image_folder])
    (image_folder / "blue.txt").write_text("a dog\na house by the sea")
    assert index(collection, [image_folder]).captions_added == 1
    assert [text for text, _, _ in captions(collection)] == ["a dog", "a house by the sea"]


def test_a_removed_sidecar_removes_its_captions(collection, image_folder):
    (image_folder / "blue.txt").write_text("a cat")
    index(collection, [image_folder])
    (image_folder / "blue.txt").unlink()
    index(collection, [image_folder])
    assert captions(collection) == []


def test_a_sidecar_moves_with_its_renamed_image(collection, image_folder):
    (image_folder / "blue.txt").write_text("a cat")
    index(collection, [image_folder])
    (image_folder / "blue.png").rename(image_folder / "azure.png")
    (image_folder / "blue.txt").rename(image_folder / "azure.txt")
    index(collection, [image_folder])
    assert captions(collection) == [("a cat", "en", "sidecar")]
    assert first(collection, "cat", mode="cl") == "azure.png"


def test_a_deleted_copy_removes_only_its_own_sidecar_captions(collection, image_folder):
    shutil.copy(image_folder / "blue.png", image_folder / "copy.png")
    (image_folder / "blue.txt").write_text("a cat")
    (image_folder / "copy.txt").write_text("a dog")
    index(collection, [image_folder])
    (image_folder / "copy.png").unlink()
    index(collection, [image_folder])
    assert captions(collection) == [("a cat", "en", "sidecar")]


def test_a_broken_sidecar_is_reported_every_time_and_its_image_is_indexed(collection, image_folder):
    (image_folder / "blue.json").write_text("{oops")
    for _ in range(2):
        [skipped] = index(collection, [image_folder]).skipped
        assert skipped.path.endswith("blue.json") and "not json" in skipped.reason
    assert "blue.png" in paths(collection)


def test_a_caption_without_known_tokens_is_stored_without_a_vector(collection, image_folder):
    (image_folder / "blue.txt").write_text("zyzzyva")
    (image_folder / "red.json").write_text('{"caption": "un chat", "language": "fr"}')
    index(collection, [image_folder])
    assert captions(collection) == [("un chat", "fr", "sidecar"), ("zyzzyva", "en", "sidecar")]
    assert collection.catalog.array("captions").rows == 0
    assert not collection.backend.stats().captioned


def test_a_caption_in_a_language_that_no_model_reads_is_stored_and_not_encoded(
    collection, image_folder
):
    """Issue 11, 10: German was labelled en and encoded as English."""
    (image_folder / "blue.txt").write_text("ein cat und ein dog\n고양이 한 마리", encoding="utf-8")
    index(collection, [image_folder])
    assert captions(collection) == [
        ("ein cat und ein dog", "de", "sidecar"),
        ("고양이 한 마리", "ko", "sidecar"),
    ]
    assert not collection.backend.stats().captioned


def test_embedded_metadata_becomes_captions_tags_and_dates(collection, image_folder):
    main = {
        ExifTags.Base.ImageDescription: b"a green tree",
        ExifTags.Base.XPKeywords: "tree;park".encode("utf-16-le"),
    }
    sub = {ExifTags.Base.DateTimeOriginal: "2024:05:01 10:00:00"}
    with Image.open(image_folder / "green.jpg") as green:
        green.save(image_folder / "green.jpg", exif=exif(main, sub))
    index(collection, [image_folder])
    assert captions(collection) == [("a green tree", "en", "exif")]
    [tagged] = collection.backend.newest(Filters(tags=("tree", "park")), 9)
    assert tagged.record.taken_at.year == 2024


def test_a_captions_file_names_images_by_path_or_by_file_name(collection, image_folder, tmp_path):
    table = tmp_path / "captions.csv"
    rows = ("red.png,a car", "2024/yellow.webp,bread", "images/blue.png,the sea", "no.png,a dog")
    table.write_text("\n".join(("file,caption", *rows)))
    summary = index(collection, [image_folder], IndexOptions(captions=(table,)))
    assert summary.captions_added == 3
    assert [skipped.reason for skipped in summary.skipped] == [
        "1 of 4 captions name no image of this index"
    ]
    assert first(collection, "パン", mode="cl") == "yellow.webp"
    assert first(collection, "一辆车", mode="cl") == "red.png"
    assert first(collection, "the sea", mode="cl") == "blue.png"


def test_a_captions_file_read_again_replaces_its_captions(collection, image_folder, tmp_path):
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\nred.png,a car\nred.png,a house\n")
    index(collection, [image_folder], IndexOptions(captions=(table,)))
    table.write_text("file,caption\nred.png,a house\nblue.png,the sea\n")
    assert index(collection, [image_folder], IndexOptions(captions=(table,))).captions_added == 1
    assert [text for text, _, _ in captions(collection)] == ["a house", "the sea"]
    index(collection, [image_folder])
    assert [text for text, _, _ in captions(collection)] == ["a house", "the sea"]


def test_a_file_name_of_several_images_stays_unmatched(collection, image, tmp_path):
    image(tmp_path / "p" / "one" / "a.png", "red")
    image(tmp_path / "p" / "two" / "a.png", "blue")
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\na.png,a car\ntwo/a.png,the sea\n")
    index(collection, [tmp_path / "p"], IndexOptions(captions=(table,)))
    assert [text for text, _, _ in captions(collection)] == ["the sea"]


def test_coco_captions_are_found_across_languages(collection, image_folder, tmp_path):
    coco = tmp_path / "coco.json"
    coco.write_text(
        json.dumps(
            {
                "images": [{"id": 1, "file_name": "red.png"}],
                "annotations": [{"image_id": 1, "caption": "一只猫和一只狗"}],
            }
        )
    )
    index(collection, [image_folder], IndexOptions(captions=(coco,)))
    assert first(collection, "a cat and a dog", mode="cl") == "red.png"
    hit = collection.engine().search(Query("cat dog", mode="cl")).hits[0]
    assert hit.contributions.caption == Caption("一只猫和一只狗", "zh", "coco")


def test_a_broken_captions_file_stops_the_run_before_any_change(collection, image_folder, tmp_path):
    (tmp_path / "c.csv").write_text("nothing\n")
    with pytest.raises(InvalidCaptions):
        index(collection, [image_folder], IndexOptions(captions=(tmp_path / "c.csv",)))
    assert paths(collection) == []


def test_junk_and_bylines_are_no_captions_but_stay_findable_as_words(collection, image_folder):
    """issue 12, 4; issue 11, 18."""
    header = Image.Exif()
    header[0x010E] = "OLYMPUS DIGITAL CAMERA"
    Image.new("RGB", (16, 16), "purple").save(image_folder / "p.jpg", exif=header)
    index(collection, [image_folder])
    [(image_id,)] = collection.catalog.rows("SELECT image_id FROM files WHERE path LIKE '%/p.jpg'")
    document = collection.backend.lookup([image_id])[image_id]
    assert document.captions == ()
    assert document.metadata["description"] == "OLYMPUS DIGITAL CAMERA"
    assert document.metadata["taken_from"] == "file"
    sql = "SELECT id FROM images JOIN words ON words.rowid = number WHERE words MATCH 'olympus'"
    assert collection.catalog.rows(sql) == [(image_id,)]
