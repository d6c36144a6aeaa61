"""What classifiers of concepts are distilled on: captioned images, and labelled ones."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
from capsearch.encoders.calibrate import run as run_module
from capsearch.encoders.calibrate.distil import distil
from capsearch.encoders.settings import CalibrationRun
from capsearch.engine.protocols import Enricher
from capsearch.engine.vectors import as_document, unit

CAT, VIOLIN = "cat", "violin"
CAPTIONED, LABELLED = 60, 40


class Says:
    """A tagger that reads a cat off the first number of a feature, and a violin off the second."""

    def concept_probabilities(self, features):
        shown = features.pooled[:, :2] > 0.5
        return (CAT, VIOLIN), np.where(shown, 0.9, 0.01).astype(np.float32)


class Projects:
    def project(self, features):
        return as_document(unit(features), np.zeros(len(features), np.float32))


@dataclass
class Model:
    tagger: Says | None
    image = Projects()

    def enricher(self):
        return Enricher(tagger=self.tagger)


class Split(str):
    def split(self, name):
        assert name == "train"
        return self


def features(name):
    """Cats among the captioned images, violins among the labelled ones."""
    rng = np.random.default_rng(0)
    count = CAPTIONED if name == "captioned" else LABELLED
    found = rng.normal(size=(count, 4)).astype(np.float32) * 0.1
    found[::2, 0 if name == "captioned" else 1] += 1.0
    return found


@pytest.fixture(autouse=True)
def data(monkeypatch):
    monkeypatch.setattr("capsearch.encoders.calibrate.distil._STEPS", 200)
    monkeypatch.setattr("capsearch.encoders.calibrate.distil._MIN_IMAGES", 15.0)
    monkeypatch.setattr(run_module, "read", lambda sources, splits: "captioned")
    monkeypatch.setattr(
        run_module, "read_labelled", lambda sources, everything: Split(f"labelled {everything}")
    )
    seen = []
    monkeypatch.setattr(
        run_module,
        "load_features",
        lambda image, name, *_: (seen.append(str(name)), features(str(name)))[:2],
    )
    return seen


def classifiers(model, *labelled, all_concepts=False):
    run = CalibrationRun(data=("DIR",), labelled=labelled, all_concepts=all_concepts)
    return run_module._classifiers(model, run, None, None, None)


def test_what_only_labelled_photographs_show_has_a_classifier_with_them():
    assert classifiers(Model(Says())).ids == (CAT,)
    found = classifiers(Model(Says()), Path("SETS"))
    assert found.ids == (CAT, VIOLIN)
    rows = Projects().project(np.eye(4, dtype=np.float32)[:2])
    cat, violin = (rows @ found.weights.T + found.biases).T
    assert cat[0] > cat[1] + 1.0
    assert violin[1] > violin[0] + 1.0


def test_all_concepts_of_the_labelled_photographs_are_read_where_none_was_held_out(data):
    classifiers(Model(Says()), Path("SETS"), all_concepts=True)
    classifiers(Model(Says()), Path("SETS"))
    assert data == ["captioned", "labelled True", "captioned", "labelled False"]


def test_without_a_tagger_there_are_none():
    assert classifiers(Model(None)) is None


def test_a_tagger_is_learned_as_a_function_of_image_vectors(monkeypatch):
    monkeypatch.undo()
    random = np.random.default_rng(0)
    vectors = unit(random.standard_normal((4000, 8)))
    log_odds = 3 * vectors[:, :2] - 1
    images = as_document(vectors, random.random(4000).astype(np.float32))
    rare = np.full((4000, 1), 0.001, np.float32)
    probabilities = np.concatenate([1 / (1 + np.exp(-log_odds)), rare], 1).astype(np.float32)
    found = distil(("cat", "couch", "pug"), probabilities, images)
    assert found.ids == ("cat", "couch")  # four images of pugs are too few
    assert np.abs(images @ found.weights.T + found.biases - log_odds).mean() < 0.3
    assert (found.weights[:, -1] == 0).all()  # the hubness penalty tells nothing
