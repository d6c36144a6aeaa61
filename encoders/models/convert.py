"""ONNX graphs of other people as backbones: pixels are scaled inside the graph.

The image tower of CLIP as a backbone, from an ONNX file with dynamically quantised products.

Its features are the class token and the mean of the patch tokens: for search with text encoders of
our own they are better than CLIP's embedding, which is a projection of the class token alone
(docs/ablations.md).

The carrier's graph multiplies int8 weights with activations that are quantised on the fly, one
scale for a whole tensor, which destroys the features. The weights themselves are good: each product
is rewritten to float, `MatMul(x, DequantizeLinear(weights))`, which ONNX Runtime folds when the
session opens, so the file stays as small as it was. Pixels are scaled inside the graph, as for all
backbones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.engine.errors import MissingExtra, UnknownModel
from capsearch.engine.records import Vectors

if TYPE_CHECKING:
    from onnx import GraphProto, NodeProto


IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_DEVIATION = (0.229, 0.224, 0.225)


def convert(
    source: bytes, given: str, found: str, mean: Sequence[float], deviation: Sequence[float]
) -> bytes:
    """A backbone graph: `pixels` (N, S, S, 3) uint8 -> `features` (N, F).

    `given` and `found` are the source's input, (N, 3, S, S), and its output; its weights keep
    their names and their order. UnknownModel for a graph without them.
    """
    onnx = load_onnx()
    model = onnx.load_model_from_string(source)
    check_names(model.graph, {given, found})
    scale_pixels(model.graph, given, mean, deviation)
    _rename_output(model.graph, found)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def check_names(graph: GraphProto, expected: set[str]) -> None:
    """UnknownModel unless the graph has all of these inputs, outputs and values in between."""
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    if not expected <= names:
        raise UnknownModel(f"the graph lacks {sorted(expected - names)}: it is another network")


def scale_pixels(
    graph: GraphProto, name: str, mean: Sequence[float], deviation: Sequence[float]
) -> None:
    """The old input is computed from bytes: (N, S, S, 3) -> scaled (N, 3, S, S)."""
    onnx = load_onnx()
    (given,) = [one for one in graph.input if one.name == name]
    side = given.type.tensor_type.shape.dim[2].dim_value
    graph.input.remove(given)
    graph.input.append(
        onnx.helper.make_tensor_value_info(
            "pixels", onnx.TensorProto.UINT8, ["images", side, side, 3]
        )
    )
    for constant, value in (("pixel_mean", mean), ("pixel_deviation", deviation)):
        scaled = 255 * np.array(value, np.float32)
        graph.initializer.append(onnx.numpy_helper.from_array(scaled, constant))
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


def _rename_output(graph: GraphProto, name: str) -> None:
    """One output `features`, for any number of images."""
    onnx = load_onnx()
    (found,) = [one for one in graph.output if one.name == name]
    width = found.type.tensor_type.shape.dim[1].dim_value
    del graph.output[:]
    graph.output.append(
        onnx.helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, ["images", width])
    )
    graph.node.append(onnx.helper.make_node("Identity", [name], ["features"]))


def load_onnx() -> Any:
    """The package onnx with the modules that conversion needs."""
    try:
        import onnx
        import onnx.checker
        import onnx.helper
        import onnx.numpy_helper
    except ImportError:
        raise MissingExtra("converting a model", "train") from None
    return onnx


MEAN = (0.48145466, 0.4578275, 0.40821073)
DEVIATION = (0.26862954, 0.26130258, 0.27577711)


@dataclass(frozen=True, slots=True)
class Tower:
    """The names of a source graph's parts, and how its features are standardised."""

    pixels: str  # the input, (N, 3, S, S)
    tokens: str  # (N, 1 + P, W) after the last layer: the class token, then the patches
    class_token: str  # (N, W) after the final layer norm
    mean: Vectors  # (2W,) of the class token and of the mean patch token over training images
    deviation: Vectors  # (2W,)


def convert_tower(source: bytes, tower: Tower) -> bytes:
    """A backbone graph: `pixels` (N, S, S, 3) uint8 -> standardised `features` (N, 2W).

    UnknownModel for a graph that is not laid out as expected.
    """
    onnx = load_onnx()
    model = onnx.load_model_from_string(source)
    graph = model.graph
    check_names(graph, {tower.pixels, tower.tokens, tower.class_token})
    to_float(graph)
    scale_pixels(graph, tower.pixels, MEAN, DEVIATION)
    _features(graph, tower)
    _prune(graph)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def to_float(graph: GraphProto) -> int:
    """Replaces every dynamically quantised product by a float one; how many there were."""
    helper = load_onnx().helper
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


def _features(graph: GraphProto, tower: Tower) -> None:
    onnx = load_onnx()
    constants = {
        "first_patch": np.array([1], np.int64),
        "after_last": np.array([np.iinfo(np.int64).max], np.int64),
        "token_axis": np.array([1], np.int64),
        "feature_mean": tower.mean,
        "feature_deviation": tower.deviation,
    }
    for name, value in constants.items():
        graph.initializer.append(onnx.numpy_helper.from_array(value, name))
    make = onnx.helper.make_node
    patches = [tower.tokens, "first_patch", "after_last", "token_axis"]
    graph.node.extend(
        [
            make("Slice", patches, ["patches"]),
            make("ReduceMean", ["patches"], ["patches.mean"], axes=[1], keepdims=0),
            make("Concat", [tower.class_token, "patches.mean"], ["features.raw"], axis=1),
            make("Sub", ["features.raw", "feature_mean"], ["features.centred"]),
            make("Div", ["features.centred", "feature_deviation"], ["features"]),
        ]
    )
    del graph.output[:]
    shape = ["images", len(tower.mean)]
    graph.output.append(
        onnx.helper.make_tensor_value_info("features", onnx.TensorProto.FLOAT, shape)
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
