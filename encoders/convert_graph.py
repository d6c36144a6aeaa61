"""ONNX graphs of other people as backbones: pixels are scaled inside the graph."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from capsearch.engine.errors import MissingExtra, UnknownModel

if TYPE_CHECKING:
    from onnx import GraphProto

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
