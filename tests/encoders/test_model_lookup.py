"""Names and paths of models, and the digests of the models that a model builds on."""

from pathlib import Path

import pytest
from small_models import write_backbone_card, write_sentence_model

from capsearch.encoders.models import built_in, model_folder, registry
from capsearch.engine.errors import TrainingProblem, UnknownModel


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """The user's models folder, and another folder to work in."""
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "mine"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "mine"


def write_text_card(folder, **changes):
    """A text model that can be opened but has no arrays: encoding fails."""
    folder.mkdir(parents=True)
    card = {
        "kind": "text",
        "name": folder.name,
        "languages": ["en"],
        "dimension": 8,
        "backbone": "lite0",
        "backbone_digest": registry.load_backbone("lite0").digest,
        "sentence": "use3",
        "sentence_weight": 0.2,
        "clm_weights": {"en": 0.5},
        "cl_floors": {"en": 0.1},
        "digest": f"digest-of-{folder.name}",
    }
    model_folder.write_card(folder, {**card, **changes})
    return folder


def test_a_folder_in_the_working_directory_never_replaces_a_model(mine):
    """Issue 11, 6: ./tinyvit-trio silently became the backbone of the built-in model."""
    expected = registry.load().image.backbone
    write_backbone_card(Path("tinyvit-trio"))
    write_text_card(Path("trio"))
    assert registry.load().image.backbone == expected
    assert registry.find("trio", "text").parent == built_in.MODELS.path()


def test_a_name_that_exists_only_in_the_working_directory_is_unknown_and_the_path_is_named(mine):
    """Issue 11, 6."""
    write_backbone_card(Path("here"))
    with pytest.raises(UnknownModel, match=r"called 'here' \(for the folder here, write \./here\)"):
        registry.load_backbone("here")


@pytest.mark.parametrize("name", ["./here", "here/", "../work/here", "~/here", "{absolute}"])
def test_what_has_a_separator_is_a_path(mine, monkeypatch, name):
    monkeypatch.setenv("HOME", str(Path.cwd()))
    monkeypatch.setenv("USERPROFILE", str(Path.cwd()))
    write_backbone_card(Path("here"))
    found = registry.find(name.format(absolute=Path("here").absolute()), "backbone")
    assert found.is_absolute()
    assert found.samefile("here")


def test_a_path_without_a_model_is_an_error(mine):
    with pytest.raises(UnknownModel, match=r"no model at .*nobody; `capsearch models` lists"):
        registry.load("./nobody")


@pytest.mark.parametrize("name", ["", ".", ".."])
def test_dots_are_no_names(mine, name):
    write_backbone_card(mine / "one")
    model_folder.write_card(mine, {"kind": "backbone", "name": "trap"})
    with pytest.raises(UnknownModel, match="no backbone model called"):
        registry.find(name, "backbone")
    with pytest.raises(TrainingProblem, match="cannot be a model's name"):
        registry.check_new_name(name)


def test_a_users_model_with_the_name_of_a_built_in_one_is_an_error_with_both(mine):
    """Issue 11, 6: it silently replaced the built-in one."""
    write_sentence_model(mine / "use3")
    with pytest.raises(UnknownModel, match=r"'use3' is a built-in model, and .*mine/use3 has the"):
        registry.find("use3", "sentence")
    assert registry.find(str(mine / "use3"), "sentence") == mine / "use3"


def test_a_new_model_cannot_have_the_name_of_a_built_in_one(mine):
    """Issue 11, 6."""
    with pytest.raises(TrainingProblem, match="'trio' is the name of a built-in model; choose"):
        registry.check_new_name("trio")
    registry.check_new_name("mine")


def test_another_backbone_under_the_same_name_is_an_error_with_both_digests(mine):
    """Issue 11, 6: backbone_digest was stored and never compared."""
    write_text_card(mine / "own", backbone_digest="0123")
    with pytest.raises(UnknownModel, match=r"own was trained with lite0@0123, .*@5d4f3bb0d0a2"):
        registry.load("own")


def test_another_text_model_under_the_same_name_is_an_error_with_both_digests(mine):
    """Issue 11, 6: text_digest was stored and never compared."""
    write_text_card(mine / "host")
    write_text_card(mine / "joined", text="host", text_digest="0123")
    with pytest.raises(UnknownModel, match=r"joined was .* host@0123, .* @digest-of-host: .*train"):
        registry.load("joined")


def test_cards_without_digests_are_opened(mine):
    folder = write_text_card(mine / "old")
    card = model_folder.read_card(folder)
    model_folder.write_card(folder, {k: v for k, v in card.items() if k != "backbone_digest"})
    assert registry.load("old").name == "old"


def test_the_built_in_models_fit_together():
    assert registry.load("trio").image.digest == registry.load("trio").card["backbone_digest"]
    assert registry.load("trio").text.folder == registry.find("trio", "text")


def test_the_accurate_model_says_how_to_install_its_backbone(mine):
    with pytest.raises(UnknownModel, match="run `capsearch models install clip-b16`"):
        registry.load("trio-accurate")


def test_a_relative_path_in_a_card_starts_at_the_models_folder(mine):
    """Issue 11, 6: it started at the working directory."""
    write_backbone_card(mine / "net")
    write_backbone_card(Path("net"), dimension=7)
    digest = model_folder.read_card(mine / "net")["digest"]
    write_text_card(mine / "own", backbone="../net", backbone_digest=digest)
    assert registry.load("own").image.backbone.dimension == 6


def test_a_model_knows_its_path_unless_its_name_finds_it(mine, tmp_path):
    write_text_card(mine / "own")
    write_text_card(tmp_path / "elsewhere")
    write_text_card(mine / "renamed", name="before")
    assert registry.load("own").path is None
    assert registry.load("../elsewhere/").path.samefile(tmp_path / "elsewhere")
    assert registry.load("renamed").path == mine / "renamed"


def test_a_card_stores_names_as_they_are_and_paths_absolute(mine):
    assert registry.reference("lite0") == "lite0"
    assert registry.reference("./net") == str(Path("net").absolute())
