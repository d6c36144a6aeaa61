"""Self-critical training of captioners: reward, samples, and what it makes of a captioner."""

from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pycocoevalcap")

from pycocoevalcap.cider.cider import Cider
from test_caption_training import LANGUAGES, trainer

from capsearch.encoders.models.caption_search import END, Beam
from capsearch.encoders.train.caption_metrics import CiderReward
from capsearch.encoders.train.caption_trainer import (
    CaptionSet,
    SelfCriticalTrainer,
    _drawn,
    ciders,
    sample,
)
from capsearch.engine.errors import TrainingProblem

REFERENCES = [
    [[1, 2, 3, 4, 5], [1, 2, 6]],
    [[7, 8, 9, 2, 3], [7, 8]],
    [[10, 2, 11, 12]],
]


def words(sentence):
    return " ".join(f"w{one}" for one in sentence)


class TestReward:
    @pytest.mark.parametrize("written", [[1, 2, 3], [7, 8, 9, 2, 3], [2, 2, 2], [4], [13, 14]])
    def test_it_is_pycocoevalcaps_score_where_the_references_are_the_same(self, written):
        found = CiderReward(REFERENCES)
        mine = [found.scores(image, [written])[0] for image in range(len(REFERENCES))]
        wanted = {image: list(map(words, one)) for image, one in enumerate(REFERENCES)}
        _, theirs = Cider().compute_score(wanted, {image: [words(written)] for image in wanted})
        assert mine == pytest.approx(theirs.tolist())

    def test_a_repeated_word_earns_nothing(self):
        once, twice = CiderReward(REFERENCES).scores(0, [[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 5]])
        assert once > twice

    def test_images_without_references_do_not_count_as_documents(self):
        some = CiderReward([*REFERENCES, [], []])
        assert some.scores(0, [[1, 2]]) == pytest.approx(
            CiderReward(REFERENCES).scores(0, [[1, 2]])
        )


class TestSamples:
    def test_words_are_drawn_with_their_probabilities(self):
        shares = np.array([0.7, 0.2, 0.0, 0.1], np.float32)
        with np.errstate(divide="ignore"):
            rows = np.broadcast_to(np.log(shares), (50, 100, 4))
        drawn = _drawn(rows, np.random.default_rng(0))
        assert np.bincount(drawn.ravel(), minlength=4) / 5000 == pytest.approx(shares, abs=0.02)

    def test_captions_end_with_the_end_or_are_cut(self):
        one = trainer()
        features = one.train.images.at(np.arange(3))
        served = one.model.served()
        found = sample(served, features, "zh", 4, max_words=5, rng=np.random.default_rng(0))
        assert [len(captions) for captions in found] == [4, 4, 4]
        for caption in (caption for captions in found for caption in captions):
            assert END not in caption[:-1]
            assert caption[-1] == END or len(caption) == 6


def self_critical(one, epochs):
    options = replace(one.options, epochs=epochs, lr=3e-3)
    return SelfCriticalTrainer(one.model, one.train, one.validation, options)


def test_rewarded_captions_score_higher_than_those_of_cross_entropy_alone():
    short = trainer(epochs=4)
    list(short.fit())
    short.model.load_state_dict(short.averaged.module.state_dict())
    before = ciders(short.model.served(), short.validation, Beam(1, 8))
    better = self_critical(short, epochs=12)
    list(better.fit())
    after = ciders(better.averaged.module.served(), short.validation, Beam(1, 8))
    assert sum(after.values()) > sum(before.values()) + 0.5
    assert set(after) == set(LANGUAGES)


def test_the_loss_is_zero_where_all_samples_are_worth_the_same():
    one = self_critical(trainer(), epochs=1)
    for reward in one._rewards.values():
        reward.scores = lambda image, sentences: np.ones(len(sentences))
    assert one.loss(np.arange(4), np.random.default_rng(0)).item() == pytest.approx(0.0, abs=1e-6)


def test_a_batch_without_captions_is_an_error():
    one = self_critical(trainer(), epochs=1)
    one.train = CaptionSet(one.train.images, {})
    with pytest.raises(TrainingProblem, match="a batch without captions"):
        one.loss(np.arange(2), np.random.default_rng(0))
