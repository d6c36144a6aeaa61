"""`capsearch train`: from captioned images to a model that indexes and answers."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from shutil import copy
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capsearch.encoders.models import registry
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.vectors import strip_bias
from capsearch.ui.cli.main import main
from capsearch.ui.cli.train import command as train_command

pytest.importorskip("torch")
pytest.importorskip("gensim")

from small_training import (
    COLOURS,
    Command,
    record,
    train,
    workshop,
    write_data,
    write_split,
)

from capsearch.encoders.train import text_run
from capsearch.encoders.train.captions import PER_IMAGE
from capsearch.encoders.train.trainer import Trainer

__all__ = ["train", "workshop"]  # fixtures


def test_a_trained_model_indexes_and_answers_queries(
    train: Command, workshop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = train("text", "--name", "mine", "--epochs", "2")
    assert code == 0, err
    assert out == f"{workshop / 'models' / 'mine'}\n"
    assert "epoch 1  loss" in err
    assert "--model mine --rebuild" in err
    index = ["--index", str(tmp_path / "index")]
    assert main(["index", str(workshop / "data"), "--model", "mine", *index]) == 0
    capsys.readouterr()
    for text, language in (("a red wall", "en"), ("红色的墙", "zh"), ("赤い壁", "ja")):
        assert main(["query", text, "--json", *index]) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["query"]["language"] == language
        assert len(found["hits"]) == 10


def test_the_card_records_the_model_and_its_training(train: Command, workshop: Path) -> None:
    arguments = ["--name", "carded", "--epochs", "1", "--licence", "CC0"]
    code, out, err = train("text", *arguments, "--lang", "en", "--lang", "ja", "--json")
    assert code == 0, err
    card = json.loads(out)
    assert (card["kind"], card["name"], card["backbone"]) == ("text", "carded", "small-cap")
    assert card["languages"] == ["en", "ja"]
    assert card["training"]["images"] == 30
    assert card["training"]["captions"] == {"en": 30, "ja": 30}
    assert "CC0" in card["licence"]
    assert set(card["served_mrr"]) == set(card["clm_weights"]) == {"en", "ja"}
    model = registry.load("carded")
    assert model.digest == card["digest"]
    assert model.image.digest == card["backbone_digest"]
    assert not list(workshop.glob("models/*.checkpoint.safetensors"))


def test_options_reach_the_run_and_images_may_lie_elsewhere(
    train: Command, workshop: Path, tmp_path: Path
) -> None:
    for split in ("train", "val"):
        copy(workshop / "data" / f"{split}.jsonl.gz", tmp_path)
    places = ["--images", str(workshop / "data"), "--lang", "en", "--no-flip", "--json"]
    settings = ["--epochs", "1", "--lr", "0.002", "--caption-loss-weight", "0.25"]
    code, out, err = train("text", "--name", "set", *places, *settings, data=tmp_path)
    assert code == 0, err
    chosen = json.loads(out)["training"]["options"]
    assert (chosen["lr"], chosen["caption_loss_weight"]) == (0.002, 0.25)
    assert (chosen["batch_size"], chosen["epochs"], chosen["seed"]) == (15, 1, 7)


def test_the_text_encoders_of_a_model_are_fine_tuned(train: Command) -> None:
    assert train("text", "--name", "first", "--epochs", "2")[0] == 0
    arguments = ["--from", "first", "--lr", "1e-4", "--epochs", "1", "--name", "second"]
    code, out, err = train("text", *arguments, "--json")
    assert code == 0, err
    before, after = registry.load("first"), registry.load("second")
    card = json.loads(out)
    assert card["started_from"] == f"first@{before.digest}"
    assert card["backbone"] == "small-cap"
    one, other = (strip_bias(m.text.encode(["a red wall"], "en").visual) for m in (before, after))
    assert not np.array_equal(one, other)
    assert (one * other).sum(1).min() > 0.9


def test_a_model_is_fine_tuned_on_captions_of_one_language(
    train: Command, workshop: Path, tmp_path: Path
) -> None:
    assert train("text", "--name", "all-three", "--epochs", "1")[0] == 0
    for split, numbers in (("train", range(30)), ("val", range(30, 40))):
        captions = [record(number, list(COLOURS.values())[number % 5]) for number in numbers]
        for one in captions:
            one["captions"] = {"en": one["captions"]["en"]}
        write_split(tmp_path, split, captions)
    arguments = ["--images", str(workshop / "data"), "--from", "all-three", "--epochs", "1"]
    code, out, err = train("text", *arguments, "--name", "english", "--json", data=tmp_path)
    assert code == 0, err
    assert json.loads(out)["languages"] == ["en", "zh", "ja"]
    assert registry.load("english").text.encode(["赤い壁"], "ja").visual.shape[0] == 1


def test_a_model_is_fine_tuned_in_its_own_space(train: Command) -> None:
    code, _, err = train("text", "--from", "trio", "--backbone", "lite0", "--name", "x")
    assert code == 2
    assert "trio is fine-tuned in its own space; leave --backbone out" in err


def test_another_backbone_joins_an_existing_space(train: Command) -> None:
    assert train("text", "--name", "host", "--epochs", "1")[0] == 0
    arguments = ["--text", "host", "--name", "joined", "--epochs", "1"]
    code, _, err = train("projection", *arguments)
    assert code == 0, err
    own, joined = registry.load("host"), registry.load("joined")
    assert joined.digest != own.digest
    for one, other in (("a red wall", "en"), ("红色的墙", "zh")):
        mine, theirs = (model.text.encode([one], other).visual for model in (own, joined))
        assert mine.tolist() == theirs.tolist()


def test_a_model_serves_images_like_those_that_will_be_searched(
    train: Command, workshop: Path, tmp_path: Path
) -> None:
    """Darker copies of the validation images have the vectors that the images themselves had."""
    dark = tmp_path / "dark"
    dark.mkdir()
    pixels = [np.asarray(Image.open(workshop / "data" / f"{n}.png")) for n in range(30, 40)]
    for number, one in enumerate(pixels):
        Image.fromarray(one // 2).save(dark / f"{number}.png")
    captions = [record(number, ("a wall", "墙", "壁")) for number in range(10)]
    write_split(dark, "all", captions)
    settings = ["--epochs", "1", "--seed", "3"]
    assert train("text", "--name", "plain", *settings)[0] == 0
    code, _, err = train("text", "--name", "moved", *settings, "--like", str(dark))
    assert code == 0, err
    plain, moved = registry.load("plain"), registry.load("moved")
    assert plain.digest != moved.digest
    assert "10 images" in str(moved.card["image_offset"])
    bright, darker = (
        plain.image.features([plain.image.preprocess(Image.fromarray(one)) for one in some]).mean(0)
        for some in (pixels, [one // 2 for one in pixels])
    )
    before = strip_bias(plain.image.project(bright[None]))
    unmoved, found = (
        np.abs(strip_bias(model.image.project(darker[None])) - before).max()
        for model in (plain, moved)
    )
    assert found < 5e-3 < 0.1 * unmoved  # projections are stored as float16


def test_a_resumed_run_makes_the_same_model(
    train: Command, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--epochs", "3", "--lang", "en", "--no-flip"]
    assert train("text", *options, "--name", "whole")[0] == 0
    evaluated = Trainer._evaluated

    def interrupted(self: Trainer, loss: float) -> Any:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return evaluated(self, loss)

    monkeypatch.setattr(Trainer, "_evaluated", interrupted)
    assert train("text", *options, "--name", "halves")[0] == 130
    assert not (workshop / "models" / "halves" / "model.json").exists()
    monkeypatch.setattr(Trainer, "_evaluated", evaluated)
    code, _, err = train("text", *options, "--name", "halves", "--resume")
    assert code == 0, err
    assert "epoch 1 " not in err
    assert registry.load("halves").digest == registry.load("whole").digest


def test_a_run_whose_model_cannot_be_written_can_be_resumed(
    train: Command, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise TrainingProblem("no space left")

    arguments = ["--epochs", "1", "--lang", "en", "--no-flip", "--name", "unwritten"]
    with monkeypatch.context() as patch:
        patch.setattr(text_run, "export_text", full)
        assert train("text", *arguments)[0] == 2
    code, _, err = train("text", *arguments, "--resume")
    assert code == 0, err
    assert "loss" not in err  # nothing is trained again
    assert not (workshop / "models" / "unwritten.checkpoint.safetensors").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "bow,tea"], "--inputs are some of bow,word2vec,gru,sentence"),
        (["--inputs", ""], "--inputs are some of"),
        (["--loss", "hope"], "no loss called 'hope'"),
        (["--variant", "w3vv"], "no variant called 'w3vv'"),
        (["--backbone", "nobody"], "no backbone or clip model called 'nobody'"),
        (["--name", "lite0"], "'lite0' is the name of a built-in model"),
        (["--name", "a/b"], "'a/b' cannot be a model's name; write a path as --output"),
    ],
)
def test_an_invalid_option_is_one_line_and_exit_2(
    train: Command, arguments: list[str], message: str
) -> None:
    code, out, err = train("text", "--name", "never", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def test_a_language_without_captions_is_named(train: Command, tmp_path: Path) -> None:
    data = write_data(tmp_path / "data")
    english = record(1, COLOURS["red"])
    english["captions"].pop("zh")
    write_split(data, "train", [english])
    code, _, err = train("text", "--name", "never", "--lang", "zh", data=data)
    assert code == 2
    assert "no zh captions in split 'train'; list the languages of the captions with --lang" in err


def test_without_torch_the_extra_is_named(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    code, _, err = train("text", "--name", "mine")
    assert code == 2
    assert "pip install 'capsearch[train]'" in err


@pytest.mark.parametrize("kind", ["text", "backbone", "projection"])
def test_each_training_explains_itself(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", kind, "--help"]) == 0
    assert f"capsearch train {kind}" in capsys.readouterr().out.split("Examples:")[1]


@pytest.mark.parametrize("kind", ["text", "backbone", "projection"])
def test_every_option_is_explained_in_whole_sentences(kind: str) -> None:
    for option in train_command.commands[kind].params:
        assert option.help.replace("]", ".").rstrip().endswith("."), option.name
        assert option.help[0].isupper(), option.name
        assert len(option.help.split()) > 3, option.name


def test_labelled_images_are_trained_on_with_names_as_captions(
    train: Command, workshop: Path, tmp_path: Path
) -> None:
    labelled = tmp_path / "labelled"
    write_data(labelled)
    (labelled / "val.jsonl.gz").unlink()
    records = [{"id": f"l{n}", "file": f"{n}.png", "label": "violin"} for n in range(20)]
    write_split(labelled, "train", records)
    arguments = ["--labelled", str(labelled), "--name", "named", "--epochs", "1", "--json"]
    code, out, err = train("text", *arguments)
    assert code == 0, err
    training = json.loads(out)["training"]
    trained = training["images"] - 30  # the others are held out
    assert 0 < trained < 20
    assert training["captions"] == dict.fromkeys(("en", "zh", "ja"), 30 + PER_IMAGE * trained)
    vocabulary = json.loads((workshop / "models" / "named" / "ja.json").read_text("utf-8"))
    assert "バイオリン" in vocabulary["vocabulary"]
