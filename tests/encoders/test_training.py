"""The trainer converges, stops early, resumes exactly, and explains why it cannot continue."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import axes, captions, options, random_model, vocabulary  # noqa: E402

from capsearch.encoders.train import loop  # noqa: E402
from capsearch.encoders.train.captions import draws  # noqa: E402
from capsearch.encoders.train.dual_encoder import FrozenText, Labels, TrainingSet, freeze_text  # noqa: E402
from capsearch.encoders.train.loop import Epoch, interpolate_weights  # noqa: E402
from capsearch.encoders.train.trainer import Trainer  # noqa: E402
from capsearch.engine.errors import TrainingProblem  # noqa: E402

VOCABULARIES = {"en": vocabulary("en")}


def trainer(settings, path=None, train=None, **parts):
    torch.manual_seed(0)
    model = random_model(VOCABULARIES, settings, **parts)
    return Trainer(model, train or axes(48), axes(6, seed=9), settings, path)


def weights(one):
    return {name: value.clone() for name, value in one.averaged.module.state_dict().items()}


def test_words_that_name_the_axes_converge():
    trained = trainer(options(epochs=40, lr=1e-2, patience=40))
    before = trained.validate()["en"]
    epochs = list(trained.fit())
    # By chance a right answer among six is at rank 1 to 6: a mean of 1/rank of .41.
    assert before < 0.7
    assert trained.best.score > 0.95
    assert epochs[-1].loss < epochs[0].loss
    assert [epoch.number for epoch in epochs] == list(range(1, 41))


def test_afterwards_the_averaged_weights_are_the_best_ones():
    trained = trainer(options(epochs=4))
    list(trained.fit())
    assert trained.validate() == pytest.approx(trained.best.validation)


@pytest.mark.parametrize("loss", ["infonce", "contrastive"])  # the second draws random negatives
def test_a_resumed_run_ends_bit_for_bit_like_an_uninterrupted_one(tmp_path, loss):
    settings = options(epochs=4, loss=loss)
    whole = trainer(settings)
    expected = list(whole.fit())

    first = trainer(settings, tmp_path / "checkpoint.safetensors").fit()
    got = [next(first), next(first)]
    second = trainer(settings, tmp_path / "checkpoint.safetensors")
    torch.rand(7)  # whatever else drew numbers in between
    second.resume()
    got += list(second.fit())

    assert got == expected
    assert second.best == whole.best
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(second)[name]), name


def test_a_resumed_run_counts_patience_from_the_best_epoch(tmp_path, monkeypatch):
    scores = iter([0.9, 0.5, 0.4, 0.3, 0.2])
    monkeypatch.setattr(Trainer, "validate", lambda self: {"en": next(scores)})
    settings = options(epochs=9, patience=3)
    first = trainer(settings, tmp_path / "c.safetensors").fit()
    next(first), next(first)
    second = trainer(settings, tmp_path / "c.safetensors")
    second.resume()
    assert [epoch.number for epoch in second.fit()] == [3, 4]  # 4 - 1 = 3 epochs without
    assert second.best.number == 1


def test_training_stops_after_patience_epochs_without_a_better_one(monkeypatch):
    scores = iter([0.2, 0.5, 0.5, 0.4, 0.9])
    monkeypatch.setattr(Trainer, "validate", lambda self: {"en": next(scores)})
    epochs = list(trainer(options(epochs=9, patience=2)).fit())
    assert [epoch.best for epoch in epochs] == [True, True, False, False]


def test_resuming_without_a_checkpoint_starts_at_the_beginning(tmp_path):
    fresh = trainer(options(), tmp_path / "none.safetensors")
    fresh.resume()
    assert (fresh.epoch, fresh.best) == (0, None)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    next(trainer(options(dimension=8), tmp_path / "c.safetensors").fit())
    with pytest.raises(TrainingProblem, match=r"another data set or configuration; remove it"):
        trainer(options(dimension=7), tmp_path / "c.safetensors").resume()


def test_a_file_that_is_no_checkpoint_is_refused(tmp_path):
    path = tmp_path / "c.safetensors"
    path.write_bytes(b"something else")
    with pytest.raises(TrainingProblem, match=r"no checkpoint of this version .* remove it"):
        trainer(options(), path).resume()


def test_a_checkpoint_of_another_schema_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "c.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr(loop, "SCHEMA", loop.SCHEMA + 1)
        next(trainer(options(), path).fit())
    with pytest.raises(TrainingProblem, match=r"no checkpoint of this version .*schema 2"):
        trainer(options(), path).resume()


def test_a_resumed_backbone_in_channels_last_format_is_the_same_bit_for_bit(tmp_path):
    def convolution():
        torch.manual_seed(0)
        conv = torch.nn.Conv2d(6, 6, 3, padding=1).to(memory_format=torch.channels_last)
        return torch.nn.Sequential(torch.nn.Unflatten(1, (6, 1, 1)), conv, torch.nn.Flatten())

    path = tmp_path / "c.safetensors"
    whole = trainer(options(), backbone=convolution())
    list(whole.fit())
    next(trainer(options(), path, backbone=convolution()).fit())
    resumed = trainer(options(), path, backbone=convolution())
    resumed.resume()
    weight = resumed.model.backbone[1].weight
    assert resumed._optimizer.state[weight]["exp_avg"].stride() == weight.stride()
    list(resumed.fit())
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(resumed)[name]), name


def test_a_diverged_loss_is_reported():
    train = axes(16)
    train.inputs[:] = np.nan
    with pytest.raises(TrainingProblem, match=r"loss is nan in epoch 1; try a lower --lr"):
        list(trainer(options(), train=train).fit())


def test_a_batch_without_captions_is_a_problem():
    train = TrainingSet(axes(8).inputs, {"en": captions([3], [[0]])})
    with pytest.raises(TrainingProblem, match="batch without captions"):
        list(trainer(options(), train=train).fit())


def test_an_epochs_score_is_the_mean_over_languages():
    assert Epoch(1, 0.5, {"en": 0.2, "zh": 0.4}, True).score == pytest.approx(0.3)
    assert Epoch(1, 0.5, {}, True).score == 0.0


def test_only_known_labels_are_trained():
    train = axes(48)
    values = np.eye(6, dtype=np.uint8)[np.arange(48) % 6]
    known = np.ones((48, 6), bool)
    known[:, 5] = False
    train = TrainingSet(train.inputs, train.captions, Labels(values, known))
    trained = trainer(options(epochs=12, lr=1e-2, label_loss_weight=1.0), train=train, labels=6)
    start = trained.model.labels.weight.detach().clone()
    list(trained.fit())
    changed = (trained.model.labels.weight - start).abs().sum(1)
    assert changed[:5].min() > 10 * changed[5]  # the unknown column only decays


class TestCaptionsOfOneImage:
    def test_no_caption_is_drawn_twice_in_a_step(self):
        trained = trainer(options(captions_per_image=2))  # two captions an image
        images = np.arange(8)
        (rows, first), (again, second) = draws(
            trained._rows["en"], images, 2, np.random.default_rng(0)
        )
        assert rows.tolist() == again.tolist() == list(range(8))
        assert not set(first) & set(second)

    def test_the_only_caption_of_an_image_is_drawn_once(self):
        train = TrainingSet(axes(3).inputs, {"en": captions([0, 1, 1, 2], [[0]] * 4)})
        trained = trainer(options(captions_per_image=2), train=train)
        drawn = list(draws(trained._rows["en"], np.arange(3), 2, np.random.default_rng(0)))
        assert [rows.tolist() for rows, _ in drawn] == [[0, 1, 2], [1]]

    def test_the_caption_loss_brings_them_together_without_image_evidence(self):
        # All images are equal, so only the other caption carries information.
        train = axes(48)
        train.inputs[:] = 1.0
        alone, together = (
            trainer(
                options(epochs=80, patience=80, lr=1e-2, caption_loss_weight=weight), train=train
            )
            for weight in (0.0, 1.0)
        )

        def separation(trained):
            list(trained.fit())
            vectors = trained.model.eval().text(all_of(train.captions["en"]), "en").detach()
            same = torch.from_numpy(train.captions["en"].image_rows % 6)
            scores, alike = vectors @ vectors.T, same[:, None] == same[None, :]
            return float(scores[alike].mean() - scores[~alike].mean())

        assert separation(together) > separation(alone) + 0.1


@pytest.mark.parametrize(
    ("scores", "best", "weight"),
    [
        ((0.4, 0.6, 0.5), 0.6, 0.5),
        ((0.7, 0.6, 0.1), 0.7, 0.75),
        ((0.4, 0.3, 0.6), 0.6, 0.25),
        ((0.4, 0.3, 0.5), 0.5, 1.0),
    ],
)
def test_interpolated_weights_are_used_only_if_they_validate_better(scores, best, weight):
    model = random_model(VOCABULARIES)
    tuned = {name: value.clone() for name, value in model.state_dict().items()}
    initial = {name: torch.zeros_like(value) for name, value in tuned.items()}
    found = iter(scores)
    given = Epoch(1, 0.1, {"en": 0.5}, True)
    chosen = interpolate_weights(model, initial, given, lambda: {"en": next(found)})
    assert chosen.score == best
    for name, value in model.state_dict().items():
        torch.testing.assert_close(value, weight * tuned[name])


def test_the_backbone_has_its_own_lr():
    backbone = torch.nn.Sequential(torch.nn.Linear(6, 6))
    trained = trainer(options(epochs=1, backbone_lr=0.0), backbone=backbone)
    start = backbone[0].weight.detach().clone()
    list(trained.fit())
    assert torch.equal(backbone[0].weight, start)
    trained = trainer(options(epochs=1, backbone_lr=1e-3), backbone=backbone)
    list(trained.fit())
    assert not torch.equal(backbone[0].weight, start)


def test_steps_are_counted_by_epoch():
    reports = []
    trained = trainer(options(epochs=2))  # 48 images in batches of 16
    list(trained.fit(lambda name: lambda done, of: reports.append((name, done, of))))
    assert reports == [(f"epoch {epoch}", step, 3) for epoch in (1, 2) for step in (1, 2, 3)]


class TestFrozenText:
    def test_returns_the_vectors_that_were_encoded_before(self):
        model = random_model(VOCABULARIES).eval()
        splits = [axes(4).captions, axes(3, seed=1).captions]
        table, rows = freeze_text(model.text, splits)
        for split, one in zip(splits, rows, strict=True):
            again = table(all_of(one["en"]), "en")
            torch.testing.assert_close(again, model.text(all_of(split["en"]), "en"))

    def test_the_averaged_model_has_the_same_tables(self):
        table = FrozenText({"en": np.eye(6, 8, dtype=np.float32)})
        made = trainer(options(), text=table)
        assert made.averaged.module.text is table
        assert made.averaged.module.image is not made.model.image

    def test_a_split_without_captions_of_a_language_adds_nothing(self):
        model = random_model(VOCABULARIES)
        table, rows = freeze_text(model.text, [axes(4).captions, {"en": captions([], [])}])
        assert isinstance(table, FrozenText)
        assert len(table.tables["en"]) == 8
        assert len(rows[1]["en"].image_rows) == 0


def all_of(given):
    from capsearch.encoders.train.dual_encoder import batch_of

    return batch_of(given, np.arange(len(given.image_rows)))
