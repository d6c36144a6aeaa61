"""`capsearch train`: from captioned images to a model that indexes and answers."""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from capsearch.encoders import model_folder, models
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.fakes import colour_image
from capsearch.engine.vectors import strip_bias
from capsearch.ui.cli import main

torch = pytest.importorskip("torch")
pytest.importorskip("gensim")

from capsearch.encoders.training.fit.trainer import Trainer  # noqa: E402
from capsearch.encoders.training.nn import backbone, efficientnet  # noqa: E402
from capsearch.encoders.training.nn import w2vv as network  # noqa: E402
from capsearch.encoders.training.runs import text_run  # noqa: E402
from capsearch.encoders.training.runs.import_weights import load_upper_blocks  # noqa: E402
from capsearch.encoders.training.runs.init import start_of  # noqa: E402

COLOURS = {
    "red": ("a red wall", "红色的墙", "赤い壁"),
    "green": ("a green wall", "绿色的墙", "緑の壁"),
    "blue": ("a blue wall", "蓝色的墙", "青い壁"),
    "yellow": ("a yellow wall", "黄色的墙", "黄色い壁"),
    "black": ("a black wall", "黑色的墙", "黒い壁"),
}
Command = Callable[..., tuple[int, str, str]]


def record(number: int, texts: tuple[str, str, str]) -> dict[str, Any]:
    captions = zip(("en", "zh", "ja"), texts, strict=True)
    told = {language: [{"text": text, "source": "test"}] for language, text in captions}
    return {"id": number, "file": f"{number}.png", "captions": told}


def write_data(folder: Path) -> Path:
    """Thirty images to train on and ten to validate with, of five colours and two sizes."""
    folder.mkdir()
    colours = list(COLOURS)
    for number in range(40):
        pixels = colour_image(colours[number % 5], size=16 + number // 20)
        Image.fromarray(pixels).save(folder / f"{number}.png")
    for split, numbers in (("train", range(30)), ("val", range(30, 40))):
        write_split(folder, split, [record(n, COLOURS[colours[n % 5]]) for n in numbers])
    return folder


def write_split(folder: Path, split: str, records: list[dict[str, Any]]) -> None:
    lines = "\n".join(map(json.dumps, records)).encode()
    (folder / f"{split}.jsonl.gz").write_bytes(gzip.compress(lines))


def small_network(name: str) -> Any:
    torch.manual_seed(5)
    made = efficientnet.EfficientNetLite(efficientnet.LITES[name]).eval()
    for part in made.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
    return made


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `data` and `models`, small networks, and the backbone `eyes` trained once."""
    folder = tmp_path_factory.mktemp("workshop")
    write_data(folder / "data")
    small = partial(network.TextConfig, bow_width=16, word_width=8, gru_width=8, hidden=32)
    lite = replace(efficientnet.LITES["lite0"], input_size=128)
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(efficientnet.LITES, "lite0", lite)  # type: ignore[arg-type]
        patch.setattr(backbone, "load_imagenet", small_network)
        patch.setattr(network, "TextConfig", small)
        patch.setenv("CAPSEARCH_MODELS", str(folder / "models"))
        arguments = ["--from", "lite0", "--name", "eyes", "--epochs", "1", "--frozen-epochs", "0"]
        assert main(["train", "backbone", *common(folder), *arguments]) == 0
        yield folder


def common(folder: Path, data: Path | None = None) -> list[str]:
    places = ["--data", str(data or folder / "data"), "--cache", str(folder / "cache")]
    return [*places, "--min-count", "1", "--batch-size", "15"]


@pytest.fixture
def train(workshop: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """train("text", "--name", "mine", ...) on the data; models go to workshop/models."""

    def run_train(kind: str, *arguments: str, data: Path | None = None) -> tuple[int, str, str]:
        capsys.readouterr()
        eyes = ["--backbone", "eyes"] if kind != "backbone" else []
        code = main(["train", kind, *common(workshop, data), *eyes, *arguments])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run_train


def test_eyes_then_words_then_an_index_that_answers(
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


def test_the_card_says_what_the_model_is_and_how_it_was_made(
    train: Command, workshop: Path
) -> None:
    arguments = ["--name", "carded", "--epochs", "1", "--licence", "CC0"]
    code, out, err = train("text", *arguments, "--lang", "en", "--lang", "ja", "--json")
    assert code == 0, err
    card = json.loads(out)
    assert (card["kind"], card["name"], card["backbone"]) == ("text", "carded", "eyes")
    assert card["languages"] == ["en", "ja"]
    assert card["training"]["photos"] == 30
    assert card["training"]["captions"] == {"en": 30, "ja": 30}
    assert "CC0" in card["licence"]
    assert set(card["served_mrr"]) == set(card["clm_weights"]) == {"en", "ja"}
    model = models.load("carded")
    assert model.digest == card["digest"]
    assert model.image.digest == card["backbone_digest"]
    assert not list(workshop.glob("models/*.checkpoint.pt"))


def test_another_backbone_joins_an_existing_space(train: Command) -> None:
    assert train("text", "--name", "host", "--epochs", "1")[0] == 0
    arguments = ["--text", "host", "--name", "joined", "--epochs", "1"]
    code, _, err = train("projection", *arguments)
    assert code == 0, err
    own, joined = models.load("host"), models.load("joined")
    assert joined.digest != own.digest
    for one, other in (("a red wall", "en"), ("红色的墙", "zh")):
        mine, theirs = (model.text.encode([one], other).visual for model in (own, joined))
        assert mine.tolist() == theirs.tolist()


def test_an_interrupted_run_resumed_makes_the_same_model(
    train: Command, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--epochs", "3", "--lang", "en", "--no-flip"]
    assert train("text", *options, "--name", "whole")[0] == 0
    judged = Trainer._judged

    def interrupted(self: Trainer, loss: float) -> Any:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return judged(self, loss)

    monkeypatch.setattr(Trainer, "_judged", interrupted)
    assert train("text", *options, "--name", "halves")[0] == 130
    assert not (workshop / "models" / "halves" / "model.json").exists()
    monkeypatch.setattr(Trainer, "_judged", judged)
    code, _, err = train("text", *options, "--name", "halves", "--resume")
    assert code == 0, err
    assert "epoch 1 " not in err
    assert models.load("halves").digest == models.load("whole").digest


def test_a_run_whose_model_cannot_be_written_is_not_lost(
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
    assert not (workshop / "models" / "unwritten.checkpoint.pt").exists()


def test_eyes_come_with_the_words_they_were_trained_with(
    train: Command, workshop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    eyes, words = (models.find(*one) for one in (("eyes", "backbone"), ("eyes-text", "text")))
    assert eyes.parent == words.parent == workshop / "models"
    model = models.load("eyes-text")
    assert model.image.digest == models.load_backbone("eyes").digest
    index = ["--index", str(tmp_path / "index")]
    assert main(["index", str(workshop / "data"), "--model", "eyes-text", *index]) == 0
    assert main(["query", "a red wall", "--json", *index]) == 0


def test_warm_epochs_come_first_and_the_texts_name_may_be_chosen(
    train: Command, workshop: Path
) -> None:
    names = ["--name", "warm", "--text-name", "warm-words"]
    code, out, err = train(
        "backbone", "--from", "lite0", "--epochs", "1", "--frozen-epochs", "2", *names
    )
    assert code == 0, err
    assert out == f"{workshop / 'models' / 'warm-words'}\n"
    assert [line.split("  ")[0] for line in err.splitlines() if "loss" in line] == [
        "epoch 1",
        "epoch 2",
        "epoch 1",
    ]
    assert "--model warm-words --rebuild" in err
    log = (workshop / "models" / "warm" / "log.jsonl").read_text().splitlines()
    assert len(log) == 1


def test_a_run_interrupted_among_its_warm_epochs_can_be_resumed(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--from", "lite0", "--epochs", "1", "--frozen-epochs", "2", "--name", "stopped"]
    judged = Trainer._judged

    def interrupted(self: Trainer, loss: float) -> Any:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return judged(self, loss)

    monkeypatch.setattr(Trainer, "_judged", interrupted)
    assert train("backbone", *arguments)[0] == 130
    monkeypatch.setattr(Trainer, "_judged", judged)
    code, _, err = train("backbone", *arguments, "--resume")
    assert code == 0, err


def test_a_text_model_that_is_there_is_never_written_over(train: Command, workshop: Path) -> None:
    before = models.load("eyes-text").digest
    code, _, err = train("backbone", "--from", "lite0", "--name", "x", "--text-name", "eyes-text")
    assert code == 2
    assert "eyes-text holds a model already" in err
    assert models.load("eyes-text").digest == before
    code, _, err = train("backbone", "--from", "lite0", "--name", "x", "--text-name", "x")
    assert code == 2
    assert "need two names" in err


@pytest.mark.parametrize(("name", "more"), [("further", ()), ("narrow", ("--hidden", "24"))])
def test_eyes_and_words_of_a_model_learn_on(train: Command, name: str, more: list[str]) -> None:
    code, _, err = train("backbone", "--from", "eyes-text", "--epochs", "1", "--name", name, *more)
    assert code == 0, err
    before, after = models.load("eyes-text"), models.load(f"{name}-text")
    started = model_folder.read_card(models.find(name, "backbone"))["started_from"]
    assert started == f"eyes-text@{before.digest} and eyes@{before.image.digest}"
    # One epoch moves them a little: what stood close to each other still does.
    one, other = (strip_bias(m.text.encode(["a red wall"], "en").visual) for m in (before, after))
    assert not np.array_equal(one, other)
    assert (one * other).sum(1).min() > 0.9


def test_a_model_read_back_sees_what_it_is_served_as(workshop: Path) -> None:
    start = start_of("eyes-text")
    half = backbone.lower_blocks_of(start.lite)
    photos = np.random.default_rng(0).integers(0, 256, (3, 128, 128, 3)).astype(np.uint8)
    values, _ = half.activations(list(photos))
    assert start.backbone is not None
    with torch.no_grad():
        seen = load_upper_blocks(start.backbone, half).eval()(
            torch.from_numpy(values.astype(np.float32))
        )
    served = models.load_backbone("eyes").features(list(photos))
    # float16 lies in between, and some features of a random network hardly vary.
    assert np.median(np.abs(seen.numpy() - served)) < 0.05 * np.median(np.abs(served))


def test_what_cannot_learn_on_says_why(train: Command) -> None:
    code, _, err = train("backbone", "--from", "nobody", "--name", "x")
    assert code == 2
    assert "no text model called 'nobody'" in err and "or start from lite0, lite1, lite2" in err
    borrowed = ["--text", "eyes-text", "--epochs", "1", "--name", "borrowing"]
    assert train("projection", *borrowed)[0] == 0
    code, _, err = train("backbone", "--from", "borrowing", "--name", "x")
    assert code == 2
    assert "borrowing borrows its words from eyes-text; start from that" in err


def test_no_epochs_leave_the_network_as_it_is(train: Command) -> None:
    arguments = ["--from", "lite0", "--epochs", "0"]
    code, _, err = train("backbone", *arguments, "--frozen-epochs", "1", "--name", "plain")
    assert code == 0, err
    assert "as it came" in str(
        model_folder.read_card(models.find("plain", "backbone"))["description"]
    )
    code, _, err = train("backbone", *arguments, "--frozen-epochs", "0", "--name", "nothing")
    assert code == 2
    assert "nothing would be trained" in err


def test_a_name_that_is_taken_is_refused(train: Command) -> None:
    code, _, err = train("backbone", "--from", "lite0", "--name", "eyes")
    assert code == 2
    assert "holds a model already; choose another --name" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "bow,tea"], "--inputs are some of bow,word2vec,gru,sentence"),
        (["--inputs", ""], "--inputs are some of"),
        (["--loss", "hope"], "no loss called 'hope'"),
        (["--variant", "w3vv"], "no variant called 'w3vv'"),
        (["--backbone", "nobody"], "no backbone model called 'nobody'"),
    ],
)
def test_what_cannot_be_is_one_line_and_exit_2(
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
    assert "no zh captions in split 'train'; name the languages there are with --lang" in err


def test_without_torch_the_extra_is_named(train: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gensim", None)
    code, _, err = train("text", "--name", "mine")
    assert code == 2
    assert "pip install 'capsearch[train]'" in err


@pytest.mark.parametrize("kind", ["text", "backbone", "projection"])
def test_each_training_explains_itself(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", kind, "--help"]) == 0
    assert f"capsearch train {kind}" in capsys.readouterr().out.split("Examples:")[1]
