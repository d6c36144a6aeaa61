"""What validation decides, and the bank that hubs pay to."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import FEATURES, axes, captions, random_pair, vocabulary  # noqa: E402

from capsearch.encoders.text import caption_vectors  # noqa: E402
from capsearch.encoders.tolls import FREE, Bank, Toll, nearness  # noqa: E402
from capsearch.encoders.training import bank as banks  # noqa: E402
from capsearch.encoders.training import calibrate as calibration  # noqa: E402
from capsearch.encoders.training.bank import bank_of  # noqa: E402
from capsearch.encoders.training.calibrate import DEFAULT_WEIGHT, calibrate  # noqa: E402
from capsearch.encoders.training.pair import TrainingSet, encode, project  # noqa: E402
from capsearch.encoders.training.validation import cm_mrr  # noqa: E402

BANK = Bank(
    np.eye(3, 8, dtype=np.float32),
    np.eye(3, 512, dtype=np.float32),
    np.log(np.full(3, 1 / 3, np.float32)),
)


class TestCalibration:
    def two_languages(self, sentence_is_right):
        """Four photos; en and zh sentence vectors agree photo by photo, or are strangers."""
        told = {lang: captions(range(4), [[0]] * 4, seed=1) for lang in ("en", "zh")}
        if not sentence_is_right:
            told["zh"] = captions(range(4), [[0]] * 4, seed=2)
        return TrainingSet(np.eye(4, FEATURES, dtype=np.float32)[None], told)

    @pytest.fixture
    def pair(self):
        return random_pair({language: vocabulary(language) for language in ("en", "zh")})

    def test_sentence_vectors_that_find_every_photo_take_the_share(self, pair):
        # All captions have the same word; only their sentence vectors tell the photos apart.
        found = calibrate(pair, BANK, self.two_languages(sentence_is_right=True))
        assert found.sentence_share > 0
        assert found.clm_weights["en"] > 0
        assert found.clm_weights["zh"] > 0

    def test_the_floor_is_the_mean_score_of_strangers(self, pair, monkeypatch):
        trial = calibration.Trial(
            np.array([[0.9, 0.1], [0.3, 0.8]], np.float32),
            np.zeros((2, 2), np.float32),
            np.array([0, 1]),
            np.array([0, 1]),
        )
        assert calibration._floor([trial]) == pytest.approx((0.1 + 0.3) / 2)
        assert calibration._floor([]) == 0.0

    def test_the_first_caption_of_a_photo_describes_it(self):
        told = captions([3, 1, 3], [[0]] * 3)
        side = calibration._Side(told, np.zeros((3, 8)), np.zeros((3, 512)), np.zeros(3))
        assert side.firsts() == {3: 0, 1: 1}

    def test_one_language_alone_gets_the_default_weight(self, pair):
        found = calibrate(pair, BANK, axes(6))
        assert found.clm_weights == {"en": DEFAULT_WEIGHT}
        assert found.cl_floors == {"en": 0.0}

    def test_a_language_without_validation_captions_too(self, pair):
        told = {**axes(6).captions, "zh": captions([], [])}
        found = calibrate(pair, BANK, TrainingSet(axes(6).inputs, told))
        assert found.clm_weights == {"en": DEFAULT_WEIGHT, "zh": DEFAULT_WEIGHT}


class TestTolls:
    """Photo 0 is right for one question and, as a hub, nearly right for all."""

    QUESTIONS = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], np.float32)
    PHOTOS = np.array([[0.6, 0.57, 0.56, 0], [0, 0.5, 0, 0.87], [0, 0, 0.5, 0.87]], np.float32)
    EVEN = np.log(np.full(3, 1 / 3, np.float32))

    def mrr(self, tolls):
        scores = self.QUESTIONS @ self.PHOTOS.T - tolls[""]
        return cm_mrr(scores, np.arange(3))

    def near(self, sharpness):
        return {"": nearness(self.PHOTOS, self.QUESTIONS, self.EVEN, sharpness)}

    def test_a_hub_pays_so_that_the_others_are_found(self):
        assert self.mrr({"": np.zeros(3)}) < 1
        toll, paid = calibration._best_toll(self.near, self.mrr)
        assert self.mrr(paid) == 1
        assert toll.share > 0
        np.testing.assert_allclose(paid[""], toll.at(self.near(toll.sharpness)[""]))
        near = self.near(toll.sharpness)[""]
        assert toll.usual == pytest.approx(near.mean(), abs=1e-4)
        assert toll.least == pytest.approx(np.quantile(near, 0.1), abs=1e-4)

    def test_what_lies_far_from_every_question_gets_no_more_than_the_least(self):
        toll = Toll(share=0.5, sharpness=20.0, usual=0.3, least=0.2)
        paid = toll.at(np.array([0.4, 0.3, 0.2, 0.1, -0.5], np.float32))
        np.testing.assert_allclose(paid, [0.05, 0.0, -0.05, -0.05, -0.05], atol=1e-6)

    def test_nobody_pays_for_a_gain_that_may_be_chance(self):
        toll, paid = calibration._best_toll(
            self.near, lambda tolls: 0.5 + 0.9 * calibration.PLATEAU * bool(tolls[""].any())
        )
        assert toll == FREE
        assert not paid[""].any()

    def test_scores_and_floors_are_those_of_a_collection_that_pays(self, monkeypatch):
        pair = random_pair({language: vocabulary(language) for language in ("en", "zh")})
        photos = axes(12, languages=("en", "zh"))
        dear = Toll(5.0, 20.0, 0.0)
        monkeypatch.setattr(
            calibration,
            "_best_toll",
            lambda near, mrr: (dear, {name: dear.at(one) for name, one in near(20.0).items()}),
        )
        found = calibrate(pair, BANK, photos)
        assert found.tolls == {"image": dear, "caption": dear}
        images, told = project(pair, photos), photos.captions["en"]
        asked = encode(pair, told, "en")
        paid = dear.at(nearness(images, BANK.visual, BANK.log_shares, 20.0))
        assert found.served_mrr["en"] == pytest.approx(
            cm_mrr(asked @ images.T - paid, told.photos), abs=1e-4
        )
        # English asks, the first of each photo's two Chinese captions answers, and pays.
        share, other = found.sentence_share, photos.captions["zh"]
        question, answer = (
            caption_vectors(encode(pair, rows, name), rows.sentence.astype(np.float32), share)
            for name, rows in (("en", told), ("zh", other))
        )
        answer = answer[::2]
        centres = caption_vectors(BANK.visual, BANK.sentence, share)
        cl = question @ answer.T - dear.at(nearness(answer, centres, BANK.log_shares, 20.0))
        strangers = told.photos[:, None] != np.arange(12)[None]
        assert found.cl_floors["en"] == pytest.approx(cl[strangers].mean(), abs=1e-3)


class TestNearness:
    def test_it_is_the_cosine_where_all_questions_are_one(self):
        one = np.array([[1.0, 0.0]], np.float32)
        vectors = np.array([[0.6, 0.8], [-1.0, 0.0]], np.float32)
        shares = np.zeros(1, np.float32)
        np.testing.assert_allclose(nearness(vectors, one, shares, 20.0), [0.6, -1.0], atol=1e-6)

    def test_sharpness_goes_from_the_mean_to_the_nearest(self):
        centres = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
        vector, halves = np.array([[0.8, 0.2]], np.float32), np.log(np.full(2, 0.5, np.float32))
        assert nearness(vector, centres, halves, 0.01) == pytest.approx(0.5, abs=0.01)
        assert nearness(vector, centres, halves, 1e4) == pytest.approx(0.8, abs=0.01)

    def test_large_exponents_do_not_overflow(self):
        vectors = np.eye(2, dtype=np.float32)
        found = nearness(vectors, vectors, np.zeros(2, np.float32), 1e4)
        np.testing.assert_allclose(found, 1.0, atol=1e-3)


class TestBank:
    @pytest.fixture
    def pair(self):
        return random_pair({language: vocabulary(language) for language in ("en", "zh")})

    def test_a_few_captions_are_all_in_it(self, pair):
        told = axes(6, languages=("en", "zh")).captions
        bank = bank_of(pair, told, seed=1)
        assert bank.visual.shape == (24, 8)
        np.testing.assert_allclose(np.exp(bank.log_shares), 1 / 24, rtol=1e-5)
        vectors = np.concatenate([encode(pair, told[name], name) for name in told])
        np.testing.assert_allclose(np.sort(bank.visual, 0), np.sort(vectors, 0), atol=1e-5)

    def test_many_become_centres_that_count_as_many_as_they_stand_for(self, pair, monkeypatch):
        monkeypatch.setattr(banks, "CENTRES", 6)  # as many as there are different captions
        told = axes(60).captions
        bank = bank_of(pair, told, seed=1)
        assert len(bank.visual) == len(bank.sentence) <= 6
        assert np.exp(bank.log_shares).sum() == pytest.approx(1.0, abs=1e-4)
        every = encode(pair, told["en"], "en")
        mean = np.exp(bank.log_shares) @ bank.visual
        np.testing.assert_allclose(mean, every.mean(axis=0), atol=1e-4)

    def test_no_language_outweighs_another(self, pair, monkeypatch):
        monkeypatch.setattr(banks, "CAPTIONS_EACH", 4)
        told = {"en": axes(60).captions["en"], "zh": axes(6).captions["en"], "ja": captions([], [])}
        assert len(bank_of(pair, told, seed=1).visual) == 8

    def test_equal_seeds_give_equal_banks(self, pair, monkeypatch):
        monkeypatch.setattr(banks, "CENTRES", 6)
        one, again = (bank_of(pair, axes(6).captions, seed=1) for _ in range(2))
        np.testing.assert_array_equal(one.visual, again.visual)
