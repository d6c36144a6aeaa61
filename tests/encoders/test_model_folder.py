"""Model folders on disk: cards, digests and arrays."""

import json

import numpy as np
import pytest

from capsearch.encoders.models import model_folder
from capsearch.engine.errors import UnknownModel


class TestCards:
    def test_are_read_back_with_their_schema(self, tmp_path):
        model_folder.write_card(tmp_path, {"kind": "text", "description": "猫"})
        assert model_folder.read_card(tmp_path) == {
            "schema": model_folder.SCHEMA,
            "kind": "text",
            "description": "猫",
        }
        assert [path.name for path in tmp_path.iterdir()] == ["model.json"]

    @pytest.mark.parametrize("content", [None, "", "{", "\udc80"])
    def test_a_folder_without_a_valid_one_is_not_a_model(self, tmp_path, content):
        if content is not None:
            (tmp_path / "model.json").write_bytes(content.encode("utf-8", "surrogateescape"))
        with pytest.raises(UnknownModel, match="is not a model folder"):
            model_folder.read_card(tmp_path)

    @pytest.mark.parametrize("content", ["[]", "3", "{}", '{"name": "x"}'])
    def test_a_card_without_a_kind_is_refused(self, tmp_path, content):
        (tmp_path / "model.json").write_text(content)
        with pytest.raises(UnknownModel, match="has no 'kind'"):
            model_folder.read_card(tmp_path)

    def test_a_newer_schema_is_refused_with_the_upgrade_command(self, tmp_path):
        card = {"kind": "text", "schema": model_folder.SCHEMA + 1}
        (tmp_path / "model.json").write_text(json.dumps(card))
        with pytest.raises(UnknownModel, match=r"newer capsearch.*pip install -U capsearch"):
            model_folder.read_card(tmp_path)


class TestDigest:
    @pytest.fixture
    def folder(self, tmp_path):
        model_folder.save_arrays(tmp_path / "a.safetensors", {"w": np.ones(3)})
        model_folder.write_card(tmp_path, {"kind": "text", "description": "one"})
        return tmp_path

    def test_changes_with_an_array(self, folder):
        before = model_folder.digest(folder)
        model_folder.save_arrays(folder / "a.safetensors", {"w": np.zeros(3)})
        assert model_folder.digest(folder) != before

    def test_changes_with_the_name_of_a_file(self, folder):
        before = model_folder.digest(folder)
        (folder / "a.safetensors").rename(folder / "b.safetensors")
        assert model_folder.digest(folder) != before

    def test_changes_with_the_digests_it_builds_on(self, folder):
        assert (
            model_folder.digest(folder)
            != model_folder.digest(folder, "x")
            != model_folder.digest(folder, "y")
        )

    def test_does_not_change_with_the_description(self, folder):
        before = model_folder.digest(folder)
        model_folder.write_card(folder, {"kind": "text", "description": "another"})
        assert model_folder.digest(folder) == before

    def test_is_twelve_hex_digits(self, folder):
        assert len(model_folder.digest(folder)) == 12
        int(model_folder.digest(folder), 16)


class TestArrays:
    def test_vectors_are_float16_on_disk_and_float32_in_use(self, tmp_path):
        values = np.random.default_rng(0).normal(size=5).astype(np.float32)
        model_folder.save_arrays(tmp_path / "a", {"b": values})
        stored = model_folder.Arrays(tmp_path / "a")["b"]
        assert stored.dtype == np.float32
        np.testing.assert_array_equal(stored, values.astype(np.float16))

    def test_matrices_are_int8_with_a_scale_per_row(self, tmp_path):
        matrix = np.array([[1.27, -0.01, 0.0], [0.0, 0.0, 0.0], [-100.0, 50.0, 0.3]], np.float32)
        model_folder.save_arrays(tmp_path / "a", {"w": matrix})
        whole = model_folder.Arrays(tmp_path / "a")["w"]
        # A row's step is its largest value / 127: .01 for the first, 100 / 127 for the last.
        np.testing.assert_allclose(whole[0], [1.27, -0.01, 0.0], atol=1e-6)
        np.testing.assert_array_equal(whole[1], 0.0)
        np.testing.assert_allclose(whole[2], matrix[2], atol=100 / 127 / 2)

    def test_exact_matrices_are_float16(self, tmp_path):
        matrix = np.array([[100.0, 0.001], [0.0, 2.0]], np.float32)
        model_folder.save_arrays(tmp_path / "a", {"w": matrix, "v": matrix}, exact=["w"])
        stored = model_folder.Arrays(tmp_path / "a")
        np.testing.assert_array_equal(stored["w"], matrix.astype(np.float16))
        np.testing.assert_array_equal(stored.rows("w", np.array([1])), [[0.0, 2.0]])
        assert stored["v"][0, 1] == 0.0  # int8

    def test_rows_can_be_read_without_the_others(self, tmp_path):
        matrix = np.arange(12, dtype=np.float32).reshape(4, 3)
        model_folder.save_arrays(tmp_path / "a", {"w": matrix})
        arrays = model_folder.Arrays(tmp_path / "a")
        np.testing.assert_array_equal(arrays.rows("w", np.array([2, 0])), arrays["w"][[2, 0]])
