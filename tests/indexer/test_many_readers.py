"""Readers beside a writer that indexes, prunes, compacts and rebuilds: no error, no torn result."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from capsearch.encoders.models.registry import Model
from capsearch.engine.fakes import COLOURS
from capsearch.engine.query import Query
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")
PRUNE, REBUILD = IndexOptions(prune=True, batch_size=2), IndexOptions(rebuild=True)


def read(where: Path, model: Model, pipe: Connection, stays_open: bool) -> None:
    """Searches until it is told to stop; sends the number of searches, or what was wrong.

    The file of white is always there; every hit has to have the colour of its name.
    """
    searches, reader = 0, Collection.open(where, model)
    try:
        while not pipe.poll():
            if not stays_open:  # as the command line does
                reader.close()
                reader = Collection.open(where, model)
            hits = reader.engine().search(Query("white", limit=99)).hits
            assert Path(hits[0].record.path).name == "white.png", hits[0]
            assert len({hit.image_id for hit in hits}) == len(hits)
            assert reader.backend.facets().folders
            searches += 1
        pipe.send(searches)
    except BaseException as problem:
        pipe.send(repr(problem))


def write(where: Path, model: Model, folder: Path, image, seconds: float) -> int:
    """Adds and deletes images in run after run; the number of runs."""
    runs, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        for colour in COLOURS:
            path = folder / f"{colour}.png"
            if colour != "white" and runs % 3 == 1:
                path.unlink(missing_ok=True)
            elif not path.exists():
                image(path, colour)
        with Collection.create(where, model) as writer:
            index(writer, [folder], REBUILD if runs % 7 == 6 else PRUNE)
        runs += 1
    return runs


def beside(tmp_path: Path, model: Model, image, readers: int, seconds: float) -> tuple[int, list]:
    where, folder = tmp_path / "index", tmp_path / "p"
    write(where, model, folder, image, 0.001)
    context, pipes = multiprocessing.get_context("fork"), []
    processes = []
    for number in range(readers):
        pipe, end = context.Pipe()
        process = context.Process(target=read, args=(where, model, end, number % 2 == 0))
        process.start()
        processes.append(process)
        pipes.append(pipe)
    runs = write(where, model, folder, image, seconds)
    for pipe in pipes:
        pipe.send("stop")
    answers = [pipe.recv() for pipe in pipes]
    for process in processes:
        process.join()
    return runs, answers


def test_two_readers_beside_a_writer(tmp_path, fake_model, image):
    runs, answers = beside(tmp_path, fake_model, image, readers=2, seconds=3)
    assert runs >= 2
    assert all(isinstance(one, int) and one for one in answers), answers


@pytest.mark.slow
def test_eight_readers_beside_a_writer_for_ten_minutes(tmp_path, fake_model, image):
    seconds = float(os.environ.get("CAPSEARCH_READERS_S", "600"))
    runs, answers = beside(tmp_path, fake_model, image, readers=8, seconds=seconds)
    assert runs >= seconds / 10
    assert all(isinstance(one, int) and one for one in answers), answers
