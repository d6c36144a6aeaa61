"""`capsearch train backbone`: fine-tuning a network together with text encoders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from capsearch.encoders.models import model_folder, registry
from capsearch.engine.vectors import strip_bias
from capsearch.ui.cli.main import main

torch = pytest.importorskip("torch")
pytest.importorskip("gensim")

from small_training import Command, train, workshop  # noqa: E402

from capsearch.encoders.train import backbone  # noqa: E402
from capsearch.encoders.train.backbone import find_initial_weights  # noqa: E402
from capsearch.encoders.train.export import load_upper_blocks  # noqa: E402
from capsearch.encoders.train.trainer import Trainer  # noqa: E402

__all__ = ["train", "workshop"]  # fixtures


def test_a_backbone_comes_with_its_text_encoders(
    train: Command, workshop: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    backbone_folder = registry.find("small-cap", "backbone")
    text_folder = registry.find("small-cap-text", "text")
    assert backbone_folder.parent == text_folder.parent == workshop / "models"
    model = registry.load("small-cap-text")
    assert model.image.digest == registry.load_backbone("small-cap").digest
    index = ["--index", str(tmp_path / "index")]
    assert main(["index", str(workshop / "data"), "--model", "small-cap-text", *index]) == 0
    assert main(["query", "a red wall", "--json", *index]) == 0


def test_frozen_epochs_come_first_and_the_text_model_may_be_named(
    train: Command, workshop: Path
) -> None:
    names = ["--name", "tuned", "--text-name", "tuned-words"]
    code, out, err = train(
        *("backbone", "--from", "lite0", "--epochs", "1", "--frozen-epochs", "2", *names),
        *("--backbone-lr", "2e-4"),
    )
    assert code == 0, err
    assert out == f"{workshop / 'models' / 'tuned-words'}\n"
    assert [line.split("  ")[0] for line in err.splitlines() if "loss" in line] == [
        "epoch 1",
        "epoch 2",
        "epoch 1",
    ]
    assert "--model tuned-words --rebuild" in err
    card = model_folder.read_card(workshop / "models" / "tuned")
    assert card["training"]["options"]["backbone_lr"] == 2e-4
    log = (workshop / "models" / "tuned" / "log.jsonl").read_text().splitlines()
    assert len(log) == 1


def test_a_run_interrupted_in_its_frozen_epochs_can_be_resumed(
    train: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ["--from", "lite0", "--epochs", "1", "--frozen-epochs", "2", "--name", "stopped"]
    evaluated = Trainer._evaluated

    def interrupted(self: Trainer, loss: float) -> Any:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return evaluated(self, loss)

    monkeypatch.setattr(Trainer, "_evaluated", interrupted)
    assert train("backbone", *arguments)[0] == 130
    monkeypatch.setattr(Trainer, "_evaluated", evaluated)
    code, _, err = train("backbone", *arguments, "--resume")
    assert code == 0, err


def test_an_existing_text_model_is_never_overwritten(train: Command, workshop: Path) -> None:
    before = registry.load("small-cap-text").digest
    code, _, err = train(
        "backbone", "--from", "lite0", "--name", "x", "--text-name", "small-cap-text"
    )
    assert code == 2
    assert "small-cap-text holds a model already" in err
    assert registry.load("small-cap-text").digest == before
    code, _, err = train("backbone", "--from", "lite0", "--name", "x", "--text-name", "x")
    assert code == 2
    assert "need two names" in err


@pytest.mark.parametrize(("name", "more"), [("further", ()), ("pruned", ("--hidden", "24"))])
def test_an_existing_model_can_be_fine_tuned_further(
    train: Command, name: str, more: list[str]
) -> None:
    code, _, err = train(
        "backbone", "--from", "small-cap-text", "--epochs", "1", "--name", name, *more
    )
    assert code == 0, err
    before, after = registry.load("small-cap-text"), registry.load(f"{name}-text")
    started = model_folder.read_card(registry.find(name, "backbone"))["started_from"]
    assert started == f"small-cap-text@{before.digest} and small-cap@{before.image.digest}"
    # One epoch changes the vectors only a little.
    one, other = (strip_bias(m.text.encode(["a red wall"], "en").visual) for m in (before, after))
    assert not np.array_equal(one, other)
    assert (one * other).sum(1).min() > 0.9


def test_imported_weights_give_the_served_features(workshop: Path) -> None:
    initial = find_initial_weights("small-cap-text")
    lower = backbone.lower_blocks_of(initial.network)
    images = np.random.default_rng(0).integers(0, 256, (3, 128, 128, 3)).astype(np.uint8)
    values, _ = lower.activations(list(images))
    assert initial.backbone is not None
    with torch.no_grad():
        imported = load_upper_blocks(initial.backbone, lower).eval()(
            torch.from_numpy(values.astype(np.float32))
        )
    served = registry.load_backbone("small-cap").features(list(images))
    # float16 activations lie in between; some features of a random network hardly vary.
    assert np.median(np.abs(imported.numpy() - served)) < 0.05 * np.median(np.abs(served))


def test_initial_weights_that_cannot_be_used_are_explained(train: Command) -> None:
    code, _, err = train("backbone", "--from", "nobody", "--name", "x")
    assert code == 2
    assert "no text model called 'nobody'" in err and "or start from lite0, lite1, lite2" in err
    sharing = ["--text", "small-cap-text", "--epochs", "1", "--name", "sharing"]
    assert train("projection", *sharing)[0] == 0
    code, _, err = train("backbone", "--from", "sharing", "--name", "x")
    assert code == 2
    assert "sharing uses the text encoders of small-cap-text; start from that model" in err


def test_without_epochs_the_backbone_stays_pretrained(train: Command) -> None:
    arguments = ["--from", "lite0", "--epochs", "0"]
    code, _, err = train("backbone", *arguments, "--frozen-epochs", "1", "--name", "plain")
    assert code == 0, err
    assert "pretrained" in str(
        model_folder.read_card(registry.find("plain", "backbone"))["description"]
    )
    code, _, err = train("backbone", *arguments, "--frozen-epochs", "0", "--name", "nothing")
    assert code == 2
    assert "nothing would be trained" in err


def test_an_existing_name_is_refused(train: Command) -> None:
    code, _, err = train("backbone", "--from", "lite0", "--name", "small-cap")
    assert code == 2
    assert "holds a model already; choose another --name" in err
