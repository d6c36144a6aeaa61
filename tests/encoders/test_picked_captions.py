"""Generated captions as training data: picked by people's captions in any language."""

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pycocoevalcap")

from capsearch.encoders.models.caption_search import END, Beam, CaptionVocabulary, Hypotheses
from capsearch.encoders.models.captioner import CaptionDecoders, CaptionMatch
from capsearch.encoders.train.caption_match import COUNT, people_vectors, pick
from capsearch.encoders.train.captions import PICKED, Captions, main_captions

VOCABULARY = CaptionVocabulary({"en": ("cat", "dog", "bus"), "zh": ("猫", "狗", "车")})
# Cats, dogs and buses are directions of one space, in both languages.
ARRAYS = {
    "image_W": np.eye(3, dtype=np.float32),
    "image_b": np.zeros(3, np.float32),
    **{f"{one}_W": np.eye(4, 3, -1, dtype=np.float32) for one in ("en", "zh")},
    **{f"{one}_b": np.zeros(3, np.float32) for one in ("en", "zh")},
}
MATCH = CaptionMatch(ARRAYS, 0.0)
IMAGES = 5


class Images:
    """Features that say nothing."""

    def __init__(self, count):
        self.pooled = np.zeros((count, 3), np.float32)

    def __len__(self):
        return len(self.pooled)

    def at(self, rows):
        return Images(len(rows))


def candidates(self, features, beam):
    """A cat, a dog, a bus and nothing for every image, the cat being likeliest."""
    positions = np.tile([[1, END], [2, END], [3, END], [END, END]], (len(features), 1, 1))
    log_p = np.tile(np.array([-1.0, -2.0, -3.0, -np.inf], np.float32), (len(features), 1))
    some = Hypotheses(positions, log_p, np.full((len(features), 4), 2))
    return {"en": some, "zh": some}


def english(*words):
    """One caption of a word for each image; None for an image without."""
    sentences = [VOCABULARY.encode((word,), "en") for word in words if word]
    return Captions(np.array([row for row, word in enumerate(words) if word]), ids=sentences)


def picked(monkeypatch, captions):
    monkeypatch.setattr(CaptionDecoders, "candidates", candidates)
    decoders = CaptionDecoders("transformer", {"all": VOCABULARY}, ARRAYS)
    return pick(decoders, MATCH, Images(IMAGES), captions, Beam(4, 3))


def first_words(found: Captions):
    """The first caption of each image."""
    first: dict[int, tuple[str, ...]] = {}
    for row, words in zip(found.image_rows.tolist(), found.words, strict=True):
        first.setdefault(row, words)
    return ["".join(first[row]) for row in sorted(first)]


def test_english_captions_pick_chinese_ones(monkeypatch):
    found = picked(monkeypatch, {"en": english("bus", "dog", "cat", "dog", "bus")})
    assert first_words(found["zh"]) == ["车", "狗", "猫", "狗", "车"]


def test_without_anything_said_the_likeliest_is_picked(monkeypatch):
    found = picked(monkeypatch, {"en": english("bus", None, None, None, None)})
    assert first_words(found["zh"]) == ["车", "猫", "猫", "猫", "猫"]


def test_each_image_has_the_best_two_and_no_empty_one(monkeypatch):
    found = picked(monkeypatch, {"en": english("bus", "dog", "cat", "dog", "bus")})
    for one in found.values():
        assert np.bincount(one.image_rows).tolist() == [COUNT] * IMAGES
        assert all(one.words)


def test_picked_captions_are_learned_from_to_the_end(monkeypatch):
    found = picked(monkeypatch, {"en": english("bus", "dog", "cat", "dog", "bus")})["en"]
    assert set(found.sources) == {PICKED}
    assert len(main_captions(found).words) == len(found.words)
    both = found + found
    assert len(both.words) == len(both.image_rows) == len(both.sources) == 2 * len(found.words)


def test_captions_of_people_are_averaged_over_languages():
    zh = Captions(np.array([0]), ids=[VOCABULARY.encode(("狗",), "zh")])
    found = people_vectors(MATCH, {"en": english("cat", None), "zh": zh}, 2)
    assert found[0].tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0.0])
    assert not found[1].any()
