"""Names of what labelled photographs show, as queries to calibrate with."""

from dataclasses import replace

import numpy as np
import pytest

from capsearch.encoders.calibrate import fit, scenarios
from capsearch.encoders.calibrate.collection import EncodedCaptions, EncodedImages, LabelledImages
from capsearch.encoders.calibrate.scenarios import labelled_names
from capsearch.encoders.models import calibration
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.engine.evidence import EvidenceModel, KindWeights, LengthDependent
from capsearch.engine.fakes import FakeTextEncoder
from capsearch.engine.records import EncodedText
from capsearch.engine.vectors import as_document, as_query, strip_bias, unit

NAMED = ("dolphin", "violin", "castle", "mushroom", "tiger", "lemon")
UNKNOWN = ("dolphin", "violin")
COUNT, WIDTH = 300, 24


@pytest.fixture(autouse=True)
def _few_names_are_enough(monkeypatch):
    monkeypatch.setattr(scenarios, "_ENOUGH", 2)


class RandomTexts(FakeTextEncoder):
    """Another direction for every text."""

    def encode(self, texts, language):
        rows = [np.random.default_rng(list(text.encode())).standard_normal(WIDTH) for text in texts]
        vectors = as_query(unit(np.array(rows, np.float32).reshape(-1, WIDTH)))
        return EncodedText(vectors, vectors, (True,) * len(texts))

    def unknown_words(self, text, language):
        return tuple(word for word in text.split() if word in UNKNOWN)

    def as_documents(self, captions):
        return documents(strip_bias(captions))


def documents(vectors):
    return as_document(vectors, np.zeros(len(vectors), np.float32))


def anywhere(count, seed):
    return unit(np.random.default_rng(seed).standard_normal((count, WIDTH)).astype(np.float32))


@pytest.fixture(scope="module")
def bank() -> DocumentBank:
    vectors = documents(anywhere(100, 2))
    return DocumentBank(vectors, vectors)


def labelled(share: float) -> LabelledImages:
    """A share of the images lies near the name of what they show, the others anywhere."""
    shown = [NAMED[number % len(NAMED)] for number in range(COUNT)]
    names = strip_bias(RandomTexts().encode(shown, "en").visual)
    known = np.random.default_rng(4).random(COUNT) < share
    others = anywhere(COUNT, 5)
    images = np.where(known[:, None], unit(names + 0.5 * others), others)
    objects = tuple(tuple(concepts.broader(one)) for one in shown)
    return LabelledImages(
        EncodedImages(documents(images), {}, objects), dict.fromkeys(NAMED, ("set",))
    )


def found_by(share: float, bank: DocumentBank):
    random = np.random.default_rng(0)
    return list(labelled_names(labelled(share), RandomTexts(), "en", bank, random))


def test_an_image_is_relevant_to_the_name_of_what_it_shows_and_to_no_other(bank):
    one = found_by(1.0, bank)[-1]
    assert set(one.queries.texts) == {concepts.by_id(each).name("en") for each in NAMED} - set(
        UNKNOWN
    )
    assert (one.relevant.sum(axis=0) <= 1).all()
    assert (one.relevant.sum(axis=1) == COUNT / len(NAMED)).all()


def test_labelled_images_have_no_captions(bank):
    assert all(np.isnan(one.caption).all() for one in found_by(1.0, bank))


@pytest.fixture(scope="module")
def captioned() -> EncodedImages:
    texts = tuple(f"photo {number}" for number in range(COUNT))
    encoded, rows = RandomTexts().encode(texts, "en"), np.arange(COUNT)
    images = documents(unit(strip_bias(encoded.visual) + 0.7 * anywhere(COUNT, 6)))
    found = documents(strip_bias(encoded.caption))
    captions = EncodedCaptions(texts, encoded.visual, encoded.caption, found, rows)
    return EncodedImages(images, {"en": captions}, ((),) * COUNT)


def test_names_that_find_little_promise_little(bank, captioned):
    best = {}
    for share in (0.1, 0.9):
        fitted = fit.fit_evidence(RandomTexts(), captioned, bank, {}, labelled(share))
        one = found_by(share, bank)[-1]
        hits = [np.sort(one.probabilities(row, fitted["en"].short))[-40:] for row in range(4)]
        best[share] = np.mean(hits)
    assert best[0.1] < 0.4 < 0.8 < best[0.9]


def test_without_captioned_names_a_caption_is_worth_what_it_is_to_sentences(bank, captioned):
    fitted = fit.fit_evidence(RandomTexts(), captioned, bank, {}, labelled(0.9))["en"]
    assert fitted.short.kinds["caption"].weights["caption"] > 0


def test_names_with_unknown_words_are_fitted_apart(bank, captioned):
    """The images of known names lie near them, those of unknown names anywhere."""
    near, far = labelled(1.0), labelled(0.0)
    unknown = np.array([bool(set(UNKNOWN) & set(shown)) for shown in near.data.objects])
    images = np.where(unknown[:, None], far.data.images, near.data.images)
    data = replace(near, data=replace(near.data, images=images))
    fitted = fit.fit_evidence(RandomTexts(), captioned, bank, {}, data)["en"]
    assert fitted.unfamiliar is not None
    similar = {"image": 0.8, "caption": 0.0}
    odds = [
        model.kinds[""].weights["image"] * similar["image"] + model.kinds[""].intercept
        for model in (fitted.short, fitted.unfamiliar)
    ]
    assert odds[0] > odds[1] + 1.0


def test_too_few_names_with_unknown_words_are_not_fitted(bank, captioned, monkeypatch):
    monkeypatch.setattr(scenarios, "_ENOUGH", 3)
    fitted = fit.fit_evidence(RandomTexts(), captioned, bank, {}, labelled(0.9))["en"]
    assert fitted.unfamiliar is None


def test_what_models_wrote_counts_for_names_with_unknown_words_too(bank, captioned):
    """No labelled image has captions of people: what both are worth is fitted on sentences."""
    near = labelled(0.9)
    data = replace(near, data=replace(near.data, generated=written(near.data.objects)))
    enriched = replace(captioned, generated=captioned.captions)
    fitted = fit.fit_evidence(RandomTexts(), enriched, bank, {}, data)["en"]
    assert fitted.unfamiliar is not None
    assert set(fitted.unfamiliar.kinds) == {"", "caption", "generated", "caption+generated"}
    assert fitted.unfamiliar.kinds["generated"].weights["generated"] > 0


def written(objects):
    """Captions that name one thing of each image."""
    names = tuple(next(name for name in NAMED if name in shown) for shown in objects)
    encoded = RandomTexts().encode(names, "en")
    found = documents(strip_bias(encoded.caption))
    rows = np.arange(len(names))
    return {"en": EncodedCaptions(names, encoded.visual, encoded.caption, found, rows)}


def test_names_of_other_things_than_the_objects_are_fitted_apart(bank, captioned):
    """The images of the objects lie near their names, those of others anywhere."""
    known = [one for one in NAMED if concepts.by_id(one).name("en") not in UNKNOWN]
    objects = known[: len(known) // 2]
    near, far = labelled(1.0), labelled(0.0)
    is_object = np.array([bool(set(objects) & set(shown)) for shown in near.data.objects])
    images = np.where(is_object[:, None], near.data.images, far.data.images)
    data = replace(near, data=replace(near.data, images=images))
    fitted = fit.fit_evidence(RandomTexts(), captioned, bank, {}, data, objects)["en"]
    assert fitted.rare is not None
    odds = [one.kinds[""].weights["image"] * 0.8 + one.kinds[""].intercept
            for one in (fitted.short, fitted.rare)]  # fmt: skip
    assert odds[0] > odds[1] + 1.0
    assert fit.fit_evidence(RandomTexts(), captioned, bank, {}, near)["en"].rare is None


def test_models_of_cars_do_not_outnumber_everything_else(bank, monkeypatch):
    monkeypatch.setattr(scenarios, "_OF_A_SET", 2)
    monkeypatch.setattr(scenarios, "_ENOUGH", 1)
    data = replace(labelled(1.0), sets={**dict.fromkeys(NAMED, ("cars",)), NAMED[0]: ("places",)})
    found = list(labelled_names(data, RandomTexts(), "en", bank, np.random.default_rng(0)))
    assert len(found[-1].queries.texts) <= 3


def test_a_query_is_rare_if_it_names_none_of_the_objects(bank, tmp_path):
    model = EvidenceModel({"": KindWeights(0.0, {"image": 1.0}, {})}, 1000, 0.0, 0.5)
    fitted = {"en": LengthDependent(model, model, rare=model)}
    calibration.save(tmp_path, fitted, bank, {"cat"})
    stored = calibration.StoredEvidence(tmp_path)
    assert stored.model("en") == fitted["en"]
    texts = {"two cats": "en", "猫": "zh", "an animal": "en", "violin": "en", "zxqv": "en"}
    rare = [stored.is_rare(mentioned(text, language)) for text, language in texts.items()]
    assert rare == [False, False, False, True, True]
    calibration.save(tmp_path, fitted, bank)
    assert not calibration.StoredEvidence(tmp_path).is_rare(mentioned("violin", "en"))
