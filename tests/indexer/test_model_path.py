"""An index remembers where its model is, if a name does not find it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from capsearch.encoders.models import registry
from capsearch.encoders.models.registry import Model
from capsearch.engine.errors import IndexMissing, ModelMismatch
from capsearch.indexer.identity import Identity
from capsearch.indexer.sqlite.collection import Collection, read_stats


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch, fake_model: Model) -> list[str | None]:
    """What `models.load` is loaded for."""
    names: list[str | None] = []

    def load(name: str | None = None) -> Model:
        names.append(name)
        return replace(fake_model, path=Path(name)) if name and "/" in name else fake_model

    monkeypatch.setattr(registry, "load", load)
    return names


def test_a_model_given_by_path_is_opened_from_there_again(
    tmp_path: Path, fake_model: Model, loaded: list[str | None]
) -> None:
    """Issue 11, 6: only the name was kept, and it may find another model."""
    Collection.create(tmp_path / "index", replace(fake_model, path=Path("/models/own"))).close()
    Collection.open(tmp_path / "index").close()
    Collection.create(tmp_path / "index").close()
    assert loaded == ["/models/own", "/models/own"]
    manifest = json.loads((tmp_path / "index" / "manifest.json").read_text())
    assert manifest["model"]["path"] == "/models/own"
    assert read_stats(tmp_path / "index").model_path == "/models/own"


def test_a_model_that_was_moved_is_found_again_once_its_new_path_is_given(
    tmp_path: Path, fake_model: Model, loaded: list[str | None]
) -> None:
    for path in (Path("/models/own"), Path("/moved/own")):
        Collection.create(tmp_path / "index", replace(fake_model, path=path)).close()
    Collection.open(tmp_path / "index").close()
    assert loaded == ["/moved/own"]


def test_another_model_does_not_change_the_remembered_path(
    tmp_path: Path, fake_model: Model, loaded: list[str | None]
) -> None:
    Collection.create(tmp_path / "index", replace(fake_model, path=Path("/models/own"))).close()
    other = replace(fake_model, digest="another", path=Path("/models/other"))
    with Collection.create(tmp_path / "index", other) as collection:
        with pytest.raises(ModelMismatch, match=r"--model /models/other --rebuild"):
            collection.require_same_model()
        assert collection.identity.path == "/models/own"


def test_a_model_with_a_name_is_stored_as_before(fake_model: Model) -> None:
    identity = Identity.of(fake_model)
    assert "path" not in json.loads(identity.text())
    assert Identity.parse(identity.text()) == identity
    assert identity.source == "fake"


def test_statistics_need_no_model(tmp_path: Path, collection: Collection) -> None:
    """Issue 11, 19: `capsearch info` failed without the model."""
    assert read_stats(collection.path) == collection.stats()
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(IndexMissing):
            read_stats(missing)
