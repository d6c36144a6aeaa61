"""`capsearch train` on forty small images: the data, a trained backbone, the command."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from capsearch.encoders.train import networks
from capsearch.encoders.train import w2vv as network
from capsearch.encoders.train.networks import NETWORKS
from capsearch.engine.fakes import colour_image
from capsearch.ui.cli.main import main

COLOURS = {
    "red": ("a red wall", "红色的墙", "赤い壁"),
    "green": ("a green wall", "绿色的墙", "緑の壁"),
    "blue": ("a blue wall", "蓝色的墙", "青い壁"),
    "yellow": ("a yellow wall", "黄色的墙", "黄色い壁"),
    "black": ("a black wall", "黑色的墙", "黒い壁"),
}
Command = Callable[..., tuple[int, str, str]]


def record(number: int, texts: tuple[str, str, str]) -> dict[str, Any]:
    captions = zip(("en", "zh", "ja"), texts, strict=True)
    by_language = {language: [{"text": text, "source": "test"}] for language, text in captions}
    return {"id": number, "file": f"{number}.png", "captions": by_language}


def write_data(folder: Path) -> Path:
    """Thirty images to train on and ten to validate with, of five colours and two sizes."""
    folder.mkdir()
    colours = list(COLOURS)
    for number in range(40):
        pixels = colour_image(colours[number % 5], size=16 + number // 20)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    for split, numbers in (("train", range(30)), ("val", range(30, 40))):
        write_split(folder, split, [record(n, COLOURS[colours[n % 5]]) for n in numbers])
    return folder


def write_split(folder: Path, split: str, records: list[dict[str, Any]]) -> None:
    lines = "\n".join(map(json.dumps, records)).encode()
    (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines))


INPUT_SIZE = 128


def random_network() -> networks.EfficientNetLite:
    torch.manual_seed(5)
    lite = replace(networks.LITES["lite0"], input_size=INPUT_SIZE)
    made = networks.EfficientNetLite(lite).eval()
    for part in made.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return made


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `data` and `models`, small networks, and the backbone `small-cap`."""
    folder = tmp_path_factory.mktemp("workshop")
    write_data(folder / "data")
    small = partial(network.TextConfig, bow_width=16, word_width=8, gru_width=8, hidden=32)
    lite = replace(NETWORKS["lite0"], input_size=INPUT_SIZE, load=random_network)
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(NETWORKS, "lite0", lite)  # type: ignore[arg-type]
        patch.setattr(network, "TextConfig", small)
        patch.setenv("CAPSEARCH_MODELS", str(folder / "models"))
        arguments = ["--from", "lite0", "--name", "small-cap"]
        arguments += ["--epochs", "1", "--frozen-epochs", "0"]
        assert main(["train", "backbone", *common(folder), *arguments]) == 0
        yield folder


def common(folder: Path, data: Path | None = None) -> list[str]:
    paths = ["--data", str(data or folder / "data"), "--cache", str(folder / "cache")]
    return [*paths, "--min-count", "1", "--batch-size", "15"]


@pytest.fixture
def train(workshop: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """train("text", "--name", "mine", ...) on the data; models go to workshop/models."""

    def run_train(kind: str, *arguments: str, data: Path | None = None) -> tuple[int, str, str]:
        capsys.readouterr()
        own = kind in ("backbone", "student") or "--from" in arguments
        backbone_option = [] if own else ["--backbone", "small-cap"]
        code = main(["train", kind, *common(workshop, data), *backbone_option, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_train
