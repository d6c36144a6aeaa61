"""The data packages of models: pinned in the code, found in a clone or installed, never mixed."""

from __future__ import annotations

import shutil
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from small_models import write_backbone_card, write_sentence_model

from capsearch.encoders.models import built_in, install, model_folder, registry
from capsearch.encoders.models.built_in import BUILT_IN, MODELS, MORE, PACKAGES, BuiltIn
from capsearch.engine.errors import TrainingProblem, UnknownModel

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ENCODERS = Path(built_in.__file__).resolve().parents[1]


def settings_of(folder: Path) -> dict:
    return tomllib.loads((folder / "pyproject.toml").read_text(encoding="utf-8"))


class TestReleased:
    @pytest.mark.parametrize("name", BUILT_IN)
    def test_the_files_of_a_model_are_the_pinned_ones(self, name):
        """A new model that ships needs its row in BUILT_IN, and the data package a new version."""
        pinned = BUILT_IN[name]
        folder = ENCODERS / pinned.package.folder / name
        assert built_in.is_pinned(folder)
        assert built_in.fingerprint(folder) == pinned.files

    @pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
    def test_a_data_package_holds_its_models_and_its_version_is_the_pinned_one(self, package):
        folder = ENCODERS / package.folder
        pyproject = settings_of(folder)
        models = sorted(card.parent.name for card in folder.glob("*/model.json"))
        assert models == sorted(name for name, row in BUILT_IN.items() if row.package is package)
        data = pyproject["tool"]["setuptools"]["package-data"]
        assert data == {package.module: [f"{name}/*" for name in models]}
        assert pyproject["project"]["name"] == package.name
        assert pyproject["project"]["version"] == package.version

    def test_what_comes_with_the_code_is_a_dependency_of_the_code(self):
        dependencies = settings_of(ENCODERS.parent)["project"]["dependencies"]
        with_models = [line for line in dependencies if line.startswith("capsearch-models")]
        assert with_models == [MODELS.requirement]

    def test_the_default_model_and_all_that_it_builds_on_come_with_the_code(self):
        model = registry.load()
        names = {model.name, model.image.name, str(model.card["sentence"])}
        names |= {
            head.name.partition("@")[0]
            for head in (model.enricher().tagger, model.enricher().captioner)
        }
        assert {BUILT_IN[name].package for name in names} == {MODELS}
        assert len(names) == 5


@pytest.fixture
def released(tmp_path, monkeypatch):
    """A data package with a backbone and a text model on it, and an empty folder of the user's."""
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "mine"))
    package = replace(MORE, name="toy-models", folder="no-such-folder")
    folder = tmp_path / "site" / package.module
    write_backbone_card(folder / "net")
    write_sentence_model(folder / "toy")
    card = model_folder.read_card(folder / "toy")
    model_folder.write_card(folder / "toy", {**card, "backbone": "net"})
    rows = {
        name: BuiltIn(
            package,
            built_in._sha256(folder / name / "model.json"),
            built_in.fingerprint(folder / name),
        )
        for name in ("net", "toy")
    }
    for module in (built_in, install):
        monkeypatch.setattr(module, "BUILT_IN", rows)
    monkeypatch.setattr(built_in, "PACKAGES", (package,))
    return folder


def write_wheel(released: Path, folder: Path) -> Path:
    """A wheel that pip accepts, of the data package."""
    info = "toy_models-0.1.0.dist-info"
    folder.mkdir()
    with zipfile.ZipFile(folder / "toy_models-0.1.0-py3-none-any.whl", "w") as wheel:
        for path in released.rglob("*.*"):
            wheel.write(path, f"toy_models/{path.relative_to(released).as_posix()}")
        wheel.writestr("toy_models/toy/../evil", "outside")
        wheel.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-models\nVersion: 0.1.0\n"
        )
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return folder / "toy_models-0.1.0-py3-none-any.whl"


class TestFound:
    def test_in_an_installed_package(self, released, monkeypatch):
        assert list(built_in.folders()) == []
        monkeypatch.syspath_prepend(str(released.parent))
        (released / "__init__.py").write_text("")
        assert [folder.name for folder in built_in.folders()] == ["net", "toy"]
        assert registry.find("toy", "sentence") == released / "toy"
        assert {model.name: model.built_in for model in registry.available()}["net"]

    def test_another_model_under_a_pinned_name_is_an_error_with_the_command(
        self, released, monkeypatch
    ):
        monkeypatch.syspath_prepend(str(released.parent))
        (released / "__init__.py").write_text("")
        card = model_folder.read_card(released / "toy")
        model_folder.write_card(released / "toy", {**card, "digest": "another"})
        with pytest.raises(UnknownModel, match=r"toy is not the toy .* `capsearch models install"):
            registry.load_sentence("toy")

    def test_the_error_for_a_missing_one_names_the_command(self, released):
        with pytest.raises(UnknownModel, match="run `capsearch models install toy`"):
            registry.load_sentence("toy")

    def test_the_error_without_the_default_models_names_their_package(self, monkeypatch):
        monkeypatch.setattr(built_in, "PACKAGES", ())
        with pytest.raises(UnknownModel, match=rf"trio is not .* {MODELS.requirement}`"):
            registry.load()

    def test_no_new_model_has_the_name_of_one_that_is_not_installed(self, released):
        with pytest.raises(TrainingProblem, match="'toy' is the name of a built-in model"):
            registry.check_new_name("toy")


class TestInstalled:
    def test_with_the_model_it_builds_on_from_a_wheel(self, released, tmp_path):
        wheel = write_wheel(released, tmp_path / "wheels")
        folder = install.install("toy", wheel)
        assert folder == tmp_path / "mine" / "toy"
        assert registry.find("net", "backbone") == tmp_path / "mine" / "net"
        assert sorted(path.name for path in (tmp_path / "mine").iterdir()) == ["net", "toy"]
        assert registry.load_sentence("toy").folder == folder

    @pytest.mark.parametrize("folder", ["", "toy_models", "toy_models/net"])
    def test_from_a_folder(self, released, tmp_path, folder):
        install.install("net", released.parent / folder)
        assert built_in.is_pinned(tmp_path / "mine" / "net")

    def test_by_pip_and_again_does_nothing(self, released, tmp_path, monkeypatch):
        wheel = write_wheel(released, tmp_path / "wheels")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
        lines: list[str] = []
        install.install("toy", report=lines.append)
        assert lines[0] == "downloading toy-models==0.1.0 with pip, some 52 MB"
        wheel.unlink()
        install.install("toy", report=lines.append)
        assert "toy is installed already" in lines[-1]

    def test_a_source_distribution_is_never_run(self, released, tmp_path, monkeypatch):
        (tmp_path / "wheels").mkdir()
        with zipfile.ZipFile(tmp_path / "wheels" / "toy-models-0.1.0.zip", "w") as source:
            source.writestr("toy-models-0.1.0/setup.py", f"open({str(tmp_path / 'ran')!r}, 'w')")
        monkeypatch.setenv("PIP_NO_INDEX", "1")
        monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
        with pytest.raises(UnknownModel, match="pip could not download toy-models"):
            install.install("toy")
        assert not (tmp_path / "ran").exists()

    def test_other_files_are_refused_and_leave_nothing(self, released, tmp_path):
        (released / "toy" / "pieces.json").write_text("[]")
        wheel = write_wheel(released, tmp_path / "wheels")
        (tmp_path / "text").write_text("no wheel")
        with pytest.raises(UnknownModel, match="does not hold the toy of toy-models=="):
            install.install("toy", wheel)
        with pytest.raises(UnknownModel, match="does not hold the toy"):
            install.install("toy", tmp_path)
        with pytest.raises(UnknownModel, match="cannot be read: File is not a zip"):
            install.install("toy", tmp_path / "text")
        assert list((tmp_path / "mine").iterdir()) == []

    def test_a_copy_of_a_model_that_is_there_is_not_listed_twice(
        self, released, tmp_path, monkeypatch
    ):
        install.install("toy", released)
        shutil.copytree(released, tmp_path / "again" / "toy_models")
        monkeypatch.syspath_prepend(str(tmp_path / "again"))
        (tmp_path / "again" / "toy_models" / "__init__.py").write_text("")
        assert registry.find("toy", "sentence") == tmp_path / "again" / "toy_models" / "toy"
        assert [model.name for model in registry.available()] == ["net", "toy"]
