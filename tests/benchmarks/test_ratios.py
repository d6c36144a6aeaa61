"""`bench speed --check`: which ratios count as worse, and what is said of them."""

import json

import pytest
from click.testing import CliRunner

from capsearch.benchmarks import speed
from capsearch.benchmarks.speed import Loss, losses
from capsearch.benchmarks.timing import Measurement
from capsearch.engine.errors import DataProblem
from capsearch.ui.cli import bench


def line(ratio, unit="ms", name="index"):
    return Measurement("search", name, unit, 1.0, 1.0, 5, "numpy", ratio)


def test_a_latency_may_grow_by_a_third_of_its_ratio_and_no_more():
    committed = {("search", "index"): 0.3}
    assert losses([line(0.3 / 0.75)], committed) == ()
    assert losses([line(0.41)], committed) == (Loss("index", "numpy", 0.3, 0.41),)
    assert losses([line(0.01)], committed) == ()


def test_a_rate_may_fall_by_a_quarter_and_no_more():
    committed = {("search", "index"): 4.0}
    assert losses([line(3.0, "1/s")], committed) == ()
    assert [one.now for one in losses([line(2.9, "1/s")], committed)] == [2.9]


def test_what_was_never_measured_is_not_compared():
    committed = {("search", "index"): 0.3}
    assert losses([line(9.0, name="new"), line(0.3), line(None, name="plain")], committed) == ()
    with pytest.raises(DataProblem, match="none of these measurements has a committed figure"):
        losses([line(9.0, name="new")], committed)


@pytest.mark.parametrize("content", ["", "[]", '{"measurements": [{"part": "x"}]}'])
def test_a_file_without_figures_is_refused(tmp_path, content):
    path = tmp_path / "figures.json"
    path.write_text(content)
    with pytest.raises(DataProblem, match="bench speed --json"):
        speed.committed(path)


def test_the_committed_figures_have_ratios():
    assert speed.committed()


@pytest.mark.parametrize(("ratio", "status"), [(0.3, 0), (0.9, 1)])
def test_the_command_names_what_is_slower_and_fails(monkeypatch, tmp_path, ratio, status):
    path = tmp_path / "figures.json"
    stored = {"part": "search", "name": "index", "ratio": 0.3}
    path.write_text(json.dumps({"measurements": [stored]}))
    committed = speed.committed
    monkeypatch.setattr(speed, "committed", lambda: committed(path))
    monkeypatch.setattr(speed, "measure", lambda options: iter([line(ratio)]))
    done = CliRunner().invoke(bench.command, ["speed", "--check"])
    assert done.exit_code == status
    assert ("slower: index: 0.9 x numpy, was 0.3 x" in done.output) == bool(status)
