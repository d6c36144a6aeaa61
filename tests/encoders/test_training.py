"""Training learns, stops, goes on where it stopped, and says why when it cannot."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import axes, captions, options, random_pair, vocabulary  # noqa: E402

from capsearch.encoders.training.fit import validation  # noqa: E402
from capsearch.encoders.training.fit.trainer import Trainer  # noqa: E402
from capsearch.encoders.training.fit.validation import Epoch  # noqa: E402
from capsearch.encoders.training.nn.dual_encoder import Labels, TrainingSet  # noqa: E402
from capsearch.encoders.training.nn.frozen_text import FrozenText, known  # noqa: E402
from capsearch.engine.errors import TrainingProblem  # noqa: E402

VOCABULARIES = {"en": vocabulary("en")}


def trainer(settings, checkpoint=None, train=None, **parts):
    torch.manual_seed(0)
    pair = random_pair(VOCABULARIES, settings, **parts)
    return Trainer(pair, train or axes(48), axes(6, seed=9), settings, checkpoint)


def weights(one):
    return {name: value.clone() for name, value in one.averaged.module.state_dict().items()}


def test_words_that_name_the_axes_are_learned():
    learner = trainer(options(epochs=40, lr=1e-2, patience=40))
    before = learner.validate()["en"]
    epochs = list(learner.fit())
    # By chance a right answer among six is at rank 1 to 6: a mean of 1/rank of .41.
    assert before < 0.7
    assert learner.best.mrr > 0.95
    assert epochs[-1].loss < epochs[0].loss
    assert [epoch.number for epoch in epochs] == list(range(1, 41))


def test_afterwards_the_averaged_weights_are_the_best_ones():
    learner = trainer(options(epochs=4))
    list(learner.fit())
    assert learner.validate() == pytest.approx(learner.best.validation)


@pytest.mark.parametrize("loss", ["infonce", "contrastive"])  # the second draws pairs itself
def test_an_interrupted_run_resumed_ends_bit_for_bit_like_one_in_a_piece(tmp_path, loss):
    settings = options(epochs=4, loss=loss)
    whole = trainer(settings)
    expected = list(whole.fit())

    first = trainer(settings, tmp_path / "checkpoint.pt").fit()
    got = [next(first), next(first)]
    second = trainer(settings, tmp_path / "checkpoint.pt")
    torch.rand(7)  # whatever else drew numbers in between
    second.resume()
    got += list(second.fit())

    assert got == expected
    assert second.best == whole.best
    for name, value in weights(whole).items():
        assert torch.equal(value, weights(second)[name]), name


def test_a_resumed_run_remembers_how_long_nothing_improved(tmp_path, monkeypatch):
    scores = iter([0.9, 0.5, 0.4, 0.3, 0.2])
    monkeypatch.setattr(Trainer, "validate", lambda self: {"en": next(scores)})
    settings = options(epochs=9, patience=3)
    first = trainer(settings, tmp_path / "c.pt").fit()
    next(first), next(first)
    second = trainer(settings, tmp_path / "c.pt")
    second.resume()
    assert [epoch.number for epoch in second.fit()] == [3, 4]  # 4 - 1 = 3 epochs without
    assert second.best.number == 1


def test_training_stops_after_patience_epochs_without_a_better_one(monkeypatch):
    scores = iter([0.2, 0.5, 0.5, 0.4, 0.9])
    monkeypatch.setattr(Trainer, "validate", lambda self: {"en": next(scores)})
    epochs = list(trainer(options(epochs=9, patience=2)).fit())
    assert [epoch.best for epoch in epochs] == [True, True, False, False]


def test_resuming_without_a_checkpoint_starts_at_the_beginning(tmp_path):
    fresh = trainer(options(), tmp_path / "none.pt")
    fresh.resume()
    assert (fresh.epoch, fresh.best) == (0, None)


def test_a_checkpoint_of_another_configuration_is_refused(tmp_path):
    next(trainer(options(dimension=8), tmp_path / "c.pt").fit())
    with pytest.raises(TrainingProblem, match=r"another data set or configuration; remove it"):
        trainer(options(dimension=7), tmp_path / "c.pt").resume()


def test_a_diverged_run_says_so():
    train = axes(16)
    train.inputs[:] = np.nan
    with pytest.raises(TrainingProblem, match=r"loss is nan in epoch 1; try a lower --lr"):
        list(trainer(options(), train=train).fit())


def test_a_batch_without_captions_is_a_problem():
    train = TrainingSet(axes(8).inputs, {"en": captions([3], [[0]])})
    with pytest.raises(TrainingProblem, match="batch without captions"):
        list(trainer(options(), train=train).fit())


def test_an_epochs_score_is_the_mean_over_languages():
    assert Epoch(1, 0.5, {"en": 0.2, "zh": 0.4}, True).mrr == pytest.approx(0.3)
    assert Epoch(1, 0.5, {}, True).mrr == 0.0


def test_labels_are_learned_where_they_are_known():
    train = axes(48)
    values = np.eye(6, dtype=np.uint8)[np.arange(48) % 6]
    seen = np.ones((48, 6), bool)
    seen[:, 5] = False
    train = TrainingSet(train.inputs, train.captions, Labels(values, seen))
    learner = trainer(options(epochs=12, lr=1e-2, label_loss_weight=1.0), train=train, labels=6)
    start = learner.pair.labels.weight.detach().clone()
    list(learner.fit())
    changed = (learner.pair.labels.weight - start).abs().sum(1)
    assert changed[:5].min() > 10 * changed[5]  # the unknown column only decays


class TestCaptionsOfOnePhoto:
    def test_no_caption_is_drawn_twice_in_a_step(self):
        learner = trainer(options(captions_per_image=2))  # two captions a photo
        photos = np.arange(8)
        (rows, first), (again, second) = learner._draws("en", photos, np.random.default_rng(0))
        assert rows.tolist() == again.tolist() == list(range(8))
        assert not set(first) & set(second)

    def test_a_photo_with_one_caption_is_drawn_once(self):
        train = TrainingSet(axes(3).inputs, {"en": captions([0, 1, 1, 2], [[0]] * 4)})
        learner = trainer(options(captions_per_image=2), train=train)
        drawn = list(learner._draws("en", np.arange(3), np.random.default_rng(0)))
        assert [rows.tolist() for rows, _ in drawn] == [[0, 1, 2], [1]]

    def test_they_are_drawn_together_though_no_image_says_so(self):
        # Every image looks the same, so only the other caption tells what a caption means.
        train = axes(48)
        train.inputs[:] = 1.0
        alone, together = (
            trainer(
                options(epochs=80, patience=80, lr=1e-2, caption_loss_weight=share), train=train
            )
            for share in (0.0, 1.0)
        )

        def told_apart(learner):
            list(learner.fit())
            vectors = learner.pair.eval().text(all_of(train.captions["en"]), "en").detach()
            same = torch.from_numpy(train.captions["en"].image_rows % 6)
            scores, alike = vectors @ vectors.T, same[:, None] == same[None, :]
            return float(scores[alike].mean() - scores[~alike].mean())

        assert told_apart(together) > told_apart(alone) + 0.1


@pytest.mark.parametrize(
    ("scores", "best", "share"),
    [((0.4, 0.6), 0.6, 0.5), ((0.7, 0.6), 0.7, 0.75), ((0.4, 0.3), 0.5, 1.0)],
)
def test_part_of_the_way_back_is_kept_only_if_it_validates_better(monkeypatch, scores, best, share):
    pair = random_pair(VOCABULARIES)
    after = {name: value.clone() for name, value in pair.state_dict().items()}
    before = {name: torch.zeros_like(value) for name, value in after.items()}
    found = iter(scores)
    monkeypatch.setattr(validation, "evaluate", lambda *_: {"en": next(found)})
    assert validation.mix(pair, before, Epoch(1, 0.1, {"en": 0.5}, True), axes(6)).mrr == best
    for name, value in pair.state_dict().items():
        torch.testing.assert_close(value, share * after[name])


def test_eyes_learn_at_their_own_rate():
    eyes = torch.nn.Sequential(torch.nn.Linear(6, 6))
    learner = trainer(options(epochs=1, backbone_lr=0.0), eyes=eyes)
    start = eyes[0].weight.detach().clone()
    list(learner.fit())
    assert torch.equal(eyes[0].weight, start)
    learner = trainer(options(epochs=1, backbone_lr=1e-3), eyes=eyes)
    list(learner.fit())
    assert not torch.equal(eyes[0].weight, start)


def test_steps_are_counted_by_epoch():
    told = []
    learner = trainer(options(epochs=2))  # 48 photos in batches of 16
    list(learner.fit(lambda name: lambda done, of: told.append((name, done, of))))
    assert told == [(f"epoch {epoch}", step, 3) for epoch in (1, 2) for step in (1, 2, 3)]


class TestKnownText:
    def test_gives_the_rows_that_were_encoded_before(self):
        pair = random_pair(VOCABULARIES).eval()
        splits = [axes(4).captions, axes(3, seed=1).captions]
        table, rows = known(pair.text, splits)
        for split, one in zip(splits, rows, strict=True):
            again = table(all_of(one["en"]), "en")
            torch.testing.assert_close(again, pair.text(all_of(split["en"]), "en"))

    def test_a_split_without_captions_of_a_language_adds_nothing(self):
        pair = random_pair(VOCABULARIES)
        table, rows = known(pair.text, [axes(4).captions, {"en": captions([], [])}])
        assert isinstance(table, FrozenText)
        assert len(table.tables["en"]) == 8
        assert len(rows[1]["en"].image_rows) == 0


def all_of(told):
    from capsearch.encoders.training.nn.dual_encoder import batch_of

    return batch_of(told, np.arange(len(told.image_rows)))
