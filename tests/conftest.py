"""Fixtures for the tests of all folders: synthetic images and models, no network."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from elastic_node import DidNotStart, Node, Unavailable, running_nodes

import capsearch
from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.fakes import (
    FakeCaptioner,
    FakeImageEncoder,
    FakeTagger,
    FakeTextEncoder,
    colour_image,
)
from capsearch.engine.protocols import Enricher
from capsearch.indexer.sqlite.collection import Collection
from capsearch.library import Library


def build_fake_model(backbone: str = "toy", turn: int = 0, penalty: float = 0.0) -> Model:
    """A model of toy encoders; another `turn` is another projection of the same backbone."""
    return Model(
        name=f"fake-{turn}" if turn else "fake",
        digest=f"digest-of-{backbone}-{turn}",
        image=FakeImageEncoder(backbone, turn, penalty),
        text=FakeTextEncoder(turn=turn, penalty=penalty),
    )


@pytest.fixture
def describing_model() -> Model:
    """The toy model with a tagger and a captioner, always the same two."""
    enricher = Enricher(FakeTagger(), FakeCaptioner())
    return replace(build_fake_model(), enricher=lambda: enricher)


@pytest.fixture
def make_model() -> Callable[..., Model]:
    return build_fake_model


@pytest.fixture
def fake_model() -> Model:
    return build_fake_model()


def write_image(path: Path, *colours: str, size: int = 16) -> Path:
    """Writes an image of coloured stripes; the suffix sets the format, lossless if possible."""
    from PIL import Image

    path.parent.mkdir(parents=True, exist_ok=True)
    options = {".jpg": {"quality": 95}, ".webp": {"lossless": True}}.get(path.suffix, {})
    Image.fromarray(colour_image(*colours, size=size)).save(path, **options)
    return path


@pytest.fixture
def image() -> Callable[..., Path]:
    return write_image


@pytest.fixture
def image_folder(tmp_path: Path) -> Path:
    """A folder with four images of one colour each, one of them two folders down."""
    root = tmp_path / "images"
    write_image(root / "blue.png", "blue")
    write_image(root / "green.jpg", "green")
    write_image(root / "red.png", "red")
    write_image(root / "trips" / "2024" / "yellow.webp", "yellow")
    return root


@pytest.fixture
def toy_models(monkeypatch: pytest.MonkeyPatch, fake_model: Model) -> Model:
    """Makes every model name load the toy model."""
    monkeypatch.setattr(registry, "load", lambda name=None: fake_model)
    return fake_model


@pytest.fixture
def library(tmp_path: Path, toy_models: Model) -> Iterator[Library]:
    """A library whose index is not there yet."""
    with capsearch.open(tmp_path / "index") as opened:
        yield opened


@pytest.fixture
def collection(tmp_path: Path, fake_model: Model) -> Iterator[Collection]:
    """An empty index, open for writing."""
    with Collection.create(tmp_path / "index", fake_model) as opened:
        yield opened


@pytest.fixture(scope="session")
def elastic_node() -> Iterator[Node]:
    """A real Elasticsearch, one for all tests; tests that need it are marked `elastic`."""
    if "CAPSEARCH_TEST_ES" in os.environ:  # "URL USER PASSWORD CA": one that runs already
        url, user, password, certificate = os.environ["CAPSEARCH_TEST_ES"].split()
        yield Node(url, Path(certificate), password, user)
        return
    with _or_skipped(1, 1024) as nodes:
        yield nodes[0]


@pytest.fixture(params=["folder", pytest.param("cluster", marks=pytest.mark.elastic)])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[object]:
    """Where tests/indexer make a collection: a test that takes it runs on both backends."""
    from places import Place

    if request.param == "folder":
        yield Place(tmp_path / "index")
        return
    from capsearch.indexer.elastic import collection as versions
    from capsearch.indexer.elastic.client import Address, connect

    node = request.getfixturevalue("elastic_node")
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(
        "capsearch.indexer.elastic.collection.user_cache_path", lambda _: tmp_path / "cache"
    )
    address = Address.parse(f"{node.url}/{tmp_path.name.lower().strip('_')}")
    yield Place(str(address))
    versions.drop(connect(address), address)


@pytest.fixture
def three_nodes() -> Iterator[list[Node]]:
    """Three real nodes that form a cluster; for tests that are marked `elastic` and `slow`."""
    with _or_skipped(3, 512) as nodes:
        yield nodes


@contextmanager
def _or_skipped(count: int, heap_mb: int) -> Iterator[list[Node]]:
    """Skips where no Elasticsearch can be had; one that does not start is a failure in CI."""
    with ExitStack() as stack:
        try:
            nodes = stack.enter_context(running_nodes(count, heap_mb))
        except (Unavailable, DidNotStart) as problem:
            if isinstance(problem, DidNotStart) and os.environ.get("CI") == "true":
                pytest.fail(str(problem))
            pytest.skip(str(problem))
        yield nodes


@pytest.fixture(scope="session")
def clip_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small open_clip model of random weights: `open_clip:PATH`."""
    from small_clip import write_clip

    return write_clip(tmp_path_factory.mktemp("clip") / "small", "transformers")


@pytest.fixture(scope="session")
def exported_clip(clip_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models folder that `clip_folder` was exported into, as `small`; only to read."""
    from capsearch.encoders.train.clip_export import export

    folder = tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CAPSEARCH_MODELS", str(folder))
        export(f"open_clip:{clip_folder}", folder / "small")
    return folder
