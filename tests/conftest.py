"""Fixtures every folder's tests may use. No weights, no network, no photographs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsearch.encoders.models import Model
from capsearch.engine.fakes import FakeImageEncoder, FakeTextEncoder, colour_picture
from capsearch.indexer.collection import Collection


def build_fake_model(backbone: str = "toy", turn: int = 0, toll: float = 0.0) -> Model:
    """A model of toy encoders; another `turn` is another projection over the same eyes."""
    return Model(
        name=f"fake-{turn}" if turn else "fake",
        digest=f"digest-of-{backbone}-{turn}",
        image=FakeImageEncoder(backbone, turn, toll),
        text=FakeTextEncoder(turn=turn, toll=toll),
    )


@pytest.fixture
def make_model() -> Callable[..., Model]:
    return build_fake_model


@pytest.fixture
def fake_model() -> Model:
    return build_fake_model()


def write_picture(path: Path, *colours: str, size: int = 16) -> Path:
    """A striped picture on disk; the suffix chooses the format, lossless where it can be."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    options = {".jpg": {"quality": 95}, ".webp": {"lossless": True}}.get(path.suffix, {})
    Image.fromarray(colour_picture(*colours, size=size)).save(path, **options)
    return path


@pytest.fixture
def picture() -> Callable[..., Path]:
    return write_picture


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """A small folder: four plain colours, one of them two folders down."""
    root = tmp_path / "photos"
    write_picture(root / "blue.png", "blue")
    write_picture(root / "green.jpg", "green")
    write_picture(root / "red.png", "red")
    write_picture(root / "trips" / "2024" / "yellow.webp", "yellow")
    return root


@pytest.fixture
def collection(tmp_path: Path, fake_model: Model) -> Iterator[Collection]:
    """An empty index, open for writing."""
    with Collection.create(tmp_path / "index", fake_model) as opened:
        yield opened
