"""Models of open_clip in torch: vectors, preprocessing, tokens and what is refused."""

from __future__ import annotations

import builtins
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
from small_clip import SENTENCES, needs_open_clip, write_clip

from capsearch.encoders.images.preprocess import decode
from capsearch.encoders.models import open_clip, registry
from capsearch.encoders.models.clip import CLEANERS, Reference, Tokens
from capsearch.encoders.models.open_clip import OpenClip, device
from capsearch.encoders.train import clip_export
from capsearch.engine.errors import MissingExtra, UnknownLanguage, UnknownModel

pytestmark = needs_open_clip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clip(tmp_path_factory.mktemp("clip") / "native")


@pytest.fixture(autouse=True)
def own_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CAPSEARCH_MODELS", str(tmp_path / "models"))


def source(folder: Path) -> OpenClip:
    return OpenClip.find(Reference.parse(str(folder)))


def test_images_and_sentences_of_three_languages_are_unit_vectors_of_one_space(
    folder: Path,
) -> None:
    model = registry.load(f"open_clip:{folder}")
    assert model.text.languages == ("en", "zh", "ja")
    pixels = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), np.uint8)
    vectors = model.image.project(model.image.features(list(pixels)))
    assert vectors.shape == (3, model.image.dimension) == (3, 33)
    np.testing.assert_allclose(np.linalg.norm(vectors[:, :-1], axis=1), 1, atol=1e-5)
    for text, language in (("a red wall", "en"), ("红色的墙", "zh"), ("赤い壁", "ja")):
        assert model.text.detect(text) == language
        encoded = model.text.encode([text, "...", text], language)
        assert encoded.known == (True, False, True)
        np.testing.assert_allclose(np.linalg.norm(encoded.visual[0, :-1]), 1, atol=1e-5)
        np.testing.assert_array_equal(encoded.visual[0], encoded.visual[2])
        assert not encoded.visual[1].any()
    assert model.image.features([]).shape == (0, 32)
    assert model.text.encode([], "en").visual.shape == (0, 33)
    assert model.text.unknown_words("a wall", "en") == ()


def test_a_language_that_a_model_does_not_read_is_refused(tmp_path: Path) -> None:
    model = registry.load(f"open_clip:{write_clip(tmp_path / 'en', languages=['en'])}")
    with pytest.raises(UnknownLanguage, match="it reads en"):
        model.text.encode(["红色的墙"], "zh")


def test_it_is_a_backbone_too(folder: Path) -> None:
    backbone = registry.load_backbone(f"open_clip:{folder}")
    assert backbone.dimension == 32
    assert backbone.digest == registry.load(f"open_clip:{folder}").image.digest


def test_other_weights_and_other_preprocessing_are_another_model(
    folder: Path, tmp_path: Path
) -> None:
    other = write_clip(tmp_path / "other", seed=2)
    squashed = write_clip(tmp_path / "same", preprocess_cfg={"resize_mode": "squash"})
    assert len({source(one).digest for one in (folder, other, squashed)}) == 3


@pytest.mark.parametrize("mode", ["shortest", "longest", "squash"])
def test_preprocessing_is_that_of_open_clip(tmp_path: Path, mode: str) -> None:
    from open_clip.transform import PreprocessCfg, image_transform_v2
    from PIL import Image
    from skimage import data

    model = source(write_clip(tmp_path / "m", preprocess_cfg={"resize_mode": mode}))
    picture = Image.fromarray(data.coffee())
    transform = image_transform_v2(PreprocessCfg(**model.network.visual.preprocess_cfg), False)
    expected = transform(picture).numpy()
    picture.save(tmp_path / "coffee.png")
    pixels = decode(
        tmp_path / "coffee.png", registry.load(f"open_clip:{tmp_path}/m").image.preprocess
    )
    settings = model.preprocessing
    scaled = (pixels.pixels / 255 - settings["mean"]) / settings["std"]
    assert np.abs(scaled.transpose(2, 0, 1) - expected).mean() < 0.02


def test_images_that_are_not_square_are_refused(folder: Path) -> None:
    model = source(folder)
    model.network.visual.preprocess_cfg["size"] = (32, 64)
    with pytest.raises(UnknownModel, match="32 x 64"):
        _ = model.preprocessing


def test_a_checkpoint_that_does_not_fit_is_one_line(folder: Path, tmp_path: Path) -> None:
    broken = write_clip(tmp_path / "broken", tower="siglip")
    (broken / "open_clip_model.safetensors").write_bytes(
        (folder / "open_clip_model.safetensors").read_bytes()
    )
    with pytest.raises(UnknownModel, match="open_clip cannot open") as caught:
        _ = source(broken).network
    assert "\n" not in str(caught.value)


class Evil:
    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_a_pickled_checkpoint_executes_nothing(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    evil = write_clip(tmp_path / "evil")
    (evil / "epoch_1.pt").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UnknownModel, match="cannot open"):
        _ = source(evil / "epoch_1.pt").network
    assert "executed" not in capsys.readouterr().out


def test_missing_packages_name_the_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any, **options: Any) -> Any:
        if name in ("open_clip", "transformers"):
            raise ImportError(f"No module named '{name}'")
        return real(name, *more, **options)

    model = source(folder)
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtra, match=r"capsearch\[clip\]"):
        open_clip.open_clip()
    monkeypatch.setattr(open_clip, "open_clip", lambda: None)
    monkeypatch.setattr("capsearch.encoders.models.open_clip.open_clip", lambda: Untokenized())
    with pytest.raises(MissingExtra, match=r"capsearch\[clip\]"):
        _ = model.tokenizer


class Untokenized:
    def get_tokenizer(self, name: str) -> None:
        raise ImportError("No module named 'transformers'")


def test_another_failure_of_torchvision_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def broken(name: str, *more: Any, **options: Any) -> Any:
        if name == "torchvision":
            raise RuntimeError("out of memory")
        return real(name, *more, **options)

    monkeypatch.delitem(sys.modules, "torchvision", raising=False)
    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(RuntimeError, match="out of memory"):
        open_clip.open_clip()


def test_the_device_is_one_that_torch_has() -> None:
    assert device() in ("cpu", "cuda", "mps")


TEXTS = [*SENTENCES, "it's  THE &amp; 3 cats!", "“quoted”，ＡＢＣ　x_y", " ".join(SENTENCES * 3)]


@pytest.mark.parametrize("tower", ["clip", "native", "siglip"])
def test_an_exported_tokenizer_gives_the_ids_of_the_original(tmp_path: Path, tower: str) -> None:
    tokenizer = source(write_clip(tmp_path / tower, tower)).tokenizer
    converted = clip_export.convert(tokenizer, tower)
    (tmp_path / "tokenizer.json").write_text(converted.json, encoding="utf-8")
    tokens = Tokens(tmp_path, converted.clean, converted.zeroed)
    np.testing.assert_array_equal(tokens.ids(TEXTS), tokenizer(TEXTS).numpy())


def test_texts_are_cleaned_as_by_open_clip() -> None:
    from open_clip.tokenizer import get_clean_fn

    for name, clean in CLEANERS.items():
        assert [clean(text) for text in TEXTS] == [get_clean_fn(name)(text) for text in TEXTS]


def test_separators_are_zeroed_and_padding_trimmed(tmp_path: Path, folder: Path) -> None:
    padded = Tokens(folder, "whitespace")
    # transformers' own file does not pad: one text, so that rows are equally long
    assert padded.ids(["a wall"])[0, -1] == 2
    assert Tokens(folder, "whitespace", zeroed=(2,)).ids(["a wall"])[0, -1] == 0


def test_a_tokenizer_without_json_is_refused(folder: Path) -> None:
    tokenizer = source(folder).tokenizer
    tokenizer.tokenizer_mode = "clips"
    with pytest.raises(UnknownModel, match=r"no tokenizer\.json"):
        clip_export.convert(tokenizer, "it")
    from open_clip import SimpleTokenizer

    with pytest.raises(UnknownModel, match="at random"):
        clip_export.convert(SimpleTokenizer(reduction_mask="shuffle"), "it")


def test_the_tokenizers_package_is_an_extra(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(MissingExtra, match=r"capsearch\[exported\]"):
        Tokens(folder, "whitespace").ids(["a"])
