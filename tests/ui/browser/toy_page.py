"""The search page with the toy model under every name: `streamlit run` this in tests."""

from __future__ import annotations

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.fakes import FakeImageEncoder, FakeTextEncoder
from capsearch.ui.web import page


def toy_model(name: str | None = None) -> Model:
    """The model of tests/conftest.py, for a process without fixtures."""
    return Model("fake", "digest-of-toy-0", FakeImageEncoder(), FakeTextEncoder())


if __name__ == "__main__":
    registry.load = toy_model
    page.main()
