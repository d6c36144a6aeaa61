"""`capsearch train tags` and `train caption`, and their benchmarks, on forty small images."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsearch.encoders.models import registry
from capsearch.ui.cli.main import main
from capsearch.ui.cli.train import command as train_command

pytest.importorskip("torch")
pytest.importorskip("gensim")
pytest.importorskip("pycocoevalcap")

from small_training import Command, train, workshop

from capsearch.encoders.train import caption_metrics
from capsearch.encoders.train.loop import TrainingLoop

__all__ = ["train", "workshop"]  # fixtures
SMALL_CAPTIONER = ["--width", "64", "--layers", "1", "--epochs", "2", "--beam", "2"]


@pytest.fixture(scope="module", autouse=True)
def without_java() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(caption_metrics, "has_java", lambda: False)
        yield


@pytest.fixture
def tagger(train: Command, workshop: Path) -> str:
    if not (workshop / "models" / "tags").exists():
        code, out, err = train("tags", "--name", "tags", "--epochs", "2", "--hidden", "16")
        assert code == 0, err
        assert out == f"{workshop / 'models' / 'tags'}\n"
        assert "validation F@5" in err
    return "tags"


@pytest.fixture
def captioner(train: Command, tagger: str, workshop: Path) -> str:
    if not (workshop / "models" / "captions").exists():
        arguments = ["--name", "captions", "--tags", tagger, *SMALL_CAPTIONER]
        code, _, err = train("caption", *arguments)
        assert code == 0, err
        assert "validation CIDEr-D" in err
    return "captions"


def test_what_is_trained_describes_images_of_its_backbone(captioner: str, workshop: Path) -> None:
    backbone = registry.load_backbone("small-cap")
    enricher = registry.find_enricher(backbone.digest)
    assert enricher.tagger is not None and enricher.captioner is not None
    from PIL import Image

    pixels = [backbone.preprocess(Image.open(workshop / "data" / f"{n}.png")) for n in range(3)]
    features = backbone.feature_maps(pixels)
    captions = enricher.captioner.caption(features)
    assert [[one.language for one in found] for found in captions] == [["en", "zh", "ja"]] * 3
    assert len(enricher.tagger.tag(features)) == 3


def test_cards_record_models_and_training(captioner: str, workshop: Path) -> None:
    card = json.loads((workshop / "models" / "captions" / "model.json").read_text())
    assert (card["kind"], card["backbone"], card["tagger"]) == ("captioner", "small-cap", "tags")
    assert card["training"]["scheme"] == "sequential"
    assert card["validation"]["metric"] == "CIDEr-D"
    tags = json.loads((workshop / "models" / "tags" / "model.json").read_text())
    assert (tags["kind"], tags["variant"]) == ("tagger", "cascade")
    assert 0.0 < tags["min_confidence"] < 1.0
    assert not list(workshop.glob("models/*.checkpoint.safetensors"))


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("tags", ["--hidden", "8", "--variant", "multi-task", "--no-flip", "--epochs", "3"]),
        ("caption", ["--decoder", "m-rnn", "--width", "16", "--epochs", "3", "--lr", "0.01"]),
    ],
)
def test_a_resumed_run_makes_the_same_model(
    train: Command, workshop: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: list[str]
) -> None:
    assert train(kind, *options, "--name", f"{kind}-whole")[0] == 0
    evaluated = TrainingLoop._evaluated

    def interrupted(self: TrainingLoop, loss: float) -> Any:
        if self.epoch == 2:
            raise KeyboardInterrupt
        return evaluated(self, loss)

    monkeypatch.setattr(TrainingLoop, "_evaluated", interrupted)
    assert train(kind, *options, "--name", f"{kind}-halves")[0] == 130
    monkeypatch.setattr(TrainingLoop, "_evaluated", evaluated)
    code, _, err = train(kind, *options, "--name", f"{kind}-halves", "--resume")
    assert code == 0, err
    digests = [
        json.loads((workshop / "models" / f"{kind}-{one}" / "model.json").read_text())["digest"]
        for one in ("whole", "halves")
    ]
    assert digests[0] == digests[1]


@pytest.mark.parametrize("scheme", ["self-critical", "self-training"])
def test_a_captioner_is_trained_on_with_its_words_and_tags(
    train: Command, captioner: str, workshop: Path, scheme: str
) -> None:
    options = ["--scheme", scheme, "--epochs", "1", "--beam", "2"]
    code, _, err = train("caption", "--from", captioner, *options, "--name", scheme)
    assert code == 0, err
    first, second = (
        json.loads((workshop / "models" / one / "model.json").read_text())
        for one in (captioner, scheme)
    )
    assert second["training"]["initial"] == captioner
    assert second["training"]["config"] == first["training"]["config"]
    assert (second["backbone"], second["tagger"]) == ("small-cap", "tags")
    before, after = (
        (workshop / "models" / one / "words.json").read_bytes() for one in (captioner, scheme)
    )
    assert before == after


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--lang", "zh"], "writes en, zh, ja: give these --lang"),
        (["--scheme", "alternate"], "has other decoders than the scheme 'alternate' trains"),
    ],
)
def test_a_captioner_is_trained_on_as_it_is(
    train: Command, captioner: str, arguments: list[str], message: str
) -> None:
    code, _, err = train("caption", "--name", "never", "--from", captioner, *arguments)
    assert code == 2
    assert message in err


def test_an_lstm_cannot_be_trained_on(train: Command, workshop: Path) -> None:
    lstm = ["--decoder", "show-and-tell", "--width", "16", "--epochs", "1"]
    if not (workshop / "models" / "lstm").exists():
        assert train("caption", *lstm, "--name", "lstm")[0] == 0
    code, _, err = train("caption", "--name", "never", "--from", "lstm")
    assert code == 2
    assert "a show-and-tell decoder cannot be trained on from a model" in err


@pytest.mark.parametrize(
    ("kind", "arguments", "message"),
    [
        ("tags", ["--variant", "forest"], "no variant 'forest'"),
        ("tags", ["--lang", "zh"], "a cascade starts with English"),
        ("caption", ["--decoder", "parrot"], "no decoder 'parrot'"),
        ("caption", ["--scheme", "osmosis"], "no scheme called 'osmosis'"),
        ("caption", ["--backbone", "lite0"], "has no feature map"),
        ("caption", ["--tags", "nobody"], "no tagger model called 'nobody'"),
        ("caption", ["--width", "65"], "multiple of 64"),
        ("caption", ["--scheme", "self-critical"], "starts from a captioner: give --from"),
        ("caption", ["--scheme", "self-training"], "starts from a captioner: give --from"),
        ("caption", ["--from", "nobody"], "no captioner model called 'nobody'"),
    ],
)
def test_an_invalid_option_is_one_line_and_exit_2(
    train: Command, kind: str, arguments: list[str], message: str
) -> None:
    code, out, err = train(kind, "--name", "never", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "Traceback" not in err


def bench(
    workshop: Path, capsys: pytest.CaptureFixture[str], *arguments: str
) -> tuple[int, str, str]:
    capsys.readouterr()
    paths = ["--data", str(workshop / "data"), "--cache", str(workshop / "cache")]
    code = main(["bench", arguments[0], *paths, *arguments[1:]])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_bench_caption_stands_beside_the_baseline_and_the_papers(
    captioner: str, workshop: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "curves.png"
    arguments = ["--model", captioner, "--beam", "1", "--examples", "1", "--plot", str(plot)]
    code, out, err = bench(workshop, capsys, "caption", *arguments)
    assert code == 0, err
    for row in ("nearest neighbour", "captions@", "transfer", "m-RNN, beam", "sequential"):
        assert row in out
    assert "METEOR is left out: it needs Java" in err
    assert plot.stat().st_size > 1000


def test_the_nearest_neighbours_captions_are_right_where_images_repeat(
    captioner: str, workshop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bench(workshop, capsys, "caption", "--model", captioner, "--json")
    assert code == 0, err
    rows = json.loads(out)
    baseline = {row["language"]: row for row in rows if row["model"] == "nearest neighbour"}
    assert set(baseline) == {"en", "zh", "ja"}
    assert baseline["zh"]["scores"]["ROUGE-L"] > 0.9  # validation images are training images
    assert all(row["ms_per_image"] > 0 for row in rows if row["model"] != "nearest neighbour")


def test_bench_tags_prints_precision_recall_and_f(
    tagger: str, workshop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = bench(workshop, capsys, "tags", "--model", tagger)
    assert code == 0, err
    assert "cascading MLP" in out and "0.517" in out
    code, out, err = bench(workshop, capsys, "tags", "--model", tagger, "--json", "--limit", "5")
    assert code == 0, err
    for row in json.loads(out):
        assert 0 <= row["f"] <= 1
        assert row["images"] == 5


def test_captions_of_another_backbone_are_not_measured(
    captioner: str, workshop: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    card = workshop / "models" / "captions" / "model.json"
    before = card.read_text()
    try:
        card.write_text(json.dumps({**json.loads(before), "backbone_digest": "other"}))
        code, _, err = bench(workshop, capsys, "caption", "--model", captioner, "--no-baseline")
    finally:
        card.write_text(before)
    assert code == 2
    assert "describes features of small-cap@other" in err


@pytest.mark.parametrize("kind", ["tags", "caption"])
def test_each_training_and_benchmark_explains_itself(
    kind: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for group in ("train", "bench"):
        assert main([group, kind, "--help"]) == 0
        assert f"capsearch {group} {kind}" in capsys.readouterr().out.split("Examples:")[1]
    for option in train_command.commands[kind].params:  # type: ignore[attr-defined]
        assert option.help.replace("]", ".").rstrip().endswith("."), option.name
        assert option.help[0].isupper(), option.name


def test_a_model_without_a_log_has_no_curve(tmp_path: Path) -> None:
    from capsearch.benchmarks.report import trained_model
    from capsearch.encoders.models import model_folder
    from capsearch.engine.errors import DataProblem

    model_folder.write_card(tmp_path, {"kind": "tagger", "name": "bare"})
    with pytest.raises(DataProblem, match="has no training log"):
        trained_model(tmp_path)


def test_a_data_set_without_validation_captions_is_named(
    train: Command, workshop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from capsearch.encoders.train import caption_run

    monkeypatch.setattr(caption_run, "references_of", lambda data, languages: {})
    code, _, err = train("caption", "--name", "never", *SMALL_CAPTIONER)
    assert code == 2
    assert "no captions to validate with in split 'val'" in err
