"""kill -9 during enrichment loses at most the current batch; the next run does the rest."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from places import Place

from capsearch.encoders.models.registry import Model
from capsearch.engine.records import Filters
from capsearch.indexer.enrichment import EnrichOptions, enrich
from capsearch.indexer.pipeline import index

IMAGES, BATCH = 40, 4
pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")


@pytest.fixture
def where(place, tmp_path, describing_model) -> Place:
    rng = np.random.default_rng(0)
    (tmp_path / "many").mkdir()
    for n in range(IMAGES):
        pixels = rng.choice(np.array([0, 255], np.uint8), (4, 4, 3))
        Image.fromarray(pixels).resize((32, 32), 0).save(tmp_path / "many" / f"{n:03}.png")
    with place.create(describing_model) as collection:
        index(collection, [tmp_path / "many"])
    return place


def run(where: Place, model: Model, log: Path) -> None:
    """Runs in a forked process; a letter for each batch of captions."""
    with where.create(model) as collection, log.open("ab", buffering=0) as events:

        def show(progress):
            if progress.stage == "caption images":
                events.write(b"c")
                time.sleep(0.05)  # there is a moment to be killed in

        enrich(collection, EnrichOptions(batch_size=BATCH, decode_threads=1), show)


def test_a_killed_run_goes_on_and_writes_nothing_twice(where, tmp_path, describing_model):
    log = tmp_path / "log"
    log.touch()
    context = multiprocessing.get_context("fork")
    process = context.Process(target=run, args=(where, describing_model, log))
    process.start()
    while process.is_alive() and log.stat().st_size < 3:
        time.sleep(0.01)
    process.kill()
    process.join()
    assert process.exitcode == -9
    with where.create(describing_model) as collection:
        store = collection.store()
        with store.writing(rebuild=False):
            done = IMAGES - store.descriptions().count("captioner", "toy-captions@1")
        assert 3 * BATCH <= done < IMAGES
        summary = enrich(collection, EnrichOptions(batch_size=BATCH))
        assert (summary.captioned, summary.tagged, summary.pending) == (IMAGES - done, 0, 0)
        found = collection.backend.newest(Filters(), IMAGES)
        assert [{text.language for text in one.captions} for one in found] == [
            {"en", "zh", "ja"}
        ] * IMAGES
        assert sum(len(one.captions) for one in found) == 3 * IMAGES
        with store.writing(rebuild=False):
            assert store.pending_captions() == 0
