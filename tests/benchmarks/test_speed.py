"""What is measured and which baseline it is compared with; not how long it takes."""

import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capsearch.benchmarks import scale, speed, timing
from capsearch.benchmarks.report import speed_table
from capsearch.benchmarks.settings import SpeedRun
from capsearch.benchmarks.timing import Measurement, latency, machine, rate, rounds
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import ModelSummary
from capsearch.engine.errors import CapsearchError


class TestTiming:
    def test_actions_take_turns_after_the_warm_up(self):
        calls = []
        actions = {name: lambda name=name: calls.append(name) for name in "ab"}
        taken = rounds(actions, repeats=2, warm_up=1)
        assert "".join(calls) == "ab" + "abab"
        assert {name: len(seconds) for name, seconds in taken.items()} == {"a": 2, "b": 2}

    def test_latency_in_milliseconds(self):
        line = latency("part", "name", [0.001, 0.002, 0.003])
        assert (line.p50, line.unit, line.samples) == (pytest.approx(2.0), "ms", 3)
        assert line.p95 == pytest.approx(2.9)  # 95 % of the way from the first to the third

    def test_a_rate_s_p95_is_its_slow_end(self):
        line = rate("part", "name", [10, 10, 10], [1.0, 2.0, 5.0])
        assert (line.p50, line.unit) == (10 / 2, "1/s")
        assert line.p95 == pytest.approx(2 + 0.1 * (5 - 2))

    def test_the_ratio_is_of_the_medians(self):
        ours = Measurement("part", "ours", "ms", 30.0, 99.0, 5)
        theirs = Measurement("part", "theirs", "ms", 40.0, 41.0, 5)
        line = ours.against(theirs)
        assert (line.ratio, line.beside) == (30 / 40, "theirs")

    def test_the_machine_and_the_version_are_named(self):
        assert {"cpu", "cores", "python", "capsearch", "commit"} <= machine().keys()

    def test_outside_git_there_is_no_commit(self, tmp_path):
        assert timing.commit(tmp_path) is None

    def test_a_changed_work_tree_is_marked(self, tmp_path):
        def git(*arguments):
            identity = ("-c", "user.name=t", "-c", "user.email=t@t")
            subprocess.run(
                ["git", "-C", tmp_path, *identity, *arguments], check=True, capture_output=True
            )

        git("init")
        (tmp_path / "file").write_text("one")
        git("add", "file")
        git("commit", "-m", "one", "--no-verify")
        assert not timing.commit(tmp_path).endswith("+")
        (tmp_path / "file").write_text("two")
        assert timing.commit(tmp_path).endswith("+")


class TestSynthetic:
    @pytest.mark.parametrize("language", timing.WORDS)
    def test_no_sentence_comes_twice(self, language):
        assert len(set(timing.sentences(language))) == 6 * 6 * 6

    def test_vectors_have_unit_norm_and_do_not_change(self):
        one, other = timing.vectors(5, 8), timing.vectors(5, 8)
        np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, rtol=1e-6)
        np.testing.assert_array_equal(one, other)


class TestParts:
    def test_text_is_timed_in_every_language_the_model_reads(self, fake_model):
        names = [line.name for line in speed.time_text(fake_model.text, repeats=2)]
        expected = [language for language in ("en", "zh", "ja") for _ in range(3)]
        assert [name.rpartition(" ")[2] for name in names] == expected

    def test_the_baseline_of_images_is_decoding_alone(self, fake_model):
        alone, both = speed.time_images(fake_model.image, timing.synthetic_images(2), repeats=2)
        assert both.beside == alone.name and both.unit == "1/s"
        assert fake_model.image.batches == [2, 2, 2]  # warm-up and two repeats

    def test_every_built_in_backbone_is_timed_and_nothing_else(self, fake_model, monkeypatch):
        def summary(name, kind, built_in=True):
            return ModelSummary(name, kind, (), 0, "", Path(name), built_in, "")

        there = (
            summary("quick", "backbone"),
            summary("trio", "text"),
            summary("mine", "backbone", False),
        )
        monkeypatch.setattr(registry, "available", lambda: there)
        monkeypatch.setattr(
            registry, "load_backbone", lambda name: replace(fake_model.image, backbone=name)
        )
        names = {line.name for line in speed.measure_images(SpeedRun(repeats=1))}
        assert names == {"quick: decoding alone", "quick: decoded and encoded"}

    def test_a_model_given_by_name_is_measured_with_its_own_backbone(self, fake_model, monkeypatch):
        monkeypatch.setattr(registry, "load", lambda name: fake_model)
        lines = tuple(speed.measure_images(SpeedRun(model="mine", repeats=1)))
        assert lines[0].name == "toy: decoding alone"

    def test_the_baseline_of_the_vector_index_is_numpy(self):
        plain, index = speed.time_search(timing.vectors(500, 8), repeats=2)
        assert index.beside == plain.name and index.ratio == index.p50 / plain.p50

    def test_brute_force_is_right(self):
        vectors = np.eye(12, dtype=np.float32)
        query = np.array([0.1, 0.4, 0.2, 0.3, *[0.0] * 8], np.float32)
        assert scale.numpy_search(vectors)(query)[:2].tolist() == [1, 3]

    def test_a_failed_command_is_reported_with_its_stderr(self):
        with pytest.raises(CapsearchError, match="no such thing"):
            timing.run([*timing.PYTHON, "raise SystemExit('no such thing')"])

    def test_parts_can_be_chosen(self, monkeypatch):
        line = Measurement("text", "x", "ms", 1.0, 2.0, 3)
        monkeypatch.setattr(speed, "PARTS", {"text": lambda _: iter([line]), "images": None})
        assert list(speed.measure(SpeedRun(part=("text",)))) == [line]


def test_the_table_names_baseline_and_machine():
    line = Measurement("search", "the index", "ms", 3.0, 4.0, 5, "numpy", 0.75)
    table = speed_table([line], {"cpu": "a fast one"})
    assert table.rows == [("search", "the index", "3.0", "4.0", "ms", "5", "0.75", "numpy")]
    assert table.notes == ["cpu a fast one"]
