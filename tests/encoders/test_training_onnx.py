"""ONNX export: the served graph, its names and shapes, and its weights read back into torch."""

import warnings
from copy import deepcopy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from small_networks import SMALL, network, noise  # noqa: E402

from capsearch.encoders.models import registry  # noqa: E402
from capsearch.encoders.settings import DEFAULT_BACKBONE  # noqa: E402
from capsearch.encoders.train.backbone import LowerBlocks  # noqa: E402
from capsearch.encoders.train.export import (  # noqa: E402
    OUTPUTS,
    StandardisedBackbone,
    export_backbone,
    load_upper_blocks,
)
from capsearch.encoders.train.graphs import OPSET, to_onnx  # noqa: E402
from capsearch.encoders.train.networks import (  # noqa: E402
    FEATURES,
    TinyViT,
)
from capsearch.engine.errors import TrainingProblem  # noqa: E402

__all__ = ["network"]  # a fixture


def graph_of(network, folder):
    path = folder / "graph.onnx"
    mean, deviation = torch.rand(FEATURES), torch.rand(FEATURES) + 0.5
    module = StandardisedBackbone(network, mean, deviation).eval().requires_grad_(False)
    to_onnx(module, SMALL.input_size, path, OUTPUTS)
    return module, path


def test_a_graph_takes_any_number_of_uint8_images(network, tmp_path):
    module, path = graph_of(network, tmp_path)
    graph = onnx.load(path).graph
    (pixels,), outputs = graph.input, graph.output
    assert (pixels.name, *(one.name for one in outputs)) == ("pixels", "features", "grid")
    assert pixels.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert pixels.type.tensor_type.shape.dim[0].dim_param == "images"
    session = onnxruntime.InferenceSession(path)
    for count in (1, 2, 5):
        images = noise(count)
        found = session.run(None, {"pixels": images})
        for one, expected in zip(found, module(torch.from_numpy(images)), strict=True):
            np.testing.assert_allclose(one, expected.numpy(), rtol=1e-5, atol=1e-4)


def test_a_graph_says_nothing_about_the_machine_that_made_it(network, tmp_path):
    content = graph_of(network, tmp_path)[1].read_bytes()
    assert b"capsearch" not in content
    assert b".py" not in content


def test_features_are_the_standardised_mean_of_the_feature_map(network):
    mean, deviation = torch.rand(FEATURES), torch.rand(FEATURES) + 0.5
    with torch.no_grad():
        features, grid = StandardisedBackbone(network, mean, deviation)(torch.from_numpy(noise(2)))
    assert grid.shape == (2, 4, FEATURES)  # 64 px / 32: two rows of two cells
    torch.testing.assert_close(features, (grid.mean(1) - mean) / deviation)


def test_the_graph_computes_what_torchs_former_exporter_gave(network, tmp_path):
    module, path = graph_of(network, tmp_path)
    former = tmp_path / "former.onnx"
    images = torch.from_numpy(noise(3))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns of its removal
        torch.onnx.export(
            module,
            (images[:1],),
            former,
            input_names=["pixels"],
            output_names=list(OUTPUTS),
            dynamic_axes={
                "pixels": {0: "images"},
                "features": {0: "images"},
                "grid": {0: "images"},
            },
            opset_version=OPSET - 1,
            dynamo=False,
        )
    one, other = (
        onnxruntime.InferenceSession(file).run(None, {"pixels": images.numpy()})[0]
        for file in (path, former)
    )
    np.testing.assert_allclose(one, other, atol=1e-4)
    names = [
        {weight.name for weight in onnx.load(file).graph.initializer} for file in (path, former)
    ]
    assert set(module.state_dict()) <= names[0] & names[1]


def test_the_export_writes_no_warnings(network, tmp_path, capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        graph_of(network, tmp_path)
    assert capfd.readouterr() == ("", "")


def test_a_served_backbone_is_torchs_network_with_weights_in_half_precision(network, tmp_path):
    images = noise(4)
    features = network(network.scale(torch.from_numpy(images)))
    mean, deviation = (x.half().float() for x in (features.mean(0), features.std(0) + 1e-1))
    export_backbone(network, 64, mean, deviation, tmp_path, {"name": "small"})
    served = registry.load_backbone(str(tmp_path))
    assert (served.input_size, served.dimension) == (64, FEATURES)
    found = served.features(list(images))

    halved = deepcopy(network).half().float()
    expected = (halved(halved.scale(torch.from_numpy(images))) - mean) / deviation
    assert expected.std() > 0.5  # the images differ
    np.testing.assert_allclose(found, expected.numpy(), atol=2e-2)
    np.testing.assert_allclose(served.features([images[1]])[0], found[1], atol=2e-2)
    size = sum(p.numel() for p in network.parameters()) * 2  # float16
    assert (tmp_path / "backbone.onnx").stat().st_size < 1.1 * size


def test_exported_weights_are_read_back(network, tmp_path):
    mean, deviation = torch.zeros(FEATURES), torch.ones(FEATURES)
    export_backbone(network, 64, mean, deviation, tmp_path, {"name": "small"})
    lower = LowerBlocks("lite0", deepcopy(network))
    with torch.no_grad():
        lower.network.head.weight.zero_()
    upper = load_upper_blocks(tmp_path, lower)
    torch.testing.assert_close(upper.head.weight, network.head.weight.half().float())
    torch.testing.assert_close(upper.mean, mean)


def test_a_graph_without_the_weights_of_a_trained_layer_cannot_be_fine_tuned(network, tmp_path):
    export_backbone(
        network, 64, torch.zeros(FEATURES), torch.ones(FEATURES), tmp_path, {"name": "small"}
    )
    model = onnx.load(tmp_path / "backbone.onnx")
    for part in (*model.graph.initializer, *model.graph.node):
        if part.name == "network.head.weight.half":
            part.name = "other"
    onnx.save(model, tmp_path / "backbone.onnx")
    with pytest.raises(TrainingProblem, match=r"no weights called head.weight; start from lite0"):
        load_upper_blocks(tmp_path, LowerBlocks("lite0", deepcopy(network)))


def test_the_weights_of_the_built_in_backbone_are_read_back():
    folder = Path(registry.find(DEFAULT_BACKBONE, "backbone"))
    shipped = onnx.load(folder / "backbone.onnx")
    upper = load_upper_blocks(folder, LowerBlocks("tinyvit", TinyViT().eval()))
    stored = {weight.name: weight for weight in shipped.graph.initializer}
    expected = onnx.numpy_helper.to_array(stored["network.head.weight.half"])
    np.testing.assert_array_equal(upper.head.weight.detach().numpy(), expected.astype(np.float32))
