"""The cached images of captions: what it knows, what is looked up, and what changes leave right."""

from __future__ import annotations

import numpy as np
import pytest
from backend_contract import X, document, generated, said
from embedded_toys import add_caption, collection_of, set_slot

from capsearch.engine.evidence import SingleSource
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Filters
from capsearch.indexer.sqlite import matches, nearest, rebuilding, search
from capsearch.indexer.sqlite.catalog import SqliteCatalog
from capsearch.indexer.sqlite.matches import CaptionImages
from capsearch.indexer.sqlite.writer import CatalogWriter

NAMES = [f"i{n:02}" for n in range(20)]
CAPTIONS = [(one, said(f"{one} {n}"), X) for one in NAMES for n in range(2)]
EXPECTED = [at // 2 for at in range(40)]  # the image of each caption


@pytest.fixture(autouse=True)
def _many(monkeypatch):
    """Every file is large, and any caption is enough to write the cache again."""
    monkeypatch.setattr(nearest, "EXACT_ROWS", dict.fromkeys(nearest.EXACT_ROWS, 2))
    monkeypatch.setattr(matches, "_LACKING", 0)
    monkeypatch.setattr(matches, "_BLOCK", 7)


@pytest.fixture
def collection(tmp_path):
    documents = [document(one) for one in NAMES]
    with collection_of(tmp_path / "index", documents, dict.fromkeys(NAMES, X), CAPTIONS) as opened:
        yield opened


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """Statements that were executed."""
    statements: list[str] = []
    rows = SqliteCatalog.rows
    monkeypatch.setattr(
        SqliteCatalog,
        "rows",
        lambda self, sql, values=(): statements.append(sql) or rows(self, sql, values),
    )
    return statements


def opened(collection) -> CaptionImages:
    catalog = collection.catalog
    return CaptionImages(catalog, catalog.array("captions"), catalog.array("vectors"))


def images_of(collection, captions=range(40)) -> list[int]:
    return opened(collection).of(np.array(captions, np.int64)).tolist()


def path_of(collection):
    return collection.catalog.array("captions").images_path


def execute(collection, sql: str) -> None:
    with CatalogWriter(collection.catalog).transaction():
        collection.catalog.connection.execute(sql)


def add_captions(collection, count: int) -> None:
    """To the first image, in the next rows."""
    writer = CatalogWriter(collection.catalog)
    array = collection.catalog.array("captions")
    new = [said(f"new {array.rows + at}") for at in range(count)]
    for caption in new:
        add_caption(collection, NAMES[0], caption)
    with writer.transaction():
        writer.set_array(array.appended(np.zeros((count, array.width), np.float16)))
        for at in range(count):
            set_slot(collection, NAMES[0], new[at], array.rows + at)


def test_the_end_of_a_run_writes_the_image_of_each_caption(collection, asked):
    collection.finish()
    assert path_of(collection).name == "captions-1.images"
    cached = opened(collection)
    asked.clear()
    assert cached.of(np.arange(40)).tolist() == EXPECTED
    assert not asked


def test_without_a_cache_images_are_looked_up(collection):
    assert images_of(collection) == EXPECTED and not path_of(collection).exists()


def test_what_was_looked_up_is_kept(collection, asked):
    cached = opened(collection)
    for _ in range(2):
        assert cached.of(np.arange(40)).tolist() == EXPECTED
    assert sum("JOIN images" in sql for sql in asked) == 1


def test_captions_added_since_are_looked_up_and_join_the_file(collection, asked):
    matches.refresh(collection.catalog)
    add_captions(collection, 3)
    assert images_of(collection, range(43)) == [*EXPECTED, 0, 0, 0]
    asked.clear()
    matches.refresh(collection.catalog)
    assert [one for one in asked if "BETWEEN" in one and "BETWEEN 40 AND 42" not in one] == []
    assert len(opened(collection).known) == 43
    assert images_of(collection, range(43)) == [*EXPECTED, 0, 0, 0]


def test_few_captions_added_since_leave_the_file_as_it_is(collection, monkeypatch):
    matches.refresh(collection.catalog)
    monkeypatch.setattr(matches, "_LACKING", 3)
    written = path_of(collection).read_bytes()
    add_captions(collection, 3)
    matches.refresh(collection.catalog)
    assert path_of(collection).read_bytes() == written


def test_captions_deleted_before_belong_to_no_image(collection, asked):
    execute(collection, "DELETE FROM captions WHERE slot IN (4, 5)")
    matches.refresh(collection.catalog)
    cached = opened(collection)
    asked.clear()
    assert cached.of(np.array([3, 4, 5, 6])).tolist() == [1, -2, -2, 3]
    assert not asked


@pytest.mark.parametrize("change", ["DELETE FROM captions WHERE slot IN (4, 5)",
                                    "DELETE FROM images WHERE slot = 2"])  # fmt: skip
def test_what_was_deleted_since_is_not_found(collection, monkeypatch, change):
    monkeypatch.setattr(search, "MIN_DEPTH", 4)
    collection.finish()
    execute(collection, change)
    query = EncodedQuery(SingleSource("caption"), caption=X)
    found = [
        one.document.record.id
        for offset in range(0, 20, 5)
        for one in collection.backend.search(query, Filters(), 5, offset)
    ]
    assert found == [one for one in NAMES if one != "i02"]


def test_an_image_that_has_a_vector_only_later_is_looked_up(collection):
    execute(collection, "UPDATE images SET slot = NULL WHERE id = 'i07'")
    matches.refresh(collection.catalog)
    assert images_of(collection, [13, 14]) == [6, -2]
    execute(collection, "UPDATE images SET slot = 7 WHERE id = 'i07'")
    assert images_of(collection, [13, 14]) == [6, 7]


def test_the_cache_of_other_image_vectors_is_made_anew(collection):
    matches.refresh(collection.catalog)
    execute(collection, "DELETE FROM images WHERE slot < 10")
    slots = rebuilding.used_slots(collection.catalog, "images")
    rebuilding._drop_unused(collection, "images", ("vectors",), slots)
    assert collection.catalog.array("vectors").generation == 2
    for _ in range(2):
        assert images_of(collection) == [-2] * 20 + EXPECTED[:20]
        collection.finish()
    assert len(opened(collection).known) == 40


def test_whether_people_wrote_any_caption_is_known_of_those_in_the_file_and_later_ones(
    tmp_path, monkeypatch
):
    captions = [(one, generated(f"{one} {n}"), X) for one in NAMES for n in range(2)]
    path, documents = tmp_path / "index", [document(one) for one in NAMES]
    with collection_of(path, documents, dict.fromkeys(NAMES, X), captions) as models:
        assert opened(models).by_people  # without a cache, they may have
        matches.refresh(models.catalog)
        assert not opened(models).by_people
        add_captions(models, 2)
        assert opened(models).by_people  # too many to look up
        monkeypatch.setattr(matches, "_LACKING", 2)
        assert opened(models).by_people
        execute(models, "UPDATE captions SET source = 'model:m' WHERE slot >= 40")
        assert not opened(models).by_people


def test_where_people_wrote_one_caption_they_wrote_some(collection):
    execute(collection, "UPDATE captions SET source = 'model:m' WHERE slot != 17")
    matches.refresh(collection.catalog)
    assert opened(collection).by_people


@pytest.mark.parametrize("keep", [0, 10, 128, 131, -1, -4])
def test_a_file_that_is_cut_off_is_not_used(collection, keep):
    matches.refresh(collection.catalog)
    path_of(collection).write_bytes(path_of(collection).read_bytes()[:keep])
    assert not len(opened(collection).known)
    assert images_of(collection) == EXPECTED


@pytest.mark.parametrize("content", [b"something else", b"{}" * 200, b"\xff" * 288])
def test_a_file_of_something_else_is_not_used(collection, content):
    path_of(collection).write_bytes(content)
    assert images_of(collection) == EXPECTED


def test_damaged_entries_name_no_image_that_is_not_there(collection):
    matches.refresh(collection.catalog)
    content = path_of(collection).read_bytes()
    damaged = np.array([20, 2**31 - 1, -7], "<i4").tobytes()
    path_of(collection).write_bytes(content[:128] + damaged + content[140:])
    assert images_of(collection) == EXPECTED


def test_a_reader_of_an_earlier_state_does_not_use_the_later_file(collection):
    earlier = collection.catalog.array("captions")
    add_captions(collection, 3)
    matches.refresh(collection.catalog)
    catalog = collection.catalog
    assert not len(CaptionImages(catalog, earlier, catalog.array("vectors")).known)


def test_few_captions_have_a_cache_too(collection, monkeypatch):
    monkeypatch.setattr(nearest, "EXACT_ROWS", dict.fromkeys(nearest.EXACT_ROWS, 40))
    matches.refresh(collection.catalog)
    assert path_of(collection).exists() and images_of(collection) == EXPECTED


def test_an_index_without_captions_has_no_cache(tmp_path):
    with collection_of(tmp_path / "empty", [document("a")], {"a": X}, ()) as empty:
        matches.refresh(empty.catalog)
        assert not path_of(empty).exists()
        assert images_of(empty, []) == []


def test_former_caches_are_removed(collection):
    former = collection.path / "captions-9.images"
    old = collection.path / "captions-1.images"
    collection.finish()
    execute(collection, "UPDATE arrays SET generation = 2 WHERE name = 'captions'")
    rebuilding.remove_old_files(collection)
    assert not old.exists()
    former.write_bytes(b"of nobody")  # no writer has begun that generation
    rebuilding.remove_old_files(collection)
    assert former.exists()
