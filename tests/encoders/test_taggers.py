"""Tag networks, their calibration, and the tagger that serves them in numpy."""

import numpy as np
import pytest

from capsearch.encoders.models import model_folder
from capsearch.encoders.models.tagger import WEIGHTS_FILE, TagName, TagVocabulary, load
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.metrics import precision_recall_f
from capsearch.engine.records import ImageFeatures

pytest.importorskip("torch")

import torch

from capsearch.encoders.train.tags import (
    Platt,
    TagConfig,
    TagNetwork,
    best_threshold,
    fit_platt,
    tag_logits,
    tag_loss,
)
from capsearch.encoders.train.tags_run import _export

CARD = {"name": "toy", "backbone_digest": "abc", "min_confidence": 0.3}
VOCABULARY = TagVocabulary(
    (TagName("cat", "en", "cat"), TagName("quux", "en"), TagName("饼", "zh")),
    {"en": np.array([0, 1]), "zh": np.array([2, 0])},
)


def network(variant="cascade", **more):
    priors = {"zh": torch.full((2,), 0.2), "en": torch.full((2,), 0.5)}
    return TagNetwork(6, priors, TagConfig(variant, hidden=8, **more), seed=1)


def features(count=5):
    return np.random.default_rng(0).normal(size=(count, 6)).astype(np.float32)


def served(model, folder, slope=1.0):
    platt = Platt(np.full(3, slope), np.zeros(3))
    folder.mkdir(exist_ok=True)
    _export(model, VOCABULARY, platt, folder, {**CARD, "semantic": model.semantic})
    return load(folder)


@pytest.mark.parametrize("variant", ["cascade", "multi-task", "mlp"])
def test_numpy_serves_what_torch_trained(variant, tmp_path):
    model = network(variant)
    expected, found = tag_logits(model, features()), served(model, tmp_path).logits(features())
    assert set(found) == {"en", "zh"}
    for language, logits in expected.items():
        np.testing.assert_allclose(found[language], logits, atol=0.02)  # int8 weights


def test_english_scores_are_inputs_of_the_other_languages_of_a_cascade():
    model = network()
    assert model.semantic == 2
    assert model.hidden["zh"].in_features == 6 + 2
    assert model.hidden["en"].in_features == 6
    model(torch.from_numpy(features()))["zh"].sum().backward()
    assert model.hidden["en"].weight.grad is None  # English is no hidden layer of Chinese


def test_a_cascade_needs_english():
    with pytest.raises(TrainingProblem, match="a cascade starts with English"):
        TagNetwork(6, {"zh": torch.ones(2)}, TagConfig(), seed=1)


def test_an_unknown_variant_is_named():
    with pytest.raises(TrainingProblem, match="no variant 'forest'; there is cascade, multi-task"):
        TagConfig("forest")


def test_outputs_start_at_the_frequencies_of_the_tags():
    model = network()
    shares = torch.sigmoid(model.eval()(torch.zeros(1, 6))["zh"]).detach()
    torch.testing.assert_close(shares, torch.full((1, 2), 0.2), atol=0.05, rtol=0)


def test_unknown_labels_do_not_count():
    logits = torch.tensor([[0.0, 9.0], [0.0, -9.0]])
    values, known = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[1.0, 0.0], [0.0, 0.0]])
    assert tag_loss(logits, values, known) == pytest.approx(np.log(2))
    assert tag_loss(logits, values, torch.zeros(2, 2)) == 0.0


def test_a_tag_comes_once_with_its_concept_best_first(tmp_path):
    tagger = served(network(), tmp_path)
    probabilities = tagger.probabilities(features())
    assert probabilities.shape == (5, 3)
    for tags, row in zip(tagger.tag(ImageFeatures(features())), probabilities, strict=True):
        assert [tag.confidence for tag in tags] == sorted(
            (round(float(p), 4) for p in row if p >= 0.3), reverse=True
        )
        assert len({(tag.label, tag.language) for tag in tags}) == len(tags)
    cats = {tag for tags in tagger.tag(ImageFeatures(features())) for tag in tags if tag.concept}
    assert {(tag.label, tag.language, tag.concept) for tag in cats} == {("cat", "en", "cat")}
    assert {tag.source for tag in cats} == {f"model:{tagger.name}"}


def test_a_concept_has_the_mean_log_odds_of_its_outputs():
    logits = {"en": np.array([[2.0, 5.0]], "f"), "zh": np.array([[7.0, 4.0]], "f")}
    assert VOCABULARY.merge(logits).tolist() == [[(2.0 + 4.0) / 2, 5.0, 7.0]]


def test_the_vocabulary_is_stored_and_read(tmp_path):
    VOCABULARY.save(tmp_path)
    found = TagVocabulary.load(tmp_path)
    assert found.tags == VOCABULARY.tags
    assert found.columns["zh"].tolist() == [2, 0]


def test_a_tagger_is_opened_by_its_kind(tmp_path):
    served(network(), tmp_path)
    assert model_folder.read_card(tmp_path)["kind"] == "tagger"
    assert (tmp_path / WEIGHTS_FILE).is_file()


class TestPlatt:
    def made(self):
        """Logits twice as large as they should be, for a frequent and a never seen tag."""
        rng = np.random.default_rng(3)
        true = rng.normal(size=(4000, 2))
        values = (rng.random((4000, 2)) < 1 / (1 + np.exp(-true))).astype(float)
        known = np.ones_like(values)
        known[:, 1] = 0.0
        return 2 * true, values, known

    def test_slopes_undo_overconfidence(self):
        platt = fit_platt(*self.made())
        assert platt.slope[0] == pytest.approx(0.5, abs=0.05)
        assert platt.intercept[0] == pytest.approx(0.0, abs=0.1)

    def test_a_tag_without_validation_images_keeps_the_common_fit(self):
        logits, values, known = self.made()
        platt = fit_platt(logits, values, known)
        assert platt.slope[1] == pytest.approx(platt.slope[0], abs=0.02)

    def test_rare_tags_far_from_their_threshold_converge(self):
        """Plain Newton steps went to and fro for a few of them, and ended at negative slopes."""
        rng = np.random.default_rng(5)
        logits = rng.normal(-9.0, 2.0, (3000, 40))
        values = np.zeros_like(logits)
        values[np.arange(40), np.arange(40)] = 1.0
        logits[np.arange(40), np.arange(40)] = np.linspace(-12.0, 6.0, 40)
        platt = fit_platt(logits, values, np.ones_like(values))
        assert platt.slope.min() > 0.0
        expected = platt.probabilities(logits).sum(axis=0)
        assert expected.max() < 8.0  # each is there once, and the prior says how often tags are

    def test_the_threshold_has_the_best_f1(self):
        probabilities = np.array([[0.9, 0.6, 0.4, 0.1]])
        threshold = best_threshold(probabilities, np.array([[1.0, 1.0, 0.0, 0.0]]))
        assert 0.4 < threshold <= 0.6


def test_precision_recall_and_f_are_means_over_images():
    scores = np.array([[9, 8, 1, 0], [9, 8, 1, 0], [1, 2, 3, 4]], np.float32)
    positives = [np.array([0, 2]), np.array([2]), np.array([], np.int64)]  # the third is left out
    precision, recall, f = precision_recall_f(scores, positives, depth=2)
    assert (precision, recall) == ((1 / 2 + 0) / 2, (1 / 2 + 0) / 2)
    assert f == (1 / 2 + 0) / 2


def test_nothing_to_measure_is_an_error():
    with pytest.raises(ValueError, match="no image has a tag"):
        precision_recall_f(np.zeros((1, 2), np.float32), [np.array([], np.int64)], 5)
