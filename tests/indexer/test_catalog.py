"""SqliteCatalog: readers, threads, transactions and schema numbers."""

from __future__ import annotations

import sqlite3
import threading

import pytest
from document_contract import DOCUMENTS, VECTOR, A
from embedded_toys import change, collection_of, leave

from capsearch.engine.errors import IndexProblem, NotAnIndex, SchemaTooNew
from capsearch.indexer.sources.scan import under
from capsearch.indexer.sqlite.catalog import SqliteCatalog
from capsearch.indexer.sqlite.schema import SCHEMA, connect
from capsearch.indexer.sqlite.writer import CatalogWriter


@pytest.fixture
def collection(tmp_path):
    documents = {document.record.id: VECTOR for document in DOCUMENTS}
    with collection_of(tmp_path / "index", DOCUMENTS, documents, ()) as opened:
        yield opened


@pytest.fixture
def catalog(collection):
    return collection.catalog


def test_a_reader_reads_what_a_writer_committed(catalog):
    reader = SqliteCatalog(catalog.folder / "catalog.sqlite")
    assert set(reader.images([A])) == {A}
    reader.close()


def test_a_reader_cannot_write(catalog):
    reader = SqliteCatalog(catalog.folder / "catalog.sqlite")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        reader.connection.execute("DELETE FROM images")
    reader.close()


def test_several_threads_may_read_at_once(catalog):
    counts: list[int] = []
    threads = [
        threading.Thread(target=lambda: counts.append(len(catalog.images([A])))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts == [1] * 8


def test_a_failed_transaction_changes_nothing(catalog):
    writer, before = CatalogWriter(catalog), catalog.revision()
    with pytest.raises(RuntimeError), writer.transaction():
        catalog.connection.execute("DELETE FROM files WHERE path = '/p/a.jpg'")
        raise RuntimeError
    assert len(catalog.images([A])[A].paths) == 2
    assert catalog.revision() == before


def test_only_changes_raise_the_revision(collection, catalog):
    before = catalog.revision()
    change(collection, A, lambda document: document.leave("/nowhere.jpg"))
    assert catalog.revision() == before
    leave(collection, "/p/a.jpg")
    assert catalog.revision() == before + 1


def test_an_image_without_files_is_not_returned_and_is_deleted_with_its_captions(
    collection, catalog
):
    for path in ("/p/a.jpg", "/p/copies/a.jpg"):
        leave(collection, path)
    assert catalog.images([A]) == {}
    writer = CatalogWriter(catalog)
    with writer.transaction():
        assert writer.prune(days=0) == 1
    assert catalog.rows("SELECT count(*) FROM captions WHERE image_id = ?", (A,)) == [(0,)]
    assert catalog.rows("SELECT count(*) FROM tags WHERE image_id = ?", (A,)) == [(0,)]


def test_a_file_of_an_unknown_image_is_refused_by_the_database(tmp_path):
    catalog = SqliteCatalog(tmp_path / "catalog.sqlite", write=True)
    with pytest.raises(sqlite3.IntegrityError), CatalogWriter(catalog).transaction():
        catalog.connection.execute("INSERT INTO files VALUES ('/p/x.jpg', 'unknown', 1, 1, '')")


def test_a_new_catalog_has_this_schema(tmp_path):
    connection = connect(tmp_path / "catalog.sqlite", write=True)
    assert connection.execute("PRAGMA user_version").fetchone() == (SCHEMA,)
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_database_of_something_else_is_no_catalog(tmp_path):
    connection = sqlite3.connect(tmp_path / "catalog.sqlite")
    connection.execute("CREATE TABLE images (id TEXT)")
    connection.close()
    with pytest.raises(NotAnIndex, match="a database of something else"):
        connect(tmp_path / "catalog.sqlite", write=True)


@pytest.mark.parametrize("write", [False, True])
def test_a_newer_schema_is_refused_politely(tmp_path, write):
    path = tmp_path / "catalog.sqlite"
    connection = connect(path, write=True)
    connection.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    connection.close()
    with pytest.raises(SchemaTooNew, match=f"schema {SCHEMA + 1}, this .* reads {SCHEMA}; upgrade"):
        connect(path, write)


def test_a_file_that_is_no_database_is_an_index_problem(tmp_path):
    (tmp_path / "catalog.sqlite").write_bytes(b"no database " * 100)
    with pytest.raises(IndexProblem, match="cannot be opened"):
        connect(tmp_path / "catalog.sqlite", write=True)


def test_the_range_under_a_folder_ends_before_its_siblings():
    low, high = under("/a/b")
    assert low <= "/a/b/c.jpg" < high
    assert not low <= "/a/b.jpg" < high
    assert not low <= "/a/bc/d.jpg" < high
