"""`capsearch train student`: a small backbone in the space of a model that is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsearch.encoders.models import model_folder, registry
from capsearch.engine.fakes import colour_image
from capsearch.engine.vectors import strip_bias
from capsearch.ui.cli.main import main

pytest.importorskip("torch")
pytest.importorskip("gensim")

from small_training import COLOURS, Command, common, train, workshop, write_data, write_split

from capsearch.encoders.train.networks import NETWORKS
from capsearch.encoders.train.trainer import Trainer

__all__ = ["train", "workshop"]  # fixtures


@pytest.fixture(scope="module")
def teacher(workshop: Path) -> str:
    """A text model, trained on the workshop's data."""
    arguments = ["--backbone", "small-cap", "--epochs", "2", "--name", "teacher"]
    assert main(["train", "text", *common(workshop), *arguments]) == 0
    return "teacher"


def arguments(teacher: str, name: str, *more: str) -> list[str]:
    return ["student", "--teacher", teacher, "--from", "lite0", "--name", name, *more]


def card_of(name: str) -> dict[str, Any]:
    return dict(model_folder.read_card(registry.find(name, "text")))


def test_a_student_has_the_text_encoders_of_its_teacher(
    train: Command, workshop: Path, teacher: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["--text-name", "pupil-words", "--epochs", "1"]
    code, out, err = train(*arguments(teacher, "pupil", *names))
    assert code == 0, err
    assert out == f"{workshop / 'models' / 'pupil-words'}\n"
    assert "--model pupil-words --rebuild" in err
    card, taught = card_of("pupil-words"), registry.load(teacher)
    assert (card["text"], card["text_digest"]) == (teacher, taught.digest)
    assert (card["backbone"], card["teacher"]) == ("pupil", f"teacher@{taught.digest}")
    assert card["training"]["images"] == 30
    student = registry.load("pupil-words")
    one, other = (strip_bias(m.text.encode(["红色的墙"], "zh").visual) for m in (taught, student))
    np.testing.assert_array_equal(one, other)
    made = model_folder.read_card(registry.find("pupil", "backbone"))
    assert made["architecture"] == NETWORKS["lite0"].title
    assert made["description"] == "lite0, upper blocks distilled from teacher"
    assert not list(workshop.glob("models/*.checkpoint.safetensors"))

    index = ["--index", str(tmp_path / "index")]
    assert main(["index", str(workshop / "data"), "--model", "pupil-words", *index]) == 0
    capsys.readouterr()
    assert main(["query", "a red wall", "--json", *index]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == 10


def test_a_student_comes_near_its_teachers_image_vectors(train: Command, teacher: str) -> None:
    code, _, err = train(*arguments(teacher, "near", "--epochs", "3"))
    assert code == 0, err
    walls = [np.kron(colour_image(one), np.ones((8, 8, 1), np.uint8)) for one in COLOURS]
    taught, near = (
        strip_bias(model.image.project(model.image.features(walls)))
        for model in (registry.load(teacher), registry.load("near-text"))
    )
    cosines = taught @ near.T  # (5, 5): the same colour on the diagonal
    assert cosines.diagonal().min() > 0.95
    assert (cosines - np.eye(5)).max() < 0.5


def test_labelled_images_and_a_teacher_that_shares_text_encoders(
    train: Command, workshop: Path, teacher: str, tmp_path: Path
) -> None:
    sharing = ["--text", teacher, "--epochs", "1", "--name", "sharing"]
    assert train("projection", *sharing)[0] == 0
    labelled = tmp_path / "labelled"
    write_data(labelled)
    (labelled / "val.jsonl.gz").unlink()
    # The ids are those of the captioned images too.
    records = [{"id": n, "file": f"{n}.png", "label": "violin"} for n in range(20)]
    write_split(labelled, "train", records)
    more = ["--labelled", str(labelled), "--epochs", "1", "--bfloat16", "--json"]
    code, out, err = train(*arguments("sharing", "named", *more))
    assert code == 0, err
    card = json.loads(out)
    assert (card["text"], card["text_digest"]) == (teacher, registry.load(teacher).digest)
    assert card["teacher"].startswith("sharing@")
    assert 30 < card["training"]["images"] < 50
    assert card["training"]["options"]["bfloat16"] is True
    assert registry.load("named-text").image.digest == card["backbone_digest"]


def test_an_interrupted_run_is_resumed(
    train: Command, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert train(*arguments(teacher, "whole", "--epochs", "2"))[0] == 0
    evaluated = Trainer._evaluated

    def interrupted(self: Trainer, loss: float) -> Any:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return evaluated(self, loss)

    monkeypatch.setattr(Trainer, "_evaluated", interrupted)
    stopped = arguments(teacher, "stopped", "--epochs", "2")
    assert train(*stopped)[0] == 130
    monkeypatch.setattr(Trainer, "_evaluated", evaluated)
    code, _, err = train(*stopped, "--resume")
    assert code == 0, err
    assert "epoch 2  loss" in err and "epoch 1  loss" not in err
    cards = [card_of(f"{name}-text") for name in ("whole", "stopped")]
    assert cards[0]["validation_mrr"] == cards[1]["validation_mrr"]
    images = np.random.default_rng(0).integers(0, 256, (2, 128, 128, 3)).astype(np.uint8)
    one, other = (registry.load_backbone(n).features(list(images)) for n in ("whole", "stopped"))
    np.testing.assert_array_equal(one, other)


def test_an_earlier_student_is_trained_on(train: Command, teacher: str) -> None:
    assert train(*arguments(teacher, "early", "--epochs", "1"))[0] == 0
    more = ["--teacher", teacher, "--from", "early-text", "--lr", "1e-9", "--backbone-lr", "1e-9"]
    code, _, err = train("student", *more, "--name", "later", "--epochs", "1")
    assert code == 0, err
    cards = [card_of(f"{name}-text") for name in ("early", "later")]
    assert cards[1]["started_from"].startswith("early-text@")
    walls = [np.kron(colour_image(one), np.ones((8, 8, 1), np.uint8)) for one in COLOURS]
    one, other = (
        strip_bias(model.image.project(model.image.features(walls)))
        for model in (registry.load("early-text"), registry.load("later-text"))
    )
    np.testing.assert_allclose(one, other, atol=2e-3)  # it learned next to nothing


@pytest.mark.parametrize(
    ("teacher_name", "start", "expected"),
    [
        ("nobody", "lite0", "no text model called 'nobody'; there is:"),
        ("small-cap", "lite0", "small-cap is a backbone model, not a text model"),
        ("small-cap-text", "lite9", "or start from lite0, lite1"),
        ("small-cap-text", "tinyvit", "run `capsearch models install tinyvit`"),
    ],
)
def test_what_cannot_be_trained_is_explained_in_one_line(
    train: Command, teacher_name: str, start: str, expected: str
) -> None:
    code, out, err = train("student", "--teacher", teacher_name, "--from", start, "--name", "x")
    assert (code, out) == (2, "")
    assert expected in err
    assert len(err.strip().splitlines()) == 1


def test_the_text_model_needs_a_name_of_its_own(train: Command, teacher: str) -> None:
    code, _, err = train(*arguments(teacher, "x", "--text-name", "x"))
    assert code == 2
    assert "need two names" in err
