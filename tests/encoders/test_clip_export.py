"""An open_clip model exported: the same vectors without torch, calibrated like ours."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from shutil import copytree

import numpy as np
import pytest

pytest.importorskip("torch")
from small_clip import SENTENCES, needs_open_clip, write_clip

from capsearch.encoders.models import registry
from capsearch.encoders.models.clip import Settings, calibrated, save_settings
from capsearch.encoders.models.hubness import NO_PENALTY, HubnessPenalty, QueryBank
from capsearch.encoders.models.text import Calibration, is_calibrated, own_calibration
from capsearch.encoders.train import clip_export as exporting
from capsearch.encoders.train.clip_export import export
from capsearch.engine.errors import MissingExtra, UnknownModel
from capsearch.engine.vectors import unit

pytestmark = needs_open_clip
WITHOUT_TORCH = """
import sys
from capsearch.encoders.models import registry
import numpy as np
model = registry.load("small")
model.image.features([np.zeros((32, 32, 3), np.uint8)])
model.text.encode(["a red wall"], "en")
print([name for name in ("torch", "open_clip", "transformers") if name in sys.modules])
"""


@pytest.fixture
def own_models(exported_clip: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A models folder with a copy of the export."""
    copytree(exported_clip, tmp_path / "models")
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "models"))
    return tmp_path / "models"


def test_an_export_has_the_vectors_and_the_digest_of_the_original(
    own_models: Path, clip_folder: Path
) -> None:
    original, served = registry.load(f"open_clip:{clip_folder}"), registry.load("small")
    assert served.digest == original.digest
    assert served.image.digest == original.image.digest
    assert served.text.languages == original.text.languages == ("en", "zh", "ja")
    pixels = list(np.random.default_rng(0).integers(0, 256, (5, 32, 32, 3), np.uint8))
    for images in (pixels, pixels[:1]):
        same = (original.image.features(images) * served.image.features(images)).sum(axis=1)
        assert same.min() > exporting.PARITY
    for texts in (SENTENCES, ["a wall"], ["a"] * 70):
        ours, theirs = (one.text.encode(texts, "en").visual for one in (original, served))
        assert ((ours * theirs).sum(axis=1) - 1).min() > exporting.PARITY  # less the bias, 1 x 1


def test_an_export_is_served_without_torch(own_models: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_card_records_source_checksum_and_parity(own_models: Path) -> None:
    card = json.loads((own_models / "small" / "model.json").read_text())
    assert card["kind"] == "clip" and card["trim"] is True
    assert card["source"]["open_clip"].startswith("open_clip:") and card["source"]["sha256"]
    assert card["parity"]["images"] > 0.999 and card["parity"]["texts"] > 0.999
    (summary,) = [one for one in registry.available() if one.name == "small"]
    assert (summary.kind, summary.languages) == ("clip", ("en", "zh", "ja"))


def test_its_image_tower_is_a_backbone(own_models: Path) -> None:
    assert registry.load_backbone("small").dimension == 32


def test_a_model_is_not_overwritten(own_models: Path, clip_folder: Path) -> None:
    with pytest.raises(UnknownModel, match="holds a model already"):
        export(f"open_clip:{clip_folder}", own_models / "small")


def test_an_unknown_language_and_a_folder_without_images_are_refused(
    clip_folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(UnknownModel, match="no language 'de'"):
        export(f"open_clip:{clip_folder}", tmp_path / "out", languages=["de"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(UnknownModel, match="no images in"):
        export(f"open_clip:{clip_folder}", tmp_path / "out", images=tmp_path / "empty")


def test_without_onnx_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingExtra, match=r"capsearch\[clip\]"):
        export("open_clip:./x", tmp_path / "out")


def test_other_token_ids_and_other_vectors_are_no_export(
    own_models: Path, clip_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Graphs:
        SHORT, TextGraph = "a", staticmethod(lambda source: None)
        may_be_trimmed = staticmethod(lambda *_: True)

        @staticmethod
        def text_graph(
            source: object, graph: object, examples: object, to: Path, trim: bool
        ) -> None:
            to.write_bytes((own_models / "small" / "text.onnx").read_bytes())

        @staticmethod
        def image_graph(source: object, to: Path) -> None:
            to.write_bytes((own_models / "small" / "image.onnx").read_bytes())

    monkeypatch.setattr(exporting, "_graphs", lambda: Graphs)
    monkeypatch.setattr(exporting, "PARITY", 1.1)
    with pytest.raises(UnknownModel, match=r"not the original: cosine 1\.0000 on images"):
        export(f"open_clip:{clip_folder}", tmp_path / "out")
    assert not (tmp_path / "out" / "model.json").exists()
    convert = exporting.convert
    monkeypatch.setattr(exporting, "convert", lambda *a: replace(convert(*a), zeroed=(0, 5, 6, 7)))
    with pytest.raises(UnknownModel, match=r"tokenizer of .* cannot be exported"):
        export(f"open_clip:{clip_folder}", tmp_path / "out")


def settings(weight: float) -> Calibration:
    penalty = HubnessPenalty(weight, 20.0, 0.1)
    penalties = {"image": penalty, "caption": penalty}
    return Calibration(0.25, {"en": 0.4}, {"en": 0.2}, penalties, {"en": 0.5})


def bank() -> QueryBank:
    random = np.random.default_rng(0)
    visual, sentence = unit(random.normal(size=(4, 32))), unit(random.normal(size=(4, 512)))
    return QueryBank(visual, sentence, np.log(np.full(4, 0.25, np.float32)))


def test_calibration_changes_vectors_and_digest_but_not_features(own_models: Path) -> None:
    plain = registry.load("small")
    assert not is_calibrated(plain)
    assert plain.text.convex("zh").weight == 0.5 and plain.text.convex("zh").floor > 0
    folder = own_calibration("small", str(plain.card["digest"]))
    save_settings(folder, settings(0.5))
    bank().save(folder)
    fitted = registry.load("small")
    assert fitted.digest not in (plain.digest, calibrated(plain, own_models).digest + "x")
    assert fitted.image.digest == plain.image.digest
    assert [fitted.text.convex(language).weight for language in ("en", "zh")] == [0.4, 0.5]
    features = plain.image.features([np.full((32, 32, 3), 99, np.uint8)])
    before, after = plain.image.project(features), fitted.image.project(features)
    np.testing.assert_allclose(before[:, :-1], after[:, :-1], atol=1e-6)
    assert before[0, -1] == 0 and after[0, -1] != 0
    captions = fitted.text.encode(["a red wall"], "en").caption
    assert fitted.text.as_documents(captions)[0, -1] != 0
    assert calibrated(fitted, own_models / "none").digest == plain.digest


def test_settings_come_back_as_written(tmp_path: Path) -> None:
    assert Settings.read(tmp_path) == Settings()
    save_settings(tmp_path, settings(0.5))
    read = Settings.read(tmp_path)
    assert read.hubness["image"] == HubnessPenalty(0.5, 20.0, 0.1) != NO_PENALTY
    assert (read.sentence_weight, read.clm_weights) == (0.25, {"en": 0.4})


@pytest.mark.slow
@pytest.mark.parametrize(("tower", "trim"), [("clip", True), ("native", True), ("siglip", False)])
def test_every_form_of_text_tower_is_exported_also_in_int8(
    tower: str, trim: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from PIL import Image
    from skimage import data

    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "models"))
    source = f"open_clip:{write_clip(tmp_path / tower, tower)}"
    own = own_calibration(source, registry.load(source).digest)
    save_settings(own, settings(0.0))
    (tmp_path / "images").mkdir()
    for name in ("coffee", "astronaut", "chelsea"):
        Image.fromarray(getattr(data, name)()).save(tmp_path / "images" / f"{name}.png")
    done = export(source, tmp_path / "out", images=tmp_path / "images")
    assert min(done.parity.images, done.parity.texts) > 0.999
    assert json.loads((done.folder / "model.json").read_text())["trim"] is trim
    assert registry.load(str(done.folder)).text.convex("en").weight == 0.4  # it was calibrated
    small = export(source, tmp_path / "int8", int8=True, languages=["zh"])
    assert 0.95 < small.parity.images < 1 and 0.95 < small.parity.texts < 1
    assert small.size_bytes < done.size_bytes
    quantised = registry.load(str(small.folder))
    assert quantised.text.languages == ("zh",)
    assert quantised.digest != registry.load(str(done.folder)).digest
