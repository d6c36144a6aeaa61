"""The match of captions and images, fitted on captions and used to choose among candidates."""

from dataclasses import replace

import numpy as np
import pytest

from capsearch.encoders.models.caption_search import END, Beam, CaptionVocabulary, Hypotheses
from capsearch.encoders.train.caption_metrics import in_words

pytest.importorskip("torch")
pytest.importorskip("pycocoevalcap")

from capsearch.encoders.models import model_folder
from capsearch.encoders.models.captioner import WHITENING, CaptionDecoders, CaptionMatch
from capsearch.encoders.train.caption_match import WEIGHTS, fit_match, with_match
from capsearch.encoders.train.caption_trainer import ReferenceSet
from capsearch.encoders.train.captions import Captions

WORDS = ("a", "cat", "dog", "runs")
VOCABULARY = CaptionVocabulary({"en": WORDS})
IMAGES = 60


def images(seed=0):
    """(N, 6) features: the first number says cat or dog, the third is large and says nothing."""
    rng = np.random.default_rng(seed)
    found = rng.normal(size=(IMAGES, 6)).astype(np.float32)
    cats = np.arange(IMAGES) % 2 == 0
    found[:, 0] = np.where(cats, 1.0, -1.0) + rng.normal(size=IMAGES) * 0.1
    found[:, 2] *= 20
    return found, cats


def captions(cats):
    """Each image's own animal in one caption; running tells nothing."""
    rng = np.random.default_rng(1)
    sentences = []
    for cat in cats:
        words = ("a", "cat" if cat else "dog", *(("runs",) if rng.random() < 0.5 else ()))
        sentences.append(VOCABULARY.encode(words, "en"))
    return Captions(np.arange(len(cats)), ids=sentences)


@pytest.fixture(scope="module")
def arrays():
    pooled, cats = images()
    return fit_match(pooled, {"en": captions(cats)}, VOCABULARY)


def candidates(count, log_probability=(-4.0, -2.0)):
    """'a cat runs' and 'a dog' for each of some images."""
    positions = np.tile([[1, 2, 4, END], [1, 3, END, END]], (count, 1, 1))
    log_p = np.tile(np.array(log_probability, np.float32), (count, 1))
    return Hypotheses(positions, log_p, np.tile([4, 3], (count, 1)))


def test_captions_match_the_images_that_show_what_they_name(arrays):
    pooled, cats = images(seed=7)  # others than it was fitted on
    match = CaptionMatch(arrays, 1.0)
    found = match.matches(match.image_vectors(pooled), candidates(len(pooled)), "en")
    assert ((found[:, 0] > found[:, 1]) == cats).mean() > 0.95
    assert np.abs(found).max() <= 1.0 + 1e-5


def test_the_match_that_is_saved_is_the_one_that_was_fitted(arrays, tmp_path):
    """Whitening undoes variances that differ by far: rounded to int8, it would be noise."""
    pooled, _ = images(seed=7)
    model_folder.save_arrays(tmp_path / "match", arrays, exact=[WHITENING])
    saved = CaptionMatch(model_folder.Arrays(tmp_path / "match"), 1.0)
    fitted = CaptionMatch(arrays, 1.0)
    some = candidates(len(pooled))
    before, after = (one.matches(one.image_vectors(pooled), some, "en") for one in (fitted, saved))
    np.testing.assert_allclose(after, before, atol=0.02)


def test_the_weight_decides_between_probability_and_match(arrays):
    pooled, cats = images(seed=8)
    found, beam = candidates(len(pooled)), Beam(2, 3)
    for weight, expected in ((0.0, np.ones(len(cats))), (100.0, ~cats)):
        match = CaptionMatch(arrays, weight)
        best = match.best(match.image_vectors(pooled), found, "en", beam)
        chosen = best.positions[:, 0, 1] == 3  # dogs
        assert (chosen == expected).mean() > 0.95
        assert best.log_probability[:, 0].tolist() == np.where(chosen, -2.0, -4.0).tolist()


def test_what_was_not_found_is_never_chosen(arrays):
    pooled, _ = images()
    match = CaptionMatch(arrays, 100.0)
    found = candidates(len(pooled), (-np.inf, -2.0))
    best = match.best(match.image_vectors(pooled), found, "en", Beam(2, 3))
    assert np.isfinite(best.log_probability).all()


class OneOfTwo:
    """A decoder that finds dogs likelier than cats in every image."""

    def __init__(self, count):
        self.count = count

    def initial(self, starts):
        return (starts[:, :, None].astype(np.float32),)

    def step(self, tokens, state, at):
        return tokens[:, :, None].astype(np.float32), state

    def log_probabilities(self, hidden, language):
        after = np.full((9, len(WORDS) + 1), -20.0, np.float32)
        after[VOCABULARY.start("en"), 1] = 0.0  # a
        after[2, [2, 3]] = -1.0, -0.5  # cat, dog
        after[[3, 4], END] = 0.0
        return after[hidden[:, :, 0].astype(int)]

    def only(self, images):
        return OneOfTwo(len(images))


class Images:
    def __init__(self, pooled):
        self.pooled = pooled

    def __len__(self):
        return len(self.pooled)

    def at(self, rows):
        return Images(self.pooled[rows])


@pytest.mark.parametrize("useful", [True, False])
def test_the_match_is_kept_where_validation_is_better_with_it(arrays, monkeypatch, useful):
    pooled, cats = images(seed=9)
    monkeypatch.setattr(CaptionDecoders, "_decoder", lambda self, _, found: OneOfTwo(len(found)))
    monkeypatch.setattr(CaptionDecoders, "_outputs", None)
    decoders = CaptionDecoders("transformer", {"all": VOCABULARY}, arrays)
    texts = [("a cat",) if cat and useful else ("a dog",) for cat in cats]
    validation = ReferenceSet(Images(pooled), {"en": dict(enumerate(texts))})
    beam = Beam(2, 3, candidates=4)
    chosen = with_match(decoders, arrays, validation, beam)
    assert (chosen.match is not None) == useful
    written = chosen.text(chosen.captions(Images(pooled), beam)["en"], "en")
    right = [in_words(one, "en") == text for one, (text,) in zip(written, texts, strict=True)]
    assert np.mean(right) > 0.9
    if useful:
        assert chosen.match.weight in WEIGHTS
        plain = replace(chosen, match=None)
        likeliest = plain.text(plain.captions(Images(pooled), beam)["en"], "en")
        assert {in_words(one, "en") for one in likeliest} == {"a dog"}
