"""Calibration on validation: hubness penalties, weights and floors; and the query bank."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import (  # noqa: E402
    FEATURES,
    SMALL,
    axes,
    captions,
    options,
    random_model,
    vocabulary,
)

from capsearch.encoders.calibrate import vectors as banks  # noqa: E402
from capsearch.encoders.calibrate import vectors as calibration  # noqa: E402
from capsearch.encoders.calibrate.vectors import cm_mrr  # noqa: E402
from capsearch.encoders.models.hubness import NO_PENALTY, HubnessPenalty, QueryBank, bank_similarity  # noqa: E402
from capsearch.encoders.models.text import (  # noqa: E402
    DEFAULT_CLM_WEIGHT,
    caption_vectors,
)
from capsearch.encoders.train import prune as training_banks  # noqa: E402
from capsearch.encoders.train.dual_encoder import TrainingSet, encode, project  # noqa: E402
from capsearch.encoders.train.prune import (  # noqa: E402
    build_query_bank,
    calibrate,
)

BANK = QueryBank(
    np.eye(3, 8, dtype=np.float32),
    np.eye(3, 512, dtype=np.float32),
    np.log(np.full(3, 1 / 3, np.float32)),
)


class TestCalibration:
    def two_languages(self, sentence_is_right):
        """Four images; en and zh sentence vectors agree for each image, or are unrelated."""
        by_language = {lang: captions(range(4), [[0]] * 4, seed=1) for lang in ("en", "zh")}
        if not sentence_is_right:
            by_language["zh"] = captions(range(4), [[0]] * 4, seed=2)
        return TrainingSet(np.eye(4, FEATURES, dtype=np.float32)[None], by_language)

    @pytest.fixture
    def model(self):
        tokens_only = options(config=replace(SMALL, inputs=("bow", "word2vec", "gru")))
        return random_model({name: vocabulary(name) for name in ("en", "zh")}, tokens_only)

    def test_sentence_vectors_that_find_every_image_get_weight(self, model):
        # All captions have the same token; only their sentence vectors distinguish the images.
        found = calibrate(model, BANK, self.two_languages(sentence_is_right=True))
        assert found.sentence_weight > 0
        assert found.clm_weights["en"] > 0
        assert found.clm_weights["zh"] > 0

    def test_the_floor_is_the_mean_score_of_unmatched_pairs(self, model, monkeypatch):
        trial = calibration.Trial(
            np.array([[0.9, 0.1], [0.3, 0.8]], np.float32),
            np.zeros((2, 2), np.float32),
            np.array([0, 1]),
            np.array([0, 1]),
        )
        assert calibration._floor([trial]) == pytest.approx((0.1 + 0.3) / 2)
        assert calibration._floor([]) == 0.0

    def test_the_first_caption_of_an_image_is_its_document(self):
        rows = np.array([3, 1, 3])
        side = calibration.CaptionVectors.of(rows, np.zeros((3, 8)), np.zeros((3, 512)))
        assert side.first_rows() == {3: 0, 1: 1}

    def test_one_language_alone_gets_the_default_weight(self, model):
        found = calibrate(model, BANK, axes(6))
        assert found.clm_weights == {"en": DEFAULT_CLM_WEIGHT}
        assert found.cl_floors == {"en": 0.0}

    def test_a_language_without_validation_captions_gets_the_default_weight(self, model):
        by_language = {**axes(6).captions, "zh": captions([], [])}
        found = calibrate(model, BANK, TrainingSet(axes(6).inputs, by_language))
        assert found.clm_weights == {"en": DEFAULT_CLM_WEIGHT, "zh": DEFAULT_CLM_WEIGHT}


class TestHubnessPenalties:
    """Image 0 is the answer to one query and, as a hub, similar to all of them."""

    QUERIES = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], np.float32)
    IMAGES = np.array([[0.6, 0.57, 0.56, 0], [0, 0.5, 0, 0.87], [0, 0, 0.5, 0.87]], np.float32)
    EVEN = np.log(np.full(3, 1 / 3, np.float32))

    def mrr(self, penalties):
        scores = self.QUERIES @ self.IMAGES.T - penalties[""]
        return cm_mrr(scores, np.arange(3))

    def similarities(self, inverse_temperature):
        return {"": bank_similarity(self.IMAGES, self.QUERIES, self.EVEN, inverse_temperature)}

    def test_a_penalty_on_the_hub_lets_the_other_images_be_found(self):
        assert self.mrr({"": np.zeros(3)}) < 1
        penalty, values = calibration._best_penalty(self.similarities, self.mrr)
        assert self.mrr(values) == 1
        assert penalty.weight > 0
        similarity = self.similarities(penalty.inverse_temperature)[""]
        np.testing.assert_allclose(values[""], penalty.at(similarity))
        assert penalty.mean == pytest.approx(similarity.mean(), abs=1e-4)
        assert penalty.floor == pytest.approx(np.quantile(similarity, 0.1), abs=1e-4)

    def test_below_the_floor_the_penalty_does_not_fall_further(self):
        penalty = HubnessPenalty(weight=0.5, inverse_temperature=20.0, mean=0.3, floor=0.2)
        values = penalty.at(np.array([0.4, 0.3, 0.2, 0.1, -0.5], np.float32))
        np.testing.assert_allclose(values, [0.05, 0.0, -0.05, -0.05, -0.05], atol=1e-6)

    def test_a_gain_that_may_be_chance_gives_no_penalty(self):
        penalty, values = calibration._best_penalty(
            self.similarities,
            lambda penalties: 0.5 + 0.9 * calibration.PLATEAU * bool(penalties[""].any()),
        )
        assert penalty == NO_PENALTY
        assert not values[""].any()

    def test_scores_and_floors_include_the_penalties(self, monkeypatch):
        model = random_model({language: vocabulary(language) for language in ("en", "zh")})
        data = axes(12, languages=("en", "zh"))
        penalty = HubnessPenalty(5.0, 20.0, 0.0)
        monkeypatch.setattr(
            calibration,
            "_best_penalty",
            lambda similarities, mrr: (
                penalty,
                {name: penalty.at(one) for name, one in similarities(20.0).items()},
            ),
        )
        found = calibrate(model, BANK, data)
        assert found.hubness == {"image": penalty, "caption": penalty}
        images, english = project(model, data), data.captions["en"]
        queries = encode(model, english, "en")
        penalties = penalty.at(bank_similarity(images, BANK.visual, BANK.log_shares, 20.0))
        assert found.served_mrr["en"] == pytest.approx(
            cm_mrr(queries @ images.T - penalties, english.image_rows), abs=1e-4
        )
        # English captions are queries; the first of each image's two Chinese ones is the document.
        weight, chinese = found.sentence_weight, data.captions["zh"]
        query, document = (
            caption_vectors(encode(model, rows, name), rows.sentence.astype(np.float32), weight)
            for name, rows in (("en", english), ("zh", chinese))
        )
        document = document[::2]
        centres = caption_vectors(BANK.visual, BANK.sentence, weight)
        hubness = bank_similarity(document, centres, BANK.log_shares, 20.0)
        cl = query @ document.T - penalty.at(hubness)
        unmatched = english.image_rows[:, None] != np.arange(12)[None]
        assert found.cl_floors["en"] == pytest.approx(cl[unmatched].mean(), abs=1e-3)


class TestBankSimilarity:
    def test_with_one_centre_it_is_the_cosine(self):
        one = np.array([[1.0, 0.0]], np.float32)
        vectors = np.array([[0.6, 0.8], [-1.0, 0.0]], np.float32)
        shares = np.zeros(1, np.float32)
        np.testing.assert_allclose(
            bank_similarity(vectors, one, shares, 20.0), [0.6, -1.0], atol=1e-6
        )

    def test_the_inverse_temperature_moves_it_from_the_mean_to_the_maximum(self):
        centres = np.array([[1.0, 0.0], [0.0, 1.0]], np.float32)
        vector, halves = np.array([[0.8, 0.2]], np.float32), np.log(np.full(2, 0.5, np.float32))
        assert bank_similarity(vector, centres, halves, 0.01) == pytest.approx(0.5, abs=0.01)
        assert bank_similarity(vector, centres, halves, 1e4) == pytest.approx(0.8, abs=0.01)

    def test_large_exponents_do_not_overflow(self):
        vectors = np.eye(2, dtype=np.float32)
        found = bank_similarity(vectors, vectors, np.zeros(2, np.float32), 1e4)
        np.testing.assert_allclose(found, 1.0, atol=1e-3)


class TestQueryBank:
    @pytest.fixture
    def model(self):
        return random_model({language: vocabulary(language) for language in ("en", "zh")})

    def test_few_captions_are_all_in_it(self, model):
        by_language = axes(6, languages=("en", "zh")).captions
        bank = build_query_bank(model, by_language, seed=1)
        assert bank.visual.shape == (24, 8)
        np.testing.assert_allclose(np.exp(bank.log_shares), 1 / 24, rtol=1e-5)
        vectors = np.concatenate([encode(model, by_language[name], name) for name in by_language])
        np.testing.assert_allclose(np.sort(bank.visual, 0), np.sort(vectors, 0), atol=1e-5)

    def test_many_captions_become_centres_weighted_by_cluster_size(self, model, monkeypatch):
        monkeypatch.setattr(banks, "CENTRES", 6)  # as many as there are different captions
        by_language = axes(60).captions
        bank = build_query_bank(model, by_language, seed=1)
        assert len(bank.visual) == len(bank.sentence) <= 6
        assert np.exp(bank.log_shares).sum() == pytest.approx(1.0, abs=1e-4)
        every = encode(model, by_language["en"], "en")
        mean = np.exp(bank.log_shares) @ bank.visual
        np.testing.assert_allclose(mean, every.mean(axis=0), atol=1e-4)

    def test_no_language_dominates_the_bank(self, model, monkeypatch):
        monkeypatch.setattr(training_banks, "CAPTIONS_PER_LANGUAGE", 4)
        by_language = {
            "en": axes(60).captions["en"],
            "zh": axes(6).captions["en"],
            "ja": captions([], []),
        }
        assert len(build_query_bank(model, by_language, seed=1).visual) == 8

    def test_equal_seeds_give_equal_banks(self, model, monkeypatch):
        monkeypatch.setattr(banks, "CENTRES", 6)
        one, again = (build_query_bank(model, axes(6).captions, seed=1) for _ in range(2))
        np.testing.assert_array_equal(one.visual, again.visual)
