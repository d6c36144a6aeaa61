"""What the cut-off leaves of names and sentences, present and absent."""

from dataclasses import replace

import numpy as np
import pytest

from capsearch.benchmarks import evidence as measure
from capsearch.encoders.calibrate import fit
from capsearch.encoders.calibrate.collection import EncodedCaptions, EncodedImages
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.registry import Model
from capsearch.encoders.text.languages import detect
from capsearch.engine.errors import DataProblem
from capsearch.engine.fakes import FakeImageEncoder, FakeTextEncoder
from capsearch.engine.records import LANGUAGES
from capsearch.engine.vectors import as_document, strip_bias, unit

COLOURS = ("red", "green", "blue", "yellow")
EACH = 60


@pytest.fixture(scope="module")
def data() -> EncodedImages:
    """Images of a colour with noise, and a caption that names it."""
    random, encoder = np.random.default_rng(3), FakeTextEncoder()
    texts = tuple(f"a {COLOURS[number % 4]} wall" for number in range(4 * EACH))
    encoded = encoder.encode(texts, "en")
    clean = strip_bias(encoded.visual)
    noisy = unit(clean + 0.3 * random.standard_normal(clean.shape).astype(np.float32))
    images = as_document(noisy, np.zeros(len(noisy), np.float32))
    documents = encoder.as_documents(encoded.caption)
    captions = EncodedCaptions(
        texts, encoded.visual, encoded.caption, documents, np.arange(len(texts))
    )
    objects = tuple((COLOURS[number % 4],) for number in range(4 * EACH))
    return EncodedImages(images, {"en": captions}, objects)


@pytest.fixture(scope="module")
def bank(data: EncodedImages) -> DocumentBank:
    return DocumentBank(data.images[:40], data.captions["en"].documents[:40])


@pytest.fixture(scope="module")
def model(data: EncodedImages, bank: DocumentBank) -> Model:
    named = {"en": {colour: colour for colour in COLOURS}}
    fitted = fit.fit_evidence(FakeTextEncoder(), data, bank, named)["en"]
    text = replace(FakeTextEncoder(languages=("en",)), evidence=fitted.short)
    return Model("toy", "digest", FakeImageEncoder(), text)


def test_names_of_what_is_there_are_found_and_of_what_is_not_come_back_empty(model, bank, data):
    (row,) = measure.names(model, bank, data)
    assert (row.language, row.queries) == ("en", 4)
    assert row.lost <= 1 / 4 and row.empty == 1.0  # the cut-off may cost the least sure one
    assert row.calibration_error < 0.2


def test_sentences_about_what_is_not_there_come_back_empty(model, bank, data):
    (row,) = measure.absent(model, bank, data)
    assert row.queries == 100
    assert row.empty > 0.9 and row.lost < 0.3  # those of the least sure colour


def test_names_need_labelled_objects(model, bank, data):
    with pytest.raises(DataProblem, match="no image of this split has labelled objects"):
        list(measure.names(model, bank, replace(data, objects=((),) * len(data.objects))))


def test_a_model_that_is_not_calibrated_cannot_be_measured(model, bank, data):
    bare = replace(model, text=FakeTextEncoder(languages=("en",)))
    with pytest.raises(DataProblem, match="capsearch calibrate"):
        list(measure.absent(bare, bank, data))


def test_the_absent_sentences_say_the_same_in_each_language():
    by_language = [measure.absent_sentences(language) for language in LANGUAGES]
    assert [len(set(texts)) for texts in by_language] == [100] * 3
    for language, texts in zip(LANGUAGES, by_language, strict=True):
        assert sum(detect(text) == language for text in texts) > 90
