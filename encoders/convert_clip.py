"""The image tower of CLIP as a backbone, from an ONNX file with dynamically quantised products.

The carrier's graph multiplies int8 weights with activations that are quantised on the fly, one
scale for a whole tensor, which destroys the features. The weights themselves are good: each product
is rewritten to float, `MatMul(x, DequantizeLinear(weights))`, which ONNX Runtime folds when the
session opens, so the file stays as small as it was. Pixels are scaled inside the graph, as for all
backbones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.engine.errors import MissingExtra, UnknownModel

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto

MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


def convert(source: bytes, pixels: str, embedding: str, dimension: int) -> bytes:
    """A backbone graph: `pixels` (N, S, S, 3) uint8 -> `features` (N, dimension).

    `pixels` and `embedding` name the input and the output of the source graph. Features are the
    unit embedding times sqrt(dimension), so that their entries are around 1. UnknownModel for a
    graph that is not laid out as expected.
    """
    onnx = _onnx()
    model = onnx.load_model_from_string(source)
    names = {one.name for one in (*model.graph.input, *model.graph.output)}
    if not {pixels, embedding} <= names:
        raise UnknownModel(f"no {pixels} and {embedding} in this graph, but {sorted(names)}")
    to_float(model.graph)
    _scale_pixels(model.graph, pixels)
    _unit_features(model.graph, embedding, dimension)
    _prune(model.graph)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def to_float(graph: GraphProto) -> int:
    """Replaces every dynamically quantised product by a float one; how many there were."""
    helper = _onnx().helper
    made_by = {name: node for node in graph.node for name in node.output}
    used_by: dict[str, list[NodeProto]] = {}
    for node in graph.node:
        for name in node.input:
            used_by.setdefault(name, []).append(node)
    replaced: dict[str, list[NodeProto]] = {}  # by the name of the last old node's output
    for node in graph.node:
        if node.op_type != "MatMulInteger":
            continue
        quantised, weights, _, zero_point = node.input
        activation = made_by[quantised].input[0]  # of DynamicQuantizeLinear
        (cast,) = used_by[node.output[0]]
        (scaled,) = used_by[cast.output[0]]
        scale = weights.removesuffix("_quantized") + "_scale"
        plain = f"{weights}.float"
        replaced[scaled.output[0]] = [
            helper.make_node("DequantizeLinear", [weights, scale, zero_point], [plain], axis=1),
            helper.make_node("MatMul", [activation, plain], [scaled.output[0]]),
        ]
    _replace(graph, replaced)
    return len(replaced)


def _replace(graph: GraphProto, replaced: Mapping[str, Iterable[NodeProto]]) -> None:
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes.extend(replaced.get(node.output[0], [node]))
    del graph.node[:]
    graph.node.extend(nodes)


def _scale_pixels(graph: GraphProto, name: str) -> None:
    """The old input is computed from bytes: (N, S, S, 3) -> scaled (N, 3, S, S)."""
    onnx = _onnx()
    (given,) = [one for one in graph.input if one.name == name]
    side = given.type.tensor_type.shape.dim[2].dim_value
    graph.input.remove(given)
    graph.input.append(
        onnx.helper.make_tensor_value_info(
            "pixels", onnx.TensorProto.UINT8, ["images", side, side, 3]
        )
    )
    mean = 255 * np.array(MEAN, np.float32)
    deviation = 255 * np.array(DEVIATION, np.float32)
    for constant, value in (("pixel_mean", mean), ("pixel_deviation", deviation)):
        graph.initializer.append(onnx.numpy_helper.from_array(value, constant))
    make = onnx.helper.make_node
    first = [
        make("Cast", ["pixels"], ["pixels.float"], to=onnx.TensorProto.FLOAT),
        make("Sub", ["pixels.float", "pixel_mean"], ["pixels.centred"]),
        make("Div", ["pixels.centred", "pixel_deviation"], ["pixels.scaled"]),
        make("Transpose", ["pixels.scaled"], [name], perm=[0, 3, 1, 2]),
    ]
    nodes = [*first, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)


def _unit_features(graph: GraphProto, embedding: str, dimension: int) -> None:
    onnx = _onnx()
    length = np.array(sqrt(dimension), np.float32)
    graph.initializer.append(onnx.numpy_helper.from_array(length, "feature_length"))
    make = onnx.helper.make_node
    graph.node.extend(
        [
            make("LpNormalization", [embedding], ["features.unit"], axis=1, p=2),
            make("Mul", ["features.unit", "feature_length"], ["features"]),
        ]
    )
    del graph.output[:]
    graph.output.append(
        onnx.helper.make_tensor_value_info(
            "features", onnx.TensorProto.FLOAT, ["images", dimension]
        )
    )


def _prune(graph: GraphProto) -> None:
    """Drops nodes and weights that no output needs."""
    needed = {one.name for one in graph.output}
    nodes = []
    for node in reversed(graph.node):
        if needed & set(node.output):
            nodes.append(node)
            needed.update(node.input)
    del graph.node[:]
    graph.node.extend(reversed(nodes))
    weights = [one for one in graph.initializer if one.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(weights)
    del graph.value_info[:]


def _onnx() -> Any:
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise MissingExtra("converting a model", "train") from None
    return onnx
