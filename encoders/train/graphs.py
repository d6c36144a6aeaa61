"""Networks as ONNX graphs, in 16 or 8 bits: backbones, and the towers of open_clip models."""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsearch.encoders.models.open_clip import OpenClip

OPSET = 18  # the oldest that torch's exporter writes without converting
MIN_HALVED = 64  # entries; smaller tensors stay float32
SHORT, SAME = "a cat", 0.99999  # a text of few tokens, and the cosine of equal vectors
MAX_PROTOBUF = 2_000_000_000  # bytes of one file; larger weights lie beside it


def to_onnx(module: nn.Module, size: int, to: Path, outputs: Sequence[str]) -> None:
    """A graph from `pixels` (N, size, size, 3) uint8 to `outputs`, for any N.

    Weights keep their names and values, so that they can be read back.
    """
    # Two images, not one: torch.export specialises a dimension of size 1 to that size.
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    shapes = {0: torch.export.Dim("images")}
    write_graph(module, example, shapes, ["pixels", *outputs], to, keep_weights=True)


def write_graph(
    module: nn.Module,
    example: Tensor,
    shapes: Mapping[int, Any],
    names: Sequence[str],
    to: Path,
    external_data: bool = False,
    keep_weights: bool = False,
) -> None:
    """The graph of a module with one input; `names` are that of the input and of the outputs.

    `shapes` are the dimensions of the input that may change. With `external_data`, weights lie
    beside the graph, which may then be larger than protobuf's two gigabytes. With `keep_weights`,
    they are those of the module by name: none is transposed or otherwise folded.
    """
    with _without_exporter_warnings():
        program = torch.onnx.export(
            module,
            (example,),
            input_names=[names[0]],
            output_names=list(names[1:]),
            dynamic_shapes=(dict(shapes),),
            opset_version=OPSET,
            dynamo=True,
            optimize=not keep_weights,
            verbose=False,
        )
        assert program is not None  # as there was no file to write to
        if keep_weights:
            _optimize_around_weights(program.model)
        for node in program.model.graph:
            node.metadata_props.clear()  # where its code lies on this machine: digests differed
        program.save(to, external_data=external_data)


def _optimize_around_weights(model: Any) -> None:
    """What the exporter does by default, but for nodes that take a weight."""
    from onnxscript.optimizer import optimize_ir

    def folded(node: Any) -> bool | None:
        weights = any(value is not None and value.is_initializer() for value in node.inputs)
        return False if weights else None  # None: as by default

    optimize_ir(model, should_fold=folded)


@contextmanager
def _without_exporter_warnings() -> Iterator[None]:
    """Hides what the exporter reports about itself: no torchvision, its own deprecations."""
    logger = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def halve(model: Any) -> None:
    """Store large float32 weights as float16 behind a Cast, which the runtime folds at start."""
    from onnx import TensorProto, helper, numpy_helper

    casts = []
    for weight in model.graph.initializer:
        if weight.data_type != TensorProto.FLOAT or np.prod(weight.dims) < MIN_HALVED:
            continue
        half = numpy_helper.from_array(
            numpy_helper.to_array(weight).astype(np.float16), f"{weight.name}.half"
        )
        casts.append(helper.make_node("Cast", [half.name], [weight.name], to=TensorProto.FLOAT))
        weight.CopyFrom(half)
    nodes = [*casts, *model.graph.node]
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def weights_of(path: Path) -> dict[str, Tensor]:
    """A graph's weights by their names, which are those in torch, as float32.

    Both of torch's exporters name initializers so; what else they add (constants) has no
    counterpart in torch and is ignored by the caller.
    """
    import onnx
    from onnx import numpy_helper

    return {
        weight.name.removesuffix(".half"): torch.tensor(numpy_helper.to_array(weight)).float()
        for weight in onnx.load(path).graph.initializer
    }


class ImageGraph(nn.Module):
    """(N, S, S, 3) uint8 -> (N, D) unit vectors."""

    def __init__(self, source: OpenClip) -> None:
        super().__init__()
        self.source, self.network = source, source.network

    def forward(self, pixels: Tensor) -> Tensor:
        """Scaling is part of the graph."""
        return self.source.images(pixels)


class TextGraph(nn.Module):
    """(N, T) token ids -> (N, D) unit vectors."""

    def __init__(self, source: OpenClip) -> None:
        super().__init__()
        self.source, self.network = source, source.network
        if getattr(self.network.text, "attn_mask", None) is not None:
            self.network.text.transformer.register_forward_pre_hook(_cut_mask, with_kwargs=True)

    def forward(self, tokens: Tensor) -> Tensor:
        """The text tower with its pooling and projection."""
        return self.source.texts(tokens)


def _cut_mask(
    module: nn.Module, inputs: tuple[Tensor, ...], options: dict[str, Any]
) -> tuple[tuple[Tensor, ...], dict[str, Any]]:
    """The causal mask as long as the texts: open_clip gives that of the whole context."""
    length, mask = inputs[0].shape[1], options.get("attn_mask")
    if mask is None:
        return inputs, options
    return inputs, {**options, "attn_mask": mask[..., :length, :length]}


def image_graph(source: OpenClip, to: Path) -> None:
    """Writes `pixels` (N, S, S, 3) -> `features` (N, D), for any N."""
    size = source.preprocessing["size"]
    example = torch.zeros(2, size, size, 3, dtype=torch.uint8)
    shapes = {0: torch.export.Dim("images")}
    _write(ImageGraph(source), example, shapes, ("pixels", "features"), to)


def text_graph(
    source: OpenClip, graph: TextGraph, examples: Sequence[str], to: Path, trim: bool
) -> None:
    """Writes `tokens` (N, T) -> `vectors` (N, D), for any N; with `trim` for shorter T too."""
    tokens = source.tokenizer(list(examples)).to("cpu")
    shapes: dict[int, Any] = {0: torch.export.Dim("texts")}
    if trim:
        shapes[1] = torch.export.Dim("tokens", min=2, max=tokens.shape[1])
        tokens = tokens[:, :-1]  # an example at the limit would fix the dimension
    _write(graph, tokens, shapes, ("tokens", "vectors"), to)


def may_be_trimmed(source: OpenClip, graph: TextGraph, padding: int) -> bool:
    """Whether a text without its padding has the same vector: then short texts are quicker."""
    tokens = source.tokenizer([SHORT]).cpu()
    length = int((tokens[0] != padding).nonzero().max()) + 1
    with torch.inference_mode():
        try:
            short, whole = graph(tokens[:, :length]), graph(tokens)
        except RuntimeError:  # a tower for texts of one length
            return False
    return length < tokens.shape[1] and float((short * whole).sum()) > SAME


def to_int8(graph: Path, to: Path) -> None:
    """Quantises matrix products and tables: int8 weights, activations as they come."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "float.onnx"
        _save(_float_weights(graph), whole)
        quantize_dynamic(
            whole,
            to,
            op_types_to_quantize=["MatMul", "Gemm", "Gather"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True, "DefaultTensorType": 1},
        )


def _write(
    module: nn.Module,
    example: Tensor,
    shapes: Mapping[int, Any],
    names: tuple[str, str],
    to: Path,
) -> None:
    import onnx

    with tempfile.TemporaryDirectory() as place:
        whole = Path(place) / "graph.onnx"
        write_graph(module.eval().cpu(), example, shapes, names, whole, external_data=True)
        model = onnx.load(whole)
    halve(model)
    _save(model, to)


def _float_weights(graph: Path) -> Any:
    """The graph with the float32 weights that `halve` put behind casts."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(graph)
    halves = {weight.name: weight for weight in model.graph.initializer}
    casts = {
        node.input[0]: node.output[0]
        for node in model.graph.node
        if node.op_type == "Cast" and node.input[0] in halves
    }
    for name, output in casts.items():
        array = numpy_helper.to_array(halves[name]).astype(np.float32)
        halves[name].CopyFrom(numpy_helper.from_array(array, output))
    nodes = [node for node in model.graph.node if not {*node.input[:1]} & casts.keys()]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    del model.graph.value_info[:]  # shapes of values that the quantiser replaces
    return model


def _save(model: Any, to: Path) -> None:
    """One file; above the limit of protobuf, weights in a second one."""
    import onnx

    large = model.ByteSize() > MAX_PROTOBUF
    beside = f"{to.name}.data" if large else None
    onnx.save(model, to, save_as_external_data=large, location=beside)
