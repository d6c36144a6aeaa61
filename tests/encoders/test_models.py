"""Models by name: where they are searched, how kinds are opened, and the errors."""

import subprocess
import sys
from importlib import import_module

import numpy as np
import pytest
from small_models import write_backbone_card, write_sentence_model

from capsearch.encoders.models import built_in, model_folder, registry
from capsearch.engine.errors import UnknownModel
from capsearch.engine.vectors import strip_bias


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A user's models folder with one backbone in it."""
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "mine"))
    write_backbone_card(tmp_path / "mine" / "my-backbone")
    return tmp_path / "mine"


def test_the_environment_variable_names_the_users_models_folder(mine):
    assert registry.user_models_dir() == mine


def test_without_the_variable_it_is_in_the_users_data_folder(monkeypatch):
    monkeypatch.delenv("CAPSEARCH_MODELS", raising=False)
    assert registry.user_models_dir().name == "models"
    assert "capsearch" in str(registry.user_models_dir())


def test_a_name_finds_the_users_model(mine):
    opened = registry.load_backbone("my-backbone")
    assert (opened.name, opened.input_size, opened.dimension) == ("my-backbone", 8, 6)
    assert opened.digest == model_folder.digest(mine / "my-backbone")


def test_a_path_finds_a_model_anywhere(tmp_path):
    assert registry.find(str(write_sentence_model(tmp_path / "s")), "sentence") == tmp_path / "s"


def test_built_in_and_user_models_are_listed(mine):
    listed = {one.name: one for one in registry.available()}
    assert {registry.DEFAULT_MODEL, "use3", "my-backbone"} <= set(listed)
    assert listed["my-backbone"].built_in is False
    assert listed["my-backbone"].kind == "backbone"
    assert listed["my-backbone"].path == mine / "my-backbone"
    assert listed["my-backbone"].size_bytes == sum(
        path.stat().st_size for path in (mine / "my-backbone").iterdir()
    )
    assert listed[registry.DEFAULT_MODEL].built_in is True
    assert set(listed[registry.DEFAULT_MODEL].languages) == {"en", "zh", "ja"}


def test_the_error_for_an_unknown_name_lists_the_models_of_that_kind(mine):
    with pytest.raises(
        UnknownModel, match=r"no backbone or clip model called 'nobody'; .*my-backbone"
    ):
        registry.load_backbone("nobody")


def test_a_model_of_another_kind_is_refused(mine):
    with pytest.raises(
        UnknownModel, match="my-backbone is a backbone model, not a text or clip model"
    ):
        registry.load("my-backbone")


def test_a_model_of_an_unknown_kind_is_refused_with_the_kinds_there_are(tmp_path):
    model_folder.write_card(tmp_path, {"kind": "hologram", "name": "new"})
    kinds = "kind 'hologram'; this capsearch has sentence, backbone, text"
    with pytest.raises(UnknownModel, match=kinds):
        registry.load(str(tmp_path))


def open_any(folder):
    """The loader of the kind that the next test adds."""
    return registry.Model(folder.name, "0", image=None, text=None)


def test_one_row_adds_a_kind_that_can_search(tmp_path, monkeypatch):
    row = registry.Kind(f"{__name__}:open_any", searches=True)
    monkeypatch.setattr(registry, "KINDS", {**registry.KINDS, "any": row})
    model_folder.write_card(tmp_path, {"kind": "any", "name": "new"})
    assert registry.load(str(tmp_path)).name == tmp_path.name


@pytest.mark.parametrize("kind", registry.KINDS)
def test_every_kind_has_a_loader(kind):
    module, function = registry.KINDS[kind].loader.split(":")
    assert callable(getattr(import_module(module), function))


def test_looking_up_models_imports_no_encoder():
    script = (
        "import sys; from capsearch.encoders.models import registry; registry.available();"
        "encoders = {'capsearch.encoders.models.w2vv', 'capsearch.encoders.models.image'};"
        "assert not encoders & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script]).returncode == 0


def test_without_any_model_the_error_lists_none(tmp_path, monkeypatch):
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path))
    monkeypatch.setattr(built_in, "PACKAGES", ())
    with pytest.raises(UnknownModel, match="there is: none"):
        registry.load("mine")


def test_the_digest_is_computed_if_the_card_has_none(mine):
    card = model_folder.read_card(mine / "my-backbone")
    model_folder.write_card(mine / "my-backbone", {**card, "digest": ""})
    assert registry.load_backbone("my-backbone").digest == model_folder.digest(mine / "my-backbone")


@pytest.fixture(scope="module")
def model():
    return registry.load()


class TestDefaultModel:
    def test_images_and_text_share_one_space(self, model):
        size = model.image.backbone.input_size
        pixels = np.zeros((size, size, 3), np.uint8)
        vectors = model.image.project(model.image.features([pixels, pixels + 99]))
        assert vectors.shape == (2, model.text.dimension)
        assert model.image.dimension == model.text.dimension
        np.testing.assert_allclose(np.linalg.norm(strip_bias(vectors), axis=1), 1.0, atol=1e-4)

    @pytest.mark.parametrize(
        ("text", "language"), [("a dog", "en"), ("一只狗", "zh"), ("犬がいる", "ja")]
    )
    def test_encodes_three_languages(self, model, text, language):
        assert model.text.detect(text) == language
        encoded = model.text.encode([text], language)
        assert encoded.known == (True,)
        assert encoded.visual.shape == (1, model.text.dimension)
        assert encoded.caption.shape == (1, model.text.caption_dimension)
        assert 0.0 <= model.text.convex(language).weight <= 1.0
        assert -1.0 <= model.text.convex(language).floor <= 1.0

    def test_has_names_and_digests(self, model):
        assert model.name == registry.DEFAULT_MODEL == model.text.name
        assert model.digest == model.text.digest != model.image.digest
        assert model.image.name == model.card["backbone"]
        assert model.image.feature_dimension == model.image.backbone.dimension

    def test_no_images_give_no_features(self, model):
        features = model.image.features([])
        assert features.shape == (0, model.image.feature_dimension)
        assert model.image.project(features).shape == (0, model.image.dimension)

    @pytest.mark.parametrize(
        ("side", "dtype"), [(7, np.uint8), (None, np.float32)], ids=["wrong size", "wrong type"]
    )
    def test_images_of_another_shape_are_refused(self, model, side, dtype):
        side = side or model.image.backbone.input_size
        with pytest.raises(ValueError, match=r"images must be .* uint8"):
            model.image.features([np.zeros((side, side, 3), dtype)])
