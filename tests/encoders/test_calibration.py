"""Calibration: regressions that recover what made the data, and scenarios that are fair."""

from __future__ import annotations

import numpy as np
import pytest

from capsearch.encoders.calibrate import fit, regression, scenarios
from capsearch.encoders.calibrate.collection import EncodedCaptions, EncodedImages
from capsearch.encoders.calibrate.run import names_of
from capsearch.encoders.models import calibration
from capsearch.encoders.models.calibration import DocumentBank, StoredEvidence
from capsearch.engine.errors import DataProblem, UnknownModel
from capsearch.engine.evidence import LengthDependent
from capsearch.engine.fakes import FakeTextEncoder
from capsearch.engine.vectors import as_document, as_query, unit

WIDTH = 24
RANDOM = np.random.default_rng(0)


def noisy(vectors: np.ndarray, noise: float) -> np.ndarray:
    spread = RANDOM.standard_normal(vectors.shape) * noise / np.sqrt(vectors.shape[1])
    return unit(vectors + spread)


def documents(vectors: np.ndarray) -> np.ndarray:
    return as_document(vectors, np.zeros(len(vectors), np.float32))


def captions(images: np.ndarray, noise: float, count: int, name: str) -> EncodedCaptions:
    rows = np.repeat(np.arange(len(images)), count)
    vectors = noisy(images[rows], noise)
    return EncodedCaptions(
        tuple(f"{name} {at}" for at in range(len(rows))),
        as_query(vectors),
        as_query(vectors),
        documents(vectors),
        rows,
    )


@pytest.fixture(scope="module")
def data() -> EncodedImages:
    """Captions of an image lie nearer to each other than to their image."""
    images = unit(RANDOM.standard_normal((400, WIDTH)))
    meanings = noisy(images, 1.5)
    objects = tuple(("even",) if row % 2 == 0 else ("odd",) for row in range(len(images)))
    return EncodedImages(
        documents(images),
        {"en": captions(meanings, 0.8, 2, "en"), "zh": captions(meanings, 0.8, 1, "zh")},
        objects,
    )


@pytest.fixture(scope="module")
def bank() -> DocumentBank:
    vectors = documents(unit(RANDOM.standard_normal((100, WIDTH))))
    return DocumentBank(vectors, vectors)


class TestLogistic:
    def test_the_coefficients_that_made_the_labels_are_found(self):
        features = RANDOM.standard_normal((20_000, 2))
        offset = RANDOM.standard_normal(20_000)
        odds = -1.0 + 2.0 * features[:, 0] - 0.5 * features[:, 1] + offset
        labels = (RANDOM.random(20_000) < 1 / (1 + np.exp(-odds))).astype(float)
        found = regression.fit(features, labels, np.ones(20_000), offset)
        assert found.intercept == pytest.approx(-1.0, abs=0.1)
        assert found.coefficients == pytest.approx([2.0, -0.5], abs=0.1)

    def test_a_weight_counts_as_so_many_examples(self):
        features, labels = np.array([[0.0], [1.0], [1.0], [0.0]]), np.array([0.0, 1.0, 0.0, 1.0])
        weights = np.array([3.0, 3.0, 1.0, 1.0])
        weighted = regression.fit(features, labels, weights, np.zeros(4))
        repeated = [np.repeat(one, weights.astype(int), axis=0) for one in (features, labels)]
        plain = regression.fit(*repeated, np.ones(8), np.zeros(8))
        assert weighted.coefficients == pytest.approx(plain.coefficients, rel=0.05)

    def test_one_label_alone_cannot_be_fitted(self):
        with pytest.raises(DataProblem, match="too little to calibrate with"):
            regression.fit(np.ones((3, 1)), np.ones(3), np.ones(3), np.zeros(3))

    def test_the_calibration_error_is_the_gap_between_promise_and_truth(self):
        right = np.array([1.0, 1.0, 1.0, 0.0])
        assert regression.expected_calibration_error(np.full(4, 0.75), right) == pytest.approx(0.0)
        assert regression.expected_calibration_error(np.full(4, 0.25), right) == pytest.approx(0.5)
        assert regression.expected_calibration_error(np.empty(0), np.empty(0)) == 0.0


class TestScenarios:
    def test_a_share_of_the_images_is_captioned_whether_relevant_or_not(self, data, bank):
        random = np.random.default_rng(1)
        one = scenarios.share_of(data, "en", "zh", bank, 0.5, 1, random)
        captioned = ~np.isnan(one.caption[0])
        assert 0.4 < captioned.mean() < 0.6
        assert 0.4 < captioned[one.relevant.argmax(axis=1)].mean() < 0.6
        assert (one.relevant.sum(axis=1) == 1).all()

    def test_no_query_finds_itself_among_captions_of_its_language(self, data, bank):
        found = list(scenarios.sentences(data, "en", bank, np.random.default_rng(1)))
        same = [one.caption for one in found if one.caption_language == "en"]
        assert same and all(np.nan_to_num(one, nan=-1).max() < 0.9999 for one in same)

    def test_all_images_with_a_label_are_relevant_to_its_name(self, data):
        found = data.relevance(["odd", "even"], np.arange(4))
        assert found.tolist() == [[False, True, False, True], [True, False, True, False]]


@pytest.fixture(scope="module")
def fitted(data: EncodedImages, bank: DocumentBank) -> dict[str, LengthDependent]:
    return fit.fit_evidence(FakeTextEncoder(), data, bank, {})


class TestFit:
    def test_more_similar_is_more_relevant(self, fitted):
        kind = fitted["en"].long.kinds["caption"]
        assert kind.weights["image"] > 0 and kind.weights["caption"] > 0

    def test_one_right_answer_in_a_collection_of_any_size_lowers_the_prior_with_it(self, fitted):
        assert fitted["en"].long.size_exponent > 0.5

    def test_probabilities_are_calibrated(self, data, bank, fitted):
        one = scenarios.share_of(data, "en", "zh", bank, 0.5, 1, np.random.default_rng(3))
        values = np.stack(
            [one.probabilities(row, fitted["en"].long) for row in range(len(one.image))]
        )
        error = regression.expected_calibration_error(
            values.ravel(), one.relevant.ravel().astype(float)
        )
        assert error < 0.02
        assert values.sum(axis=1).mean() == pytest.approx(1.0, abs=0.3)  # one right answer each

    def test_captions_help_and_missing_ones_do_not_hurt(self, data, bank, fitted):
        def mrr(share: float) -> float:
            one = scenarios.share_of(data, "en", "zh", bank, share, 1, np.random.default_rng(3))
            ranks = []
            for row in range(len(one.image)):
                values = one.probabilities(row, fitted["en"].long)
                ranks.append(1 / (values >= values[one.relevant[row]].max()).sum())
            return float(np.mean(ranks))

        assert mrr(0.0) - 0.01 <= mrr(0.5) <= mrr(1.0)

    def test_what_was_fitted_is_read_back_as_it_was(self, tmp_path, bank, fitted):
        calibration.save(tmp_path, fitted, bank)
        stored = StoredEvidence(tmp_path)
        assert stored.model("zh") == fitted["zh"]
        assert stored.model("ja") is None
        np.testing.assert_allclose(stored.bank.images, bank.images, atol=0.01)

    def test_a_newer_file_is_refused(self, tmp_path):
        (tmp_path / calibration.FILE).write_text('{"schema": 99}')
        with pytest.raises(UnknownModel, match="newer capsearch"):
            StoredEvidence(tmp_path).model("en")

    def test_without_captions_there_is_no_bank(self):
        with pytest.raises(DataProblem, match="images with captions"):
            fit.document_bank(EncodedImages(np.zeros((0, 3), np.float32), {}, ()))


def test_labels_of_objects_mean_objects():
    found = names_of(["kite", "mouse", "no such thing"])
    assert (found["zh"]["kite"], found["ja"]["mouse"]) == ("风筝", "マウス")
    assert found["en"]["no such thing"] == "no such thing"
    assert "no such thing" not in found["ja"]
