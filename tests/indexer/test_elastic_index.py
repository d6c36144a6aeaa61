"""Images are indexed straight into a cluster, and the same is known there as in an index folder."""

from __future__ import annotations

import random
import shutil
import threading
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from index_contents import counts
from PIL import Image

from capsearch.engine.errors import IndexProblem, ModelMismatch
from capsearch.engine.query import Query
from capsearch.engine.records import Filters, Progress
from capsearch.indexer.elastic import collection as versions
from capsearch.indexer.elastic.client import Address, connect
from capsearch.indexer.elastic.collection import ElasticCollection
from capsearch.indexer.pipeline import IndexOptions, index
from capsearch.indexer.sqlite.collection import Collection

pytestmark = pytest.mark.elastic
_NUMBERS = count()
QUERIES = [Query("red car", limit=50), Query("一只猫", mode="cl", limit=50), Query('"image 3"')]


@pytest.fixture
def address(elastic_node, monkeypatch, tmp_path):
    for name, value in elastic_node.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "capsearch.indexer.elastic.collection.user_cache_path", lambda _: tmp_path / "cache"
    )
    made = Address.parse(f"{elastic_node.url}/indexed-{next(_NUMBERS)}")
    yield made
    versions.drop(connect(made), made)


@pytest.fixture
def cluster(address, fake_model):
    with ElasticCollection.create(str(address), fake_model, replicas=0) as opened:
        yield opened


def documents(collection) -> dict[str, object]:
    found = collection.backend.newest(Filters(), 1000)
    return {one.record.id: one for one in found}


def answers(collection) -> list[list[tuple]]:
    results = [collection.engine().search(query) for query in QUERIES]
    return [[(hit.document, round(hit.score, 3)) for hit in result.hits] for result in results]


class Pictures:
    """A folder that changes at random."""

    def __init__(self, root: Path, seed: int) -> None:
        self.root, self._made, self._random = root, 0, random.Random(seed)
        self._pixels = np.random.default_rng(seed)
        root.mkdir()

    def change(self, times: int) -> None:
        for _ in range(times):
            files = sorted(self.root.rglob("*.png"))
            ways = [self._add, self._add]
            if len(files) > 4:
                ways += [self._rename, self._edit, self._copy, self._delete, self._caption]
            self._random.choice(ways)(self._random.choice(files) if files else None)

    def _name(self) -> Path:
        self._made += 1
        path = self.root / self._random.choice("ab") / f"{self._made:03}.png"
        path.parent.mkdir(exist_ok=True)
        return path

    def _add(self, _: Path | None) -> None:
        path = self._name()
        self._edit(path)
        self._caption(path)

    def _edit(self, path: Path) -> None:
        pixels = self._pixels.choice(np.array([0, 255], np.uint8), (4, 4, 3))
        Image.fromarray(pixels).resize((32, 32), Image.Resampling.NEAREST).save(path)

    def _caption(self, path: Path) -> None:
        texts = self._random.sample(
            ("a red car", "一只猫", "海と花です"), self._random.randrange(3)
        )
        path.with_suffix(".txt").write_text("\n".join([*texts, f"image {self._made}"]))

    def _rename(self, path: Path) -> None:
        new = self._name()
        path.rename(new)
        if path.with_suffix(".txt").exists():
            path.with_suffix(".txt").rename(new.with_suffix(".txt"))

    def _copy(self, path: Path) -> None:
        shutil.copyfile(path, self._name())

    def _delete(self, path: Path) -> None:
        path.unlink()


def test_a_cluster_knows_after_every_run_what_an_index_folder_knows(
    cluster, collection, fake_model, tmp_path
):
    pictures = Pictures(tmp_path / "pictures", seed=5)
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\n001.png,a house\n003.png,a boat\n009.png,a lamp\n")
    for step in range(6):
        pictures.change(9)
        options = IndexOptions(
            captions=(table,) if step == 1 else (), batch_size=4, prune=step == 4,
            confirm_removed=(pictures.root,),
        )  # fmt: skip
        mine, theirs = (index(one, [pictures.root], options) for one in (collection, cluster))
        for name in ("added", "reused", "removed", "unchanged", "captions_added", "missing",
                     "pruned", "skipped"):  # fmt: skip
            assert getattr(theirs, name) == getattr(mine, name), (step, name)
        assert documents(cluster) == documents(collection), step
        assert answers(cluster) == answers(collection), step
    assert cluster.roots() == collection.roots() == (pictures.root,)


def test_what_cannot_be_opened_is_skipped_named_and_not_opened_again(cluster, image_folder):
    (image_folder / "broken.png").write_bytes(b"nothing")
    first, second = (index(cluster, [image_folder]) for _ in range(2))
    assert counts(first) == (4, 0, 0, 0) and counts(second) == (0, 0, 0, 4)
    assert first.skipped == second.skipped != ()
    shutil.copyfile(image_folder / "red.png", image_folder / "broken.png")
    third = index(cluster, [image_folder])
    assert (counts(third), third.skipped) == ((0, 1, 0, 4), ())


def test_captions_follow_a_file_that_is_edited_or_was_gone_for_a_while(
    cluster, image_folder, tmp_path, image
):
    table = tmp_path / "captions.csv"
    table.write_text("file,caption\nred.png,a car\n")
    index(cluster, [image_folder], IndexOptions(captions=(table,)))
    table.unlink()
    image(image_folder / "red.png", "purple")
    index(cluster, [])
    (image_folder / "red.png").unlink()
    index(cluster, [])
    image(image_folder / "red.png", "orange")
    index(cluster, [])
    [hit] = cluster.engine().search(Query("car", mode="cl", limit=1)).hits
    assert [caption.text for caption in hit.document.captions] == ["a car"]
    assert hit.record.paths == (str(image_folder / "red.png"),)


def test_a_stopped_run_keeps_its_batches_and_the_next_does_the_rest(cluster, image_folder):
    stop = threading.Event()

    def after_the_second(progress: Progress) -> None:
        if progress.stage == "embed" and progress.done == 2:
            stop.set()

    summary = index(cluster, [image_folder], IndexOptions(batch_size=2), after_the_second, stop)
    assert summary.interrupted and counts(summary) == (2, 0, 0, 0)
    assert len(cluster.backend) == 2
    assert counts(index(cluster, [image_folder])) == (2, 0, 0, 2)


def test_another_model_is_refused_and_a_rebuild_replaces_the_collection_when_it_is_whole(
    cluster, address, image_folder, make_model
):
    (image_folder / "blue.txt").write_text("a cat")
    index(cluster, [image_folder])
    (image_folder / "red.png").unlink()
    index(cluster, [])
    other, stop = make_model(backbone="other"), threading.Event()
    with ElasticCollection.create(str(address), other, replicas=0) as rebuilt:
        with pytest.raises(ModelMismatch, match="--rebuild"):
            index(rebuilt, [image_folder])
        rebuild = IndexOptions(rebuild=True, batch_size=1)
        partial = index(rebuilt, [], rebuild, lambda one: one.stage == "embed" and stop.set(), stop)
        assert partial.interrupted and partial.added == 1
        assert versions.current(connect(address), address) == f"{address.name}-v1"
        assert len(cluster.backend) == 3  # searches see the old version
        assert index(cluster, []).unchanged == 3  # writing to it leaves the next one alone
        assert index(rebuilt, [], rebuild).added == 2
        assert versions.current(connect(address), address) == f"{address.name}-v2"
        [hit] = rebuilt.engine().search(Query("cat", mode="cl", limit=1)).hits
        assert Path(hit.record.path).name == "blue.png"
        assert index(rebuilt, []).missing == 1  # what is known of red.png is kept
    with pytest.raises(ModelMismatch):
        cluster.require_same_model()


def test_another_projection_opens_no_image(cluster, address, image_folder, make_model, monkeypatch):
    index(cluster, [image_folder])
    monkeypatch.setattr("capsearch.indexer.prepare.opened", lambda *_: pytest.fail("decoded"))
    new = make_model(turn=1)
    with ElasticCollection.create(str(address), new, replicas=0) as rebuilt:
        assert counts(index(rebuilt, [], IndexOptions(rebuild=True))) == (0, 0, 0, 4)
        [hit] = rebuilt.engine().search(Query("red", mode="cm", limit=1)).hits
        assert Path(hit.record.path).name == "red.png"


def test_a_rebuild_with_the_same_model_keeps_vectors_of_files_out_of_reach(
    cluster, image_folder, fake_model
):
    index(cluster, [image_folder])
    moved = image_folder.with_name("elsewhere")
    image_folder.rename(moved)
    moved.joinpath("red.png").rename(moved / "kept.png")
    image_folder.mkdir()
    shutil.copyfile(moved / "kept.png", image_folder / "red.png")
    summary = index(cluster, [], IndexOptions(rebuild=True))
    assert summary.added == 1
    moved.joinpath("blue.png").rename(image_folder / "blue.png")
    again = index(cluster, [image_folder])
    assert (again.added, again.reused) == (0, 1)


def test_an_index_folder_can_be_made_of_it_and_updated(
    cluster, address, image_folder, tmp_path, fake_model
):
    from capsearch.indexer.elastic import copy

    (image_folder / "red.txt").write_text("a red wall")
    index(cluster, [image_folder])
    with Collection.create(tmp_path / "back", fake_model) as back:
        copy.from_cluster(address, back, lambda *_: None, threading.Event())
        assert documents(back) == documents(cluster)
        assert counts(index(back, [])) == (0, 0, 0, 4)


def test_a_read_only_collection_is_one_line_and_stays_as_it_is(
    cluster, address, image_folder, image, monkeypatch
):
    monkeypatch.setattr("capsearch.indexer.elastic.client.BACKOFF_S", ())
    index(cluster, [image_folder])
    client, version = connect(address), f"{address.name}-v1"
    before = documents(cluster)
    image(image_folder / "new.png", "purple")
    client.indices.put_settings(index=version, settings={"index.blocks.write": True})
    with pytest.raises(IndexProblem, match="read-only") as problem:
        index(cluster, [])
    assert "\n" not in str(problem.value)
    client.indices.put_settings(index=version, settings={"index.blocks.write": None})
    assert documents(cluster) == before
    assert index(cluster, []).added == 1


def test_a_wrong_password_makes_nothing(cluster, address, monkeypatch):
    with monkeypatch.context() as wrong:
        wrong.setenv("CAPSEARCH_ES_PASSWORD", "wrong")
        with pytest.raises(IndexProblem, match="refuses these credentials"):
            ElasticCollection.create(str(address))
    assert versions.current(connect(address), address) is None
