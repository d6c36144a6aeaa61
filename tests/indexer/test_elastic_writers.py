"""Several processes write to one collection, and are killed: nothing is lost or doubled."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import time
from itertools import count
from pathlib import Path

import pytest
from elastic_folders import many_images

from capsearch.engine.errors import IndexProblem
from capsearch.engine.query import Query
from capsearch.engine.records import Filters
from capsearch.indexer.elastic import collection as versions
from capsearch.indexer.elastic import writer as editing
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.collection import ElasticCollection
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection

pytestmark = [pytest.mark.elastic, pytest.mark.skipif(os.name == "nt", reason="needs fork")]
IMAGES, BATCH = 60, 4
_NUMBERS = count()


@pytest.fixture
def address(elastic_node, monkeypatch, tmp_path):
    for name, value in elastic_node.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = Address.parse(f"{elastic_node.url}/writers-{next(_NUMBERS)}")
    yield made
    versions.drop(connect(made), made)


@pytest.fixture
def folder(tmp_path) -> Path:
    return many_images(tmp_path / "many", IMAGES)


def write(address: Address, roots: list[Path], model, log: Path) -> None:
    """Runs in a forked process."""
    with ElasticCollection.create(str(address), model, replicas=0) as collection:
        options = IndexOptions(batch_size=BATCH, decode_threads=1)
        summary = index(collection, roots, options, lambda one: log.open("a").write(one.stage[:1]))
    log.with_suffix(".added").write_text(str(summary.added))


def start(address: Address, roots: list[Path], model, log: Path) -> multiprocessing.Process:
    log.touch()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=write, args=(address, roots, model, log))
    process.start()
    return process


def documents(collection) -> dict[str, object]:
    return {one.record.id: one for one in collection.backend.newest(Filters(), 1000)}


def expected(folder: Path, model, tmp_path: Path) -> dict[str, object]:
    with Collection.create(tmp_path / "embedded", model) as collection:
        index(collection, [folder])
        return documents(collection)


def test_two_writers_of_overlapping_folders_lose_and_double_nothing(
    address, folder, fake_model, tmp_path
):
    """They also create the collection at the same time, and meet at copies of the same images."""
    for path in sorted((folder / "a").glob("*.png"))[:6]:
        shutil.copyfile(path, folder / "b" / f"copy-of-{path.name}")
    writers = [
        start(address, roots, fake_model, tmp_path / f"{n}.log")
        for n, roots in enumerate([[folder], [folder / "a", folder / "b"]])
    ]
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    with ElasticCollection.open(str(address), fake_model) as opened:
        assert documents(opened) == expected(folder, fake_model, tmp_path)
        assert len(opened.backend) == IMAGES
        assert opened.roots() == (folder,)
        assert len(opened.engine().search(Query("red car", limit=2 * IMAGES)).hits) <= IMAGES
    settings = connect(address).indices.get_settings(index=f"{address.name}-v1").body
    assert "refresh_interval" not in settings[f"{address.name}-v1"]["settings"]["index"]


def test_a_killed_writer_loses_its_batch_and_the_next_one_restores_the_settings(
    address, folder, fake_model, tmp_path
):
    log = tmp_path / "killed.log"
    killed = start(address, [folder], fake_model, log)
    while log.read_text().count("e") < IMAGES // 2 and killed.is_alive():
        time.sleep(0.01)
    killed.kill()
    killed.join()
    assert killed.exitcode == -9
    client, version = connect(address), f"{address.name}-v1"
    settings = client.indices.get_settings(index=version)[version]["settings"]["index"]
    assert settings["refresh_interval"] == "31s"
    client.indices.refresh(index=version)
    kept = client.count(index=version)["count"]
    assert 0 < kept < IMAGES
    again = start(address, [folder], fake_model, tmp_path / "again.log")
    again.join()
    assert int((tmp_path / "again.added").read_text()) == IMAGES - kept
    with ElasticCollection.open(str(address), fake_model) as opened:
        assert documents(opened) == expected(folder, fake_model, tmp_path)
    settings = client.indices.get_settings(index=version)[version]["settings"]["index"]
    assert "refresh_interval" not in settings


def test_a_document_that_others_keep_changing_is_an_error_that_says_so(
    address, image_folder, fake_model, monkeypatch
):
    with ElasticCollection.create(str(address), fake_model, replicas=0) as collection:
        index(collection, [image_folder])
        send = editing.ElasticWriter.send

        def refused(self, actions):
            return ((action["_id"], False) for action in list(actions))

        monkeypatch.setattr(editing.ElasticWriter, "send", refused)
        monkeypatch.setattr(editing, "ATTEMPTS", 3)
        (image_folder / "red.png").unlink()
        with pytest.raises(IndexProblem, match="other writers keep changing"):
            index(collection, [])
        monkeypatch.setattr(editing.ElasticWriter, "send", send)
        assert index(collection, []).removed == 1
