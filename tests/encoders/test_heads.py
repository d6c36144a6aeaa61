"""Feature maps of backbones, and the taggers and captioners that are found for them."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from capsearch.encoders.models import image, model_folder, registry
from capsearch.encoders.models.describe import best_sentences, describe_files
from capsearch.encoders.models.image import Backbone, Tuning
from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.fakes import colour_image

onnx = pytest.importorskip("onnx")
SIZE = 4


def write_graph(path, with_grid: bool) -> None:
    """pixels -> mean colour, and the pixels themselves as the feature map."""
    from onnx import TensorProto, helper, numpy_helper

    float_, uint8 = TensorProto.FLOAT, TensorProto.UINT8
    shape = numpy_helper.from_array(np.array([-1, SIZE * SIZE, 3]), "shape")
    nodes = [
        helper.make_node("Cast", ["pixels"], ["floats"], to=float_),
        helper.make_node("Reshape", ["floats", "shape"], ["grid"]),
        helper.make_node("ReduceMean", ["grid", "axes"], ["features"], keepdims=0),
    ]
    outputs = [helper.make_tensor_value_info("features", float_, ["n", 3])]
    if with_grid:
        outputs.append(helper.make_tensor_value_info("grid", float_, ["n", SIZE * SIZE, 3]))
    pixels = helper.make_tensor_value_info("pixels", uint8, ["n", SIZE, SIZE, 3])
    axes = numpy_helper.from_array(np.array([1]), "axes")
    graph = helper.make_graph(nodes, "toy", [pixels], outputs, [shape, axes])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, path)


@pytest.fixture(params=[True, False], ids=["grid", "no grid"])
def backbone(request, tmp_path):
    write_graph(tmp_path / "backbone.onnx", request.param)
    return Backbone("toy", "d", SIZE, 3, tmp_path / "backbone.onnx"), request.param


def test_one_pass_gives_features_and_the_feature_map_if_there_is_one(backbone):
    network, with_grid = backbone
    images = [colour_image("red", size=SIZE), colour_image("red", "blue", size=SIZE)]
    found = network.feature_maps(images)
    assert found.pooled == pytest.approx(np.array([[255, 0, 0], [127.5, 0, 127.5]]))
    np.testing.assert_array_equal(network.features(images), found.pooled)
    if not with_grid:
        assert found.grid is None
        return
    assert found.grid.shape == (2, SIZE * SIZE, 3)  # cells row by row
    assert found.grid[1, 1].tolist() == [255, 0, 0] and found.grid[1, 2].tolist() == [0, 0, 255]


@pytest.mark.parametrize("way", [Tuning(2, 1), Tuning(2, 2)])
def test_parts_of_a_batch_are_joined_in_order_in_every_output(backbone, monkeypatch, way):
    network, _ = backbone
    images = [colour_image(one, size=SIZE) for one in ("red", "blue", "red", "blue", "blue")]
    whole = network.feature_maps(images)
    monkeypatch.setattr(image, "TUNED_AFTER", 0)
    monkeypatch.setattr(image, "tuned", lambda key, run: way)
    found = network.feature_maps(images)
    np.testing.assert_array_equal(found.pooled, whole.pooled)
    assert found.pooled[:, 0].tolist() == [255, 0, 255, 0, 0]
    np.testing.assert_array_equal(found.grid, whole.grid)


def test_no_images_give_no_features(backbone):
    assert backbone[0].feature_maps([]).pooled.shape == (0, 3)


@pytest.fixture
def heads(tmp_path, monkeypatch):
    """A user's models folder with heads of two backbones; opening one gives its folder's name."""
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path))
    for name, kind, digest in (
        ("a-tags", "tagger", "one"),
        ("b-tags", "tagger", "two"),
        ("c-captions", "captioner", "one"),
    ):
        (tmp_path / name).mkdir()
        card = {"kind": kind, "name": name, "backbone": "x", "backbone_digest": digest}
        model_folder.write_card(tmp_path / name, card)
    opened = SimpleNamespace(open=lambda folder: folder.name)
    monkeypatch.setattr(
        registry, "KINDS", {**registry.KINDS, "tagger": opened, "captioner": opened}
    )


@pytest.mark.usefixtures("heads")
def test_heads_are_found_by_the_digest_of_their_backbone():
    assert registry.find_enricher("one") == registry.Enricher("a-tags", "c-captions")
    assert registry.find_enricher("two") == registry.Enricher("b-tags", None)
    assert not registry.find_enricher("three")


def test_files_are_described_in_order_and_problems_named(image_folder, describing_model):
    (image_folder / "no.jpg").write_bytes(b"no image")
    paths = [image_folder / name for name in ("no.jpg", "blue.png", "gone.png")]
    broken, blue, gone = describe_files(describing_model, paths)
    assert [one.path for one in (broken, blue, gone)] == paths
    assert broken.problem and gone.problem and not blue.problem
    assert [one.text for one in blue.captions] == ["a blue image", "蓝色的图像", "青の画像"]
    assert [tag.label for tag in blue.tags] == ["blue"]


def test_sentences_of_a_language_that_no_model_reads_are_an_error(fake_model):
    pixels = colour_image("red")
    with pytest.raises(UnknownLanguage, match="no model reads 'fr'"):
        best_sentences(fake_model, pixels, ["rouge"], 3, "fr")
    assert best_sentences(fake_model, pixels, [], 3) == ()


def test_equal_sentences_count_once_and_ties_keep_the_order_of_the_pool(fake_model):
    pool = ["red", "a red cat", "red", "blue"]
    found = best_sentences(fake_model, colour_image("red"), pool, 5)
    assert [one.text for one in found] == ["red", "a red cat", "blue"]
    assert [round(one.score, 6) for one in found] == [1, 1, 0]
