"""What people wrote survives edits, moves and drives that are not mounted."""

from __future__ import annotations

import shutil

import pytest
from index_contents import captions, counts, embedded, first, paths
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from capsearch.engine.query import Query
from capsearch.indexer.pipeline import IndexOptions, index


def edit(path) -> None:
    """Changes the metadata of a PNG, and with it its content id."""
    info = PngInfo()
    info.add_text("edited", "yes")
    with Image.open(path) as opened:
        opened.save(path, pnginfo=info)


@pytest.fixture
def table(tmp_path):
    path = tmp_path / "captions.csv"
    path.write_text("file,caption\nred.png,a car\n")
    return path


@pytest.fixture
def captioned(collection, image_folder, table):
    index(collection, [image_folder], IndexOptions(captions=(table,)))
    return collection


def test_captions_follow_an_edited_file(captioned, image_folder, table):
    """Issue 11, 2: new EXIF made a new id, and the captions of --captions were lost."""
    table.unlink()
    edit(image_folder / "red.png")
    summary = index(captioned, [])
    assert counts(summary) == (1, 0, 0, 3)
    assert first(captioned, "car", mode="cl") == "red.png"
    assert captioned.stats().images == 4


def test_captions_follow_a_file_that_was_gone_for_a_while(captioned, image_folder, table, image):
    """Issue 11, 2: editors delete and write anew, and a run may come in between."""
    table.unlink()
    shutil.move(image_folder / "red.png", image_folder.parent / "red.png")
    index(captioned, [])
    shutil.move(image_folder.parent / "red.png", image_folder / "red.png")
    edit(image_folder / "red.png")
    index(captioned, [])
    assert first(captioned, "car", mode="cl") == "red.png"


def test_captions_by_hand_and_their_tags_follow_too(captioned, image_folder):
    """Issue 11, 2."""
    write = captioned.catalog.connection.execute
    sql = "SELECT image_id FROM files WHERE path LIKE '%blue.png'"
    [(blue,)] = captioned.catalog.rows(sql)
    write(
        "INSERT INTO captions (image_id, text, language, source, origin) "
        "VALUES (?, 'a flower', 'en', 'hand', ''), (?, 'a dog', 'en', 'model:m', '')",
        (blue, blue),
    )
    write("INSERT INTO tags VALUES (?, 'holiday', 'en', 1.0, 'hand', '')", (blue,))
    edit(image_folder / "blue.png")
    index(captioned, [])
    [(new,)] = captioned.catalog.rows(sql)
    assert new != blue
    [document] = captioned.backend.lookup([new]).values()
    assert [caption.text for caption in document.captions] == ["a flower"]
    assert [tag.label for tag in document.tags] == ["holiday"]


def test_known_content_keeps_its_own_captions(captioned, image_folder, table):
    """Two files that swap names: captions belong to the content, not to the name."""
    table.unlink()
    (image_folder / "red.png").rename(image_folder / "tmp")
    (image_folder / "blue.png").rename(image_folder / "red.png")
    (image_folder / "tmp").rename(image_folder / "blue.png")
    index(captioned, [])
    hits = captioned.engine().search(Query("car", mode="cl")).hits
    assert [hit.record.path.rpartition("/")[2] for hit in hits] == ["blue.png"]


def test_a_deleted_file_that_returns_has_everything_at_once(captioned, image_folder, table):
    """Issue 11, 2: the vectors were thrown away, too."""
    (image_folder / "red.txt").write_text("a house")
    index(captioned, [])
    table.unlink()
    for name in ("red.png", "red.txt"):
        shutil.move(image_folder / name, image_folder.parent / name)
    summary = index(captioned, [])
    assert (summary.removed, summary.missing) == (1, 1)
    assert len(captioned.engine().search(Query("red")).hits) == 3
    for name in ("red.png", "red.txt"):
        shutil.move(image_folder.parent / name, image_folder / name)
    assert counts(index(captioned, [])) == (0, 1, 0, 3)
    assert embedded(captioned) == 4
    assert [text for text, _, _ in captions(captioned)] == ["a car", "a house"]
    assert first(captioned, "car", mode="cl") == "red.png"


def test_prune_deletes_what_is_known_of_missing_images(captioned, image_folder):
    """Issue 11, 2."""
    (image_folder / "red.png").unlink()
    assert (index(captioned, []).pruned, captioned.stats().missing) == (0, 1)
    summary = index(captioned, [], IndexOptions(prune=True))
    assert (summary.pruned, summary.missing, captions(captioned)) == (1, 0, [])


def test_images_are_kept_for_some_days_and_the_number_is_remembered(captioned, image_folder):
    """Issue 11, 2."""
    (image_folder / "red.png").unlink()
    assert index(captioned, [], IndexOptions(keep_missing=2)).missing == 1
    sql = "UPDATE images SET missing_since = '{}' WHERE missing_since IS NOT NULL"
    captioned.catalog.connection.execute(sql.format("2000-01-01T00:00:00+00:00"))
    assert index(captioned, []).pruned == 1
    (image_folder / "blue.png").unlink()
    assert index(captioned, [], IndexOptions(keep_missing=0)).pruned == 1


def test_a_captions_file_is_read_again_without_being_named(captioned, image_folder, table, image):
    """Issue 11, 2."""
    table.write_text("file,caption\nred.png,a car\nnew.png,a house\nblue.png,the sea\n")
    assert index(captioned, []).captions_added == 1
    image(image_folder / "new.png", "purple")
    assert index(captioned, []).captions_added == 1
    assert first(captioned, "house", mode="cl") == "new.png"
    assert captioned.stats().captions_files == (str(table),)


@pytest.mark.parametrize("broken", [False, True])
def test_a_captions_file_that_cannot_be_read_keeps_its_captions(captioned, table, broken):
    """Issue 11, 2."""
    table.write_text("nothing") if broken else table.unlink()
    [skipped] = index(captioned, []).skipped
    assert skipped.path == str(table) and "its captions are kept" in skipped.reason
    assert captions(captioned) == [("a car", "en", "csv")]


def test_images_of_missing_files_are_in_no_facet(captioned, image_folder):
    (image_folder / "trips" / "2024" / "yellow.webp").unlink()
    (image_folder / "red.png").unlink()
    index(captioned, [])
    facets = captioned.backend.facets()
    assert [(one.value, one.images) for one in facets.folders] == [(str(image_folder), 2)]
    assert facets.caption_languages == ()
    assert sorted(paths(captioned)) == ["blue.png", "green.jpg"]
