"""What captions and tags by models are worth: something where they say something, else nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_calibration import RANDOM, WIDTH, captions, documents, noisy

from capsearch.encoders.calibrate import fit, scenarios
from capsearch.encoders.calibrate.collection import EncodedImages
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.scores import tag_scores
from capsearch.engine.fakes import FakeTextEncoder
from capsearch.engine.records import EncodedText, Tag
from capsearch.engine.vectors import as_query, unit

NAMES = {"en": {"even": "cat", "odd": "dog"}}
COUNT = 300


def build(noise: float, confidence: float) -> EncodedImages:
    """Images and what a model wrote about them, with so much noise, and tags that are right."""
    images = unit(RANDOM.standard_normal((COUNT, WIDTH)))
    meanings = noisy(images, 1.5)
    tags = tuple(
        (Tag(name, "en", confidence, "model:m", name),)
        for name in ("cat" if row % 2 == 0 else "dog" for row in range(COUNT))
    )
    return EncodedImages(
        documents(images),
        {"en": captions(meanings, 0.8, 2, "en"), "zh": captions(meanings, 0.8, 2, "zh")},
        tuple(("even",) if row % 2 == 0 else ("odd",) for row in range(COUNT)),
        {"en": captions(meanings, noise, 1, "written")},
        tags,
    )


@pytest.fixture(scope="module")
def bank() -> DocumentBank:
    vectors = documents(unit(RANDOM.standard_normal((100, WIDTH))))
    return DocumentBank(vectors, vectors)


@pytest.fixture(scope="module")
def data() -> EncodedImages:
    return build(noise=1.0, confidence=0.9)


class Names(FakeTextEncoder):
    """Knows no name: its vectors are the same for all."""

    def encode(self, texts, language):
        vectors = as_query(unit(np.ones((len(texts), WIDTH), np.float32)))
        return EncodedText(vectors, vectors, (True,) * len(texts))


@pytest.fixture(scope="module", autouse=True)
def _small():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scenarios, "SIZES", (250,))
        patch.setattr(scenarios, "SHARES", (0.0, 1.0))
        patch.setattr(scenarios, "MAX_QUERIES", 100)
        yield


@pytest.fixture(scope="module")
def fitted(data, bank):
    return fit.fit_evidence(Names(), data, bank, NAMES)


def test_documents_with_generated_captions_are_kinds_of_their_own(fitted):
    model = fitted["en"].long
    assert set(model.kinds) == {"", "caption", "generated", "caption+generated"}
    kind = model.kinds["generated"]
    assert kind.weights["generated"] > 0 and kind.weights["image"] > 0
    assert kind.weights["generated_words"] < kind.weights["words"]
    assert set(kind.background) == {"image", "caption"}
    assert fitted["en"].at(4).kinds["generated"].weights.keys() == kind.weights.keys()


def test_generated_captions_help(fitted, data, bank):
    def mrr(some: EncodedImages) -> float:
        one = scenarios.share_of(some, "en", "zh", bank, 0.0, 1, np.random.default_rng(3))
        values = [one.probabilities(row, fitted["en"].long) for row in range(len(one.image))]
        return fit.average_precision(np.stack(values), one.relevant)

    assert mrr(data) > mrr(replace(data, generated={})) + 0.02


def test_tags_help_where_a_query_names_something(fitted):
    assert fitted["en"].short.kinds["generated"].weights["tag"] > 0


def test_captions_that_say_nothing_get_no_weight(bank):
    random = build(noise=50.0, confidence=0.9)
    useless = fit.fit_evidence(FakeTextEncoder(), replace(random, tags=()), bank, {})
    kind = useless["en"].long.kinds["generated"]
    assert kind.weights["generated"] <= 0.1 * kind.weights["image"]
    assert kind.weights["tag"] == 0


def test_without_a_captioner_nothing_is_fitted_for_it(data, bank):
    model = fit.fit_evidence(FakeTextEncoder(), replace(data, generated={}, tags=()), bank, {})
    assert set(model["en"].long.kinds) == {"", "caption"}


def test_tag_scores_are_the_surest_tag_of_each_thing_named():
    some = build(1.0, 0.9)
    some = replace(some, tags=((Tag("cat", "en", 0.4, "m", "cat"), Tag("x", "en", 1.0, "m")), ()))
    found = tag_scores(some.tags, ["a cat", "a cat on a sofa", "zyzzyva"], "en")
    assert found == pytest.approx(np.array([[0.4, 0], [0.2, 0], [0, 0]]))


def test_average_precision_of_a_single_right_answer_is_its_reciprocal_rank():
    scores = np.array([[3.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    relevant = np.array([[False, True, False], [True, False, True]])
    assert fit.average_precision(scores, relevant) == pytest.approx((1 / 2 + (1 + 2 / 3) / 2) / 2)
    assert fit.average_precision(scores, np.zeros((2, 3), bool)) == 0
