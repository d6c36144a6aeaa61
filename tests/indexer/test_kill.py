"""kill -9 at random moments loses only the current batch, and no other image is encoded twice."""

from __future__ import annotations

import multiprocessing
import os
import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsearch.encoders.models.registry import Model
from capsearch.engine.fakes import FakeImageEncoder
from capsearch.engine.query import Query
from capsearch.engine.records import Progress
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite import store
from capsearch.indexer.sqlite.collection import Collection

IMAGES, BATCH, KILLS = 200, 8, 5
TABLES = {  # without the numbers of rows
    "images": "id, width, height, size_bytes, format, taken_at",
    "files": "*",
    "captions": "image_id, text, language, source, origin, encoded",
    "tags": "*",
    "arrays": "*",
    "skipped": "*",
}
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """200 different images, each third with captions."""
    root, rng = tmp_path_factory.mktemp("many"), np.random.default_rng(0)
    captions = ("a red car", "一只猫", "海と花です", "nothing known")
    for n in range(IMAGES):
        pixels = rng.choice(np.array([0, 255], np.uint8), (4, 4, 3))
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.NEAREST).save(
            root / f"{n:03}.png"
        )
        if n % 3 == 0:
            (root / f"{n:03}.txt").write_text(f"{captions[n % 4]}\nimage {n}", encoding="utf-8")
    return root


def index_and_log(where: Path, folder: Path, log: Path, model: Model) -> None:
    """Runs in a forked process; logs a letter per progress event and a dot per encoded image."""
    events, embedded = log.open("ab", buffering=0), log.with_suffix(".embedded").open("ab", 0)

    def progress(event: Progress) -> None:
        events.write(event.stage[:1].encode())

    features = FakeImageEncoder.features

    def counted(self, pixels):
        embedded.write(b"." * len(pixels))
        return features(self, pixels)

    FakeImageEncoder.features = counted  # type: ignore[method-assign]
    store.CAPTIONS_A_BATCH = 16
    with Collection.create(where, model) as collection:
        index(collection, [folder], IndexOptions(batch_size=BATCH, decode_threads=2), progress)


@pytest.fixture
def run(folder, tmp_path, fake_model):
    """Indexes in a forked process, which is killed once `due(log)` is true; the exit code."""

    def start(name: str, due: Callable[[bytes], bool] | None = None, delay_s: float = 0) -> int:
        log = tmp_path / f"{name}.log"
        log.touch()
        before = log.stat().st_size
        context = multiprocessing.get_context("fork")
        arguments = (tmp_path / name, folder, log, fake_model)
        process = context.Process(target=index_and_log, args=arguments)
        process.start()
        while due is not None and process.is_alive():
            if due(log.read_bytes()[before:]):
                time.sleep(delay_s)
                process.kill()
                break
            time.sleep(0.0005)
        process.join()
        return process.exitcode

    return start


def contents(where: Path, model: Model) -> dict[str, object]:
    """Everything that must not depend on whether the run was killed.

    The order in which files were encoded may: those that were being decoded come last.
    """
    queries = ("red car", "一只红色的猫", "白い花", "black sea")
    with Collection.open(where, model) as collection:
        result: dict[str, object] = {
            table: sorted(collection.catalog.rows(f"SELECT {columns} FROM {table}"))
            for table, columns in TABLES.items()
        }
        for name, table in (("features", "images"), ("vectors", "images"), ("captions",) * 2):
            result[f"{name} on disk"] = vectors(collection, name, table)
        for text in queries:
            result[text] = collection.engine().search(Query(text, limit=50)).hits
    return result


def vectors(collection: Collection, name: str, table: str) -> list[tuple[str, bytes]]:
    """What the rows of an array belong to, and their bytes."""
    array = collection.catalog.array(name)
    rows = array.path.read_bytes()
    width = len(rows) // array.rows
    key = "id" if table == "images" else "image_id || text"
    slots = collection.catalog.rows(f"SELECT {key}, slot FROM {table} WHERE slot IS NOT NULL")
    return sorted((owner, rows[slot * width : (slot + 1) * width]) for owner, slot in slots)


def embedded(log: Path) -> int:
    return log.with_suffix(".embedded").stat().st_size


def test_a_run_killed_five_times_gives_the_same_index_as_an_undisturbed_one(
    run, tmp_path, fake_model
):
    assert run("undisturbed") == 0
    events = (tmp_path / "undisturbed.log").stat().st_size
    rng, killed = random.Random(1), 0
    for _ in range(KILLS):
        moment = rng.randrange(1, events // 4)  # each run has less to do than the one before
        killed += run("killed", lambda log: len(log) >= moment, rng.random() / 50) == -9  # noqa: B023
    assert run("killed") == 0
    assert killed >= 3
    assert contents(tmp_path / "killed", fake_model) == contents(
        tmp_path / "undisturbed", fake_model
    )
    assert embedded(tmp_path / "undisturbed.log") == IMAGES
    assert IMAGES <= embedded(tmp_path / "killed.log") <= IMAGES + killed * BATCH


def test_a_kill_while_captions_are_encoded_encodes_no_image_again(run, tmp_path, fake_model):
    assert run("undisturbed") == 0
    assert run("killed", lambda log: log.count(b"c") >= 2) == -9
    assert run("killed") == 0
    assert contents(tmp_path / "killed", fake_model) == contents(
        tmp_path / "undisturbed", fake_model
    )
    assert embedded(tmp_path / "killed.log") == IMAGES
