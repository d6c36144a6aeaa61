"""What validation decides, and the bank that hubs pay to."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import FEATURES, axes, captions, random_pair, vocabulary  # noqa: E402

from capsearch.encoders.hubness import (  # noqa: E402
    NO_PENALTY,
    HubnessPenalty,
    QueryBank,
    bank_similarity,
)
from capsearch.encoders.text import caption_vectors  # noqa: E402
from capsearch.encoders.training.fit import calibration  # noqa: E402
from capsearch.encoders.training.fit import query_bank as banks  # noqa: E402
from capsearch.encoders.training.fit.calibration import DEFAULT_CLM_WEIGHT, calibrate  # noqa: E402
from capsearch.encoders.training.fit.query_bank import build_query_bank  # noqa: E402
from capsearch.encoders.training.fit.validation import cm_mrr  # noqa: E402
from capsearch.encoders.training.nn.dual_encoder import TrainingSet, encode, project  # noqa: E402

BANK = QueryBank(
    np.eye(3, 8, dtype=np.float32),
    np.eye(3, 512, dtype=np.float32),
    np.log(np.full(3, 1 / 3, np.float32)),
)


class TestCalibration:
    def two_languages(self, sentence_is_right):
        """Four photos; en and zh sentence vectors agree photo by photo, or are unmatched."""
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
        assert found.sentence_weight > 0
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
        side = calibration._EncodedCaptions(told, np.zeros((3, 8)), np.zeros((3, 512)), np.zeros(3))
        assert side.first_rows() == {3: 0, 1: 1}

    def test_one_language_alone_gets_the_default_weight(self, pair):
        found = calibrate(pair, BANK, axes(6))
        assert found.clm_weights == {"en": DEFAULT_CLM_WEIGHT}
        assert found.cl_floors == {"en": 0.0}

    def test_a_language_without_validation_captions_too(self, pair):
        told = {**axes(6).captions, "zh": captions([], [])}
        found = calibrate(pair, BANK, TrainingSet(axes(6).inputs, told))
        assert found.clm_weights == {"en": DEFAULT_CLM_WEIGHT, "zh": DEFAULT_CLM_WEIGHT}


class TestTolls:
    """CaptionedImage 0 is right for one question and, as a hub, nearly right for all."""

    QUESTIONS = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], np.float32)
    PHOTOS = np.array([[0.6, 0.57, 0.56, 0], [0, 0.5, 0, 0.87], [0, 0, 0.5, 0.87]], np.float32)
    EVEN = np.log(np.full(3, 1 / 3, np.float32))

    def mrr(self, penalties):
        scores = self.QUESTIONS @ self.PHOTOS.T - penalties[""]
        return cm_mrr(scores, np.arange(3))

    def near(self, inverse_temperature):
        return {"": bank_similarity(self.PHOTOS, self.QUESTIONS, self.EVEN, inverse_temperature)}

    def test_a_hub_pays_so_that_the_others_are_found(self):
        assert self.mrr({"": np.zeros(3)}) < 1
        penalty, paid = calibration._best_penalty(self.near, self.mrr)
        assert self.mrr(paid) == 1
        assert penalty.weight > 0
        np.testing.assert_allclose(paid[""], penalty.at(self.near(penalty.inverse_temperature)[""]))
        near = self.near(penalty.inverse_temperature)[""]
        assert penalty.mean == pytest.approx(near.mean(), abs=1e-4)
        assert penalty.floor == pytest.approx(np.quantile(near, 0.1), abs=1e-4)

    def test_what_lies_far_from_every_question_gets_no_more_than_the_least(self):
        penalty = HubnessPenalty(weight=0.5, inverse_temperature=20.0, mean=0.3, floor=0.2)
        paid = penalty.at(np.array([0.4, 0.3, 0.2, 0.1, -0.5], np.float32))
        np.testing.assert_allclose(paid, [0.05, 0.0, -0.05, -0.05, -0.05], atol=1e-6)

    def test_nobody_pays_for_a_gain_that_may_be_chance(self):
        penalty, paid = calibration._best_penalty(
            self.near, lambda penalties: 0.5 + 0.9 * calibration.PLATEAU * bool(penalties[""].any())
        )
        assert penalty == NO_PENALTY
        assert not paid[""].any()

    def test_scores_and_floors_are_those_of_a_collection_that_pays(self, monkeypatch):
        pair = random_pair({language: vocabulary(language) for language in ("en", "zh")})
        photos = axes(12, languages=("en", "zh"))
        dear = HubnessPenalty(5.0, 20.0, 0.0)
        monkeypatch.setattr(
            calibration,
            "_best_penalty",
            lambda near, mrr: (dear, {name: dear.at(one) for name, one in near(20.0).items()}),
        )
        found = calibrate(pair, BANK, photos)
        assert found.hubness == {"image": dear, "caption": dear}
        images, told = project(pair, photos), photos.captions["en"]
        asked = encode(pair, told, "en")
        paid = dear.at(bank_similarity(images, BANK.visual, BANK.log_shares, 20.0))
        assert found.served_mrr["en"] == pytest.approx(
            cm_mrr(asked @ images.T - paid, told.image_rows), abs=1e-4
        )
        # English asks, the first of each photo's two Chinese captions answers, and pays.
        share, other = found.sentence_weight, photos.captions["zh"]
        question, answer = (
            caption_vectors(encode(pair, rows, name), rows.sentence.astype(np.float32), share)
            for name, rows in (("en", told), ("zh", other))
        )
        answer = answer[::2]
        centres = caption_vectors(BANK.visual, BANK.sentence, share)
        cl = question @ answer.T - dear.at(bank_similarity(answer, centres, BANK.log_shares, 20.0))
        unmatched = told.image_rows[:, None] != np.arange(12)[None]
        assert found.cl_floors["en"] == pytest.approx(cl[unmatched].mean(), abs=1e-3)


class TestNearness:
    def test_it_is_the_cosine_where_all_questions_are_one(self):
        one = np.array([[1.0, 0.0]], np.float32)
        vectors = np.array([[0.6, 0.8], [-1.0, 0.0]], np.float32)
        shares = np.zeros(1, np.float32)
        np.testing.assert_allclose(
            bank_similarity(vectors, one, shares, 20.0), [0.6, -1.0], atol=1e-6
        )

    def test_sharpness_goes_from_the_mean_to_the_nearest(self):
        centres = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
        vector, halves = np.array([[0.8, 0.2]], np.float32), np.log(np.full(2, 0.5, np.float32))
        assert bank_similarity(vector, centres, halves, 0.01) == pytest.approx(0.5, abs=0.01)
        assert bank_similarity(vector, centres, halves, 1e4) == pytest.approx(0.8, abs=0.01)

    def test_large_exponents_do_not_overflow(self):
        vectors = np.eye(2, dtype=np.float32)
        found = bank_similarity(vectors, vectors, np.zeros(2, np.float32), 1e4)
        np.testing.assert_allclose(found, 1.0, atol=1e-3)


class TestBank:
    @pytest.fixture
    def pair(self):
        return random_pair({language: vocabulary(language) for language in ("en", "zh")})

    def test_a_few_captions_are_all_in_it(self, pair):
        told = axes(6, languages=("en", "zh")).captions
        bank = build_query_bank(pair, told, seed=1)
        assert bank.visual.shape == (24, 8)
        np.testing.assert_allclose(np.exp(bank.log_shares), 1 / 24, rtol=1e-5)
        vectors = np.concatenate([encode(pair, told[name], name) for name in told])
        np.testing.assert_allclose(np.sort(bank.visual, 0), np.sort(vectors, 0), atol=1e-5)

    def test_many_become_centres_that_count_as_many_as_they_stand_for(self, pair, monkeypatch):
        monkeypatch.setattr(banks, "CENTRES", 6)  # as many as there are different captions
        told = axes(60).captions
        bank = build_query_bank(pair, told, seed=1)
        assert len(bank.visual) == len(bank.sentence) <= 6
        assert np.exp(bank.log_shares).sum() == pytest.approx(1.0, abs=1e-4)
        every = encode(pair, told["en"], "en")
        mean = np.exp(bank.log_shares) @ bank.visual
        np.testing.assert_allclose(mean, every.mean(axis=0), atol=1e-4)

    def test_no_language_outweighs_another(self, pair, monkeypatch):
        monkeypatch.setattr(banks, "CAPTIONS_EACH", 4)
        told = {"en": axes(60).captions["en"], "zh": axes(6).captions["en"], "ja": captions([], [])}
        assert len(build_query_bank(pair, told, seed=1).visual) == 8

    def test_equal_seeds_give_equal_banks(self, pair, monkeypatch):
        monkeypatch.setattr(banks, "CENTRES", 6)
        one, again = (build_query_bank(pair, axes(6).captions, seed=1) for _ in range(2))
        np.testing.assert_array_equal(one.visual, again.visual)
