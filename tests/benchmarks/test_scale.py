"""Large synthetic collections, small enough here: made once, searched exactly, added to."""

import numpy as np
import pytest

from capsearch.benchmarks import scale, scale_collection
from capsearch.benchmarks.report import save_scale_plot, scale_curves
from capsearch.benchmarks.scale_collection import CAPTIONS_PER_IMAGE, ScaleVectors
from capsearch.benchmarks.timing import Measurement
from capsearch.encoders.models import registry
from capsearch.engine.errors import DataProblem
from capsearch.engine.records import Filters
from capsearch.indexer.sqlite.collection import Collection

COUNT = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("cache")
        patch.setattr(scale_collection, "user_cache_path", lambda _: cache)
        said: list[str] = []
        model = registry.load(None)
        made = scale_collection.ensure(model, COUNT, said.append)
        assert made == scale_collection.ensure(model, COUNT, said.append) and len(said) == 1
        yield made


def test_vectors_are_the_same_each_time_and_have_unit_norm():
    one, other = (np.concatenate([*ScaleVectors(registry.load(None), 50).images()]) for _ in "ab")
    np.testing.assert_array_equal(one, other)
    np.testing.assert_allclose(np.linalg.norm(one[:, :-1], axis=1), 1, rtol=1e-5)


def test_a_collection_is_complete(folder):
    with Collection.open(folder) as collection:
        stats = collection.stats()
        assert (stats.images, stats.captions) == (COUNT, COUNT * CAPTIONS_PER_IMAGE)
        assert collection.catalog.array("captions").rows == COUNT * CAPTIONS_PER_IMAGE
        tagged = collection.backend.newest(Filters(tags=(scale_collection.share_tag(10),)), 99)
        assert len(tagged) == COUNT // 10


def test_searches_find_the_exact_ten_best(folder, monkeypatch):
    # In a collection this small the words of the captions are rare; in a large one none is.
    monkeypatch.setattr("capsearch.indexer.sqlite.matches.is_rare", lambda *_: False)
    lines = {line.name: line.p50 for line in scale.search(folder, None, COUNT, 4)}
    assert lines["400: CM, recall@10"] == lines["400: CLM, recall@10"] == 1.0
    filtered = {f"400: CLM, {percent} %" for percent in (1, 10, 50)}
    assert {"400: CM", "400: CLM", "400: CM, CPU time", *filtered} < lines.keys()
    assert lines["400: opened and first search"] > 0 and lines["400: search, peak memory"] > 10


def test_a_described_collection_has_generated_captions_and_tags_of_what_queries_name(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(scale_collection, "user_cache_path", lambda _: tmp_path)
    model = registry.load(None)
    made = scale_collection.ensure(model, 300, print, described=True)
    with Collection.open(made) as collection:
        [document] = collection.backend.newest(Filters(), 1)
        tags = [one for one in document.tags if one.generated]
        assert len(document.captions) == 3 and all(one.generated for one in document.captions)
        assert len(tags) == 8 and all(one.concept and 0 < one.confidence < 1 for one in tags)
        assert len(collection.backend.newest(Filters(tags=("cat",)), 300)) > 3
    wall, cpu = scale.search_described(made, None, 300, 2)
    assert wall.samples == cpu.samples == 2


def test_added_images_are_taken_out_again(folder):
    assert scale.add(folder, None) > 0
    with Collection.open(folder) as collection:
        assert len(collection.backend) == COUNT
        assert collection.catalog.array("vectors").rows == COUNT


def test_building_a_small_collection_makes_no_codes(folder):
    lines = {line.name: line.p50 for line in scale.build(folder, COUNT)}
    images_of_captions = (128 + 4 * 3 * 400) / 1e6  # MB: three captions an image
    assert lines["400: codes on disk"] == images_of_captions
    assert lines["400: codes made, peak memory"] > 10


@pytest.mark.parametrize("name", [*scale.peers(COUNT), scale.OURS])
def test_every_way_finds_what_brute_force_finds(folder, name):
    plain = scale.search_vectors(folder, None, "numpy", 3)
    searched = scale.search_vectors(folder, None, name, 3)
    assert scale_collection.recall(searched.rows, plain.rows) > 0.9
    assert len(searched.seconds) == 3


def test_graphs_are_left_out_where_they_take_too_long():
    assert set(scale.peers(scale.GRAPH_ROWS + 1)) == {"numpy", "FAISS flat"}


def test_recall_is_the_share_of_the_best_that_was_found():
    assert scale_collection.recall([[1, 2], [3, 9]], [[2, 1], [3, 4]]) == (1 + 1 / 2) / 2


def test_a_plot_has_a_curve_for_each_search(tmp_path):
    def line(name, unit="ms"):
        return Measurement(scale.PART, name, unit, 2.0, 3.0, 5)

    lines = [
        line("1,000: CM"),
        line("10,000: CM"),
        line("10,000: CM, CPU time"),
        line("10,000 vectors: numpy"),
        line("10,000: codes made", "s"),
    ]
    assert scale_curves(lines) == {
        "CM": [(1000, 2.0), (10_000, 2.0)],
        "numpy, vectors alone": [(10_000, 2.0)],
    }
    save_scale_plot(lines, tmp_path / "scale.svg")
    assert (tmp_path / "scale.svg").stat().st_size > 1000
    with pytest.raises(DataProblem, match="--part scale"):
        save_scale_plot([], tmp_path / "none.svg")
