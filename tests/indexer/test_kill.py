"""kill -9 at random moments: nothing is lost but the batch in flight, nothing done twice."""

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

from capsearch.encoders.models import Model
from capsearch.engine.fakes import FakeImageEncoder
from capsearch.engine.records import Query
from capsearch.indexer import encoding
from capsearch.indexer.embedded.collection import Collection
from capsearch.indexer.pipeline import IndexOptions, Progress, index

IMAGES, BATCH, KILLS = 200, 8, 5
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """200 different images, each third with captions."""
    root, rng = tmp_path_factory.mktemp("many"), np.random.default_rng(0)
    words = ("a red car", "一只猫", "海と花です", "nothing known")
    for n in range(IMAGES):
        pixels = rng.choice(np.array([0, 255], np.uint8), (4, 4, 3))
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.NEAREST).save(
            root / f"{n:03}.png"
        )
        if n % 3 == 0:
            (root / f"{n:03}.txt").write_text(f"{words[n % 4]}\nimage {n}", encoding="utf-8")
    return root


def index_and_log(where: Path, folder: Path, log: Path, model: Model) -> None:
    """Runs in a process of its own; the log grows by a letter an event, the model by its own."""
    events, embedded = log.open("ab", buffering=0), log.with_suffix(".embedded").open("ab", 0)

    def progress(event: Progress) -> None:
        events.write(event.stage[:1].encode())

    features = FakeImageEncoder.features

    def counted(self, pixels):
        embedded.write(b"." * len(pixels))
        return features(self, pixels)

    FakeImageEncoder.features = counted  # type: ignore[method-assign]
    encoding._CAPTIONS_A_BATCH = 16
    with Collection.create(where, model) as collection:
        index(collection, [folder], IndexOptions(batch_size=BATCH, decode_threads=2), progress)


@pytest.fixture
def run(folder, tmp_path, fake_model):
    """Indexes in a forked process that is killed once `due` says so; the exit code."""

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
    """Everything that must not depend on how often the run was killed."""
    tables = ("images", "files", "captions", "tags", "arrays", "skipped")
    queries = ("red car", "一只红色的猫", "白い花", "black sea")
    with Collection.open(where, model) as collection:
        found: dict[str, object] = {
            table: collection.catalog.rows(f"SELECT * FROM {table} ORDER BY 1") for table in tables
        }
        for name in ("features", "vectors", "captions"):
            found[f"{name} on disk"] = collection.catalog.array(name).path.read_bytes()
        for text in queries:
            found[text] = collection.engine().search(Query(text, limit=50)).hits
    return found


def embedded(log: Path) -> int:
    return log.with_suffix(".embedded").stat().st_size


def test_a_run_killed_five_times_ends_like_an_undisturbed_one(run, tmp_path, fake_model):
    assert run("calm") == 0
    events = (tmp_path / "calm.log").stat().st_size
    dice, killed = random.Random(1), 0
    for _ in range(KILLS):
        moment = dice.randrange(1, events // 4)  # each run has less to do than the one before
        killed += run("wild", lambda log: len(log) >= moment, dice.random() / 50) == -9  # noqa: B023
    assert run("wild") == 0
    assert killed >= 3
    assert contents(tmp_path / "wild", fake_model) == contents(tmp_path / "calm", fake_model)
    assert embedded(tmp_path / "calm.log") == IMAGES
    assert IMAGES <= embedded(tmp_path / "wild.log") <= IMAGES + killed * BATCH


def test_a_kill_while_captions_are_encoded_repeats_no_image(run, tmp_path, fake_model):
    assert run("calm") == 0
    assert run("wild", lambda log: log.count(b"c") >= 2) == -9
    assert run("wild") == 0
    assert contents(tmp_path / "wild", fake_model) == contents(tmp_path / "calm", fake_model)
    assert embedded(tmp_path / "wild.log") == IMAGES
