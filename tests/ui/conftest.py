"""An index of coloured images made through the command line, with toy encoders."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.evidence import EvidenceModel, KindWeights
from capsearch.engine.fakes import FakeTextEncoder
from capsearch.ui.cli.main import main
from capsearch.ui.web import page as page_module
from capsearch.ui.web.settings import BACKENDS_VARIABLE, INDEXES_VARIABLE

# In a collection of four images nothing is added for its size.
TOY_EVIDENCE = EvidenceModel(
    kinds={
        "": KindWeights(-4.0, {"image": 6.0, "words": 1.0}, {}),
        "caption": KindWeights(-5.0, {"image": 6.0, "caption": 3.0, "words": 1.0}, {}),
    },
    size=4,
    size_exponent=1.0,
    cutoff=0.5,
    tail_cutoff=0.5,
)


@dataclass(frozen=True)
class Ran:
    """Exit code and output of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


_NUMBERS = count()


@pytest.fixture
def calibrated(monkeypatch: pytest.MonkeyPatch, fake_model: Model) -> Model:
    """The toy model with TOY_EVIDENCE under every name: request it after `toy_models`."""
    model = replace(fake_model, text=FakeTextEncoder(evidence=TOY_EVIDENCE))
    monkeypatch.setattr(registry, "load", lambda name=None: model)
    return model


@pytest.fixture
def index_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default index of these tests; it does not exist yet."""
    path = tmp_path / "index"
    monkeypatch.setenv("CAPSEARCH_INDEX", str(path))
    return path


@pytest.fixture
def run(
    toy_models: Model, index_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """Run a command in this process: run("query", "red")."""

    def run_command(*arguments: str | Path) -> Ran:
        code = main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return Ran(code, captured.out, captured.err)

    return run_command


@pytest.fixture
def indexed(image_folder: Path, run: Callable[..., Ran]) -> Path:
    """The folder of images, after `capsearch index`."""
    (image_folder / "red.txt").write_text("a red car\n一辆红色的车\n", encoding="utf-8")
    ran = run("index", image_folder)
    assert ran.code == 0, ran.err
    return image_folder


Opener = Callable[..., AppTest]


@pytest.fixture
def run_page(monkeypatch: pytest.MonkeyPatch) -> Opener:
    """Run the page at a permalink, as this machine's browser would: run_page(q="red")."""
    monkeypatch.delenv(INDEXES_VARIABLE, raising=False)
    monkeypatch.delenv(BACKENDS_VARIABLE, raising=False)
    monkeypatch.setattr("streamlit.get_option", {"server.address": "127.0.0.1"}.get)

    def run(**params: str) -> AppTest:
        page = AppTest.from_file(str(page_module.__file__), default_timeout=60)
        for name, value in params.items():
            page.query_params[name] = value
        page.run()
        assert not page.exception
        return page

    return run


@pytest.fixture
def cloud(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a collection in a real cluster, which is deleted afterwards."""
    from capsearch.indexer.elastic import collection
    from capsearch.indexer.elastic.client import Address, connect

    node = request.getfixturevalue("elastic_node")
    for name, value in node.environment.items():
        monkeypatch.setenv(name, value)
    url = f"{node.url}/commands-{next(_NUMBERS)}"  # the page keeps what it has opened
    yield url
    collection.drop(connect(Address.parse(url)), Address.parse(url))
