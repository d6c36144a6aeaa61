"""Batch size and threads are measured once, and again when what was measured is gone."""

from __future__ import annotations

import numpy as np
import pytest

from capsearch.encoders.models import image as tuning
from capsearch.encoders.models.image import Tuning, tuned


class Clock:
    """Stands still except while a network runs."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


CLOCK = Clock()


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setattr(tuning, "user_cache_path", lambda _: tmp_path / "cache")
    monkeypatch.setattr(tuning, "perf_counter", CLOCK)
    monkeypatch.setattr(tuning.os, "cpu_count", lambda: 2)
    return tmp_path / "cache" / tuning.FILE


def quickest_with(batch: int, workers: int):
    """A network that takes a millisecond for an image, and less in one way."""

    def run(way: Tuning, count: int) -> None:
        CLOCK.now += count * (0.0001 if way == Tuning(batch, workers) else 0.001)

    return run


def test_the_fastest_way_is_found_and_kept(cache):
    assert tuned("net", quickest_with(8, 2)) == Tuning(8, 2)
    assert tuned("net", lambda *_: pytest.fail("measured again")) == Tuning(8, 2)
    assert tuned("other", quickest_with(4, 1)) == Tuning(4, 1)
    cache.unlink()
    assert tuned("net", quickest_with(1, 1)) == Tuning(1, 1)


@pytest.mark.parametrize("content", ["", "[]", '{"net on 2 cores": {"batch": "x"}}'])
def test_a_damaged_file_counts_as_none(cache, content):
    cache.parent.mkdir()
    cache.write_text(content)
    assert tuned("net", quickest_with(8, 1)) == Tuning(8, 1)


def test_where_nothing_can_be_kept_it_is_measured_each_time(cache):
    cache.parent.write_text("not a folder")
    assert tuned("net", quickest_with(8, 1)) == Tuning(8, 1)
    assert tuned("net", quickest_with(4, 1)) == Tuning(4, 1)


def test_one_core_tries_one_batch_at_a_time():
    assert {one.workers for one in tuning.candidates(1)} == {1}
    assert {one.workers for one in tuning.candidates(4)} == {1, 4}


def test_features_do_not_depend_on_the_way_they_are_encoded(monkeypatch):
    from capsearch.encoders.models import image, registry

    monkeypatch.setattr(image, "TUNED_AFTER", 0)
    backbone = registry.load_backbone("lite0")
    size = backbone.input_size
    pixels = [
        np.random.default_rng(n).integers(0, 256, (size, size, 3), np.uint8) for n in range(9)
    ]
    found = []
    for way in (Tuning(9, 1), Tuning(2, 2)):
        monkeypatch.setattr(image, "tuned", lambda key, run, way=way: way)
        found.append(registry.load_backbone("lite0").features(pixels))
    np.testing.assert_allclose(found[0], found[1], atol=1e-4)


def test_few_images_are_not_worth_a_measurement(monkeypatch):
    from capsearch.encoders.models import image, registry

    monkeypatch.setattr(image, "TUNED_AFTER", 4)
    asked = []
    monkeypatch.setattr(image, "tuned", lambda key, run: asked.append(key) or Tuning(2, 1))
    backbone = registry.load_backbone("lite0")
    pixels = [np.zeros((backbone.input_size, backbone.input_size, 3), np.uint8)] * 3
    backbone.features(pixels)
    assert asked == []
    backbone.features(pixels)
    backbone.features(pixels)
    assert len(asked) == 1


def test_networks_run_on_the_first_provider_that_works_and_never_on_tensorrt(monkeypatch):
    import onnx
    import onnxruntime

    onnx.checker.check_model(onnx.load_model_from_string(tuning._IDENTITY))
    assert tuning.device() == "cpu"
    installed = ["TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: installed)
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("what is missing"))
    assert tuning.providers.__wrapped__() == ("CUDAExecutionProvider", "CPUExecutionProvider")


def test_what_onnx_runtime_prints_about_cuda_is_not_a_result(monkeypatch, capsys):
    import onnxruntime

    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [tuning.CUDA])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: print("no CUDA"))
    tuning.providers.__wrapped__()
    assert capsys.readouterr() == ("", "no CUDA\n")
