"""kill -9 and restart, again and again, while files are added, renamed, edited and deleted."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from capsearch.encoders.models.registry import Model
from capsearch.engine.query import Query
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite import store
from capsearch.indexer.sqlite.collection import Collection

pytestmark = pytest.mark.skipif(os.name == "nt", reason="needs fork")
QUERIES = ("red car", "一只红色的猫", "白い花", "black sea", "image")
TEXTS = ("a red car", "一只猫", "海と花です", "nothing known")
MAX_FILES = 60


class Album:
    """A folder of images that changes at random, as people change theirs."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self._random = root, random.Random(seed)
        self._pixels, self._made = np.random.default_rng(seed), 0
        for _ in range(40):
            self._add()

    def change(self) -> None:
        """A few changes of every kind."""
        for _ in range(self._random.randrange(1, 8)):
            files = sorted(self.root.rglob("*.png"))
            kinds = [self._rename, self._edit, self._delete, self._copy, self._caption]
            if len(files) < MAX_FILES:
                kinds.append(self._add)
            kind = self._random.choice(kinds if len(files) > 10 else [self._add])
            kind() if kind == self._add else kind(self._random.choice(files))  # type: ignore[call-arg]

    def _name(self) -> Path:
        self._made += 1
        folder = self.root / self._random.choice(("", "trips", "trips/2024"))
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{self._made:05}.png"

    def _add(self) -> None:
        path = self._name()
        self._write(path)
        self._caption(path)

    def _write(self, path: Path) -> None:
        pixels = self._pixels.choice(np.array([0, 255], np.uint8), (4, 4, 3))
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.NEAREST).save(path)

    def _caption(self, path: Path) -> None:
        lines = self._random.sample(TEXTS, self._random.randrange(3))
        path.with_suffix(".txt").write_text("\n".join([*lines, f"image {self._made}"]))

    def _rename(self, path: Path) -> None:
        new = self._name()
        path.rename(new)
        path.with_suffix(".txt").rename(new.with_suffix(".txt"))

    def _edit(self, path: Path) -> None:
        self._write(path)

    def _copy(self, path: Path) -> None:
        new = self._name()
        shutil.copyfile(path, new)
        shutil.copyfile(path.with_suffix(".txt"), new.with_suffix(".txt"))

    def _delete(self, path: Path) -> None:
        path.unlink()
        path.with_suffix(".txt").unlink()


def run(where: Path, root: Path, model: Model, prune: bool) -> None:
    store.CAPTIONS_A_BATCH = 8
    with Collection.create(where, model) as collection:
        index(collection, [root], IndexOptions(batch_size=4, decode_threads=1, prune=prune))


def killed_after(seconds: float, where: Path, root: Path, model: Model, prune: bool) -> bool:
    """Indexes in a process that is killed after a while; False if it was done before."""
    process = multiprocessing.get_context("fork").Process(
        target=run, args=(where, root, model, prune)
    )
    process.start()
    process.join(seconds)
    process.kill()
    process.join()
    assert process.exitcode in (0, -9)
    return process.exitcode == -9


def contents(where: Path, model: Model) -> dict[str, object]:
    """What people see, without row numbers, which depend on the order of events."""
    with Collection.open(where, model) as reader:
        rows = reader.catalog.rows
        live = "image_id IN (SELECT image_id FROM files)"
        return {
            "files": rows("SELECT path, image_id FROM files ORDER BY path"),
            "captions": rows(
                f"SELECT image_id, text, language, source, origin FROM captions WHERE {live} "
                "ORDER BY 1, 2, 3, 4, 5"
            ),
            "not encoded": rows("SELECT count(*) FROM captions WHERE encoded = 0"),
            "facets": reader.backend.facets(),
            **{
                text: [
                    (hit.image_id, hit.score, hit.record.paths)
                    for hit in reader.engine().search(Query(text, limit=99)).hits
                ]
                for text in QUERIES
            },
        }


def cycles(count: int, tmp_path: Path, model: Model, seed: int, least: int = 0) -> int:
    """Changes the album and kills the run, `count` times; how many runs were killed.

    On a busy machine many runs end before they are killed: there are up to `count` more, until
    `least` were killed.
    """
    chance, album = random.Random(seed), Album(tmp_path / "album", seed)
    where, killed = tmp_path / "index", 0
    started = time.perf_counter()
    run(where, album.root, model, False)
    duration = time.perf_counter() - started
    for number in range(2 * count):
        if number >= count and killed >= least:
            break
        album.change()
        killed += killed_after(
            duration * chance.random(), where, album.root, model, chance.random() < 0.2
        )
        if number % 10 == 9 or number >= count - 1:
            run(where, album.root, model, False)
            fresh = tmp_path / f"fresh-{number}"
            run(fresh, album.root, model, False)
            assert contents(where, model) == contents(fresh, model), f"cycle {number}"
            shutil.rmtree(fresh)
    return killed


def test_ten_kills_and_restarts_lose_and_double_nothing(tmp_path, fake_model):
    assert cycles(10, tmp_path, fake_model, seed=1, least=3) >= 3


@pytest.mark.slow
def test_five_hundred_kills_and_restarts_lose_and_double_nothing(tmp_path, fake_model):
    count = int(os.environ.get("CAPSEARCH_KILL_CYCLES", "500"))
    assert cycles(count, tmp_path, fake_model, seed=2) >= count // 4
