"""Beam search: against all captions of a tiny vocabulary."""

from copy import copy
from itertools import product

import numpy as np
import pytest

from capsearch.encoders.models.caption_search import END, Beam, CaptionVocabulary, search

WORDS, MAX_WORDS = 3, 3  # words of each language besides END, and of a caption


class TableDecoder:
    """P(word | word before) from a random table for each image; the state is the last word."""

    def __init__(self, images=4, seed=0):
        rng = np.random.default_rng(seed)
        logits = rng.normal(size=(images, 10, WORDS + 1)) * 2
        self.table = (logits - np.log(np.exp(logits).sum(2, keepdims=True))).astype(np.float32)
        self.steps = 0

    def initial(self, starts):
        return (np.zeros((*starts.shape, 1), np.float32),)

    def step(self, tokens, state, at):
        self.steps += 1
        assert (state[0][:, :, 0] == at).all()
        return tokens[:, :, None].astype(np.float32), (state[0] + 1,)

    def log_probabilities(self, hidden, language):
        before = hidden[:, :, 0].astype(int)
        return self.table[np.arange(len(before))[:, None], before]

    def only(self, images):
        part = copy(self)
        part.table = self.table[images]
        return part


STARTS = {"en": 1, "zh": 2}
OUTPUTS = {"en": np.array([END, 3, 4, 5]), "zh": np.array([END, 6, 7, 8])}
ALL = {language: np.ones(WORDS + 1, bool) for language in STARTS}  # words that may be repeated


def all_captions(decoder, image, language, penalty):
    """(score, positions) of every caption of at most MAX_WORDS words, best first."""
    found = []
    for length in range(MAX_WORDS + 1):
        for words in product(range(1, WORDS + 1), repeat=length):
            before, total = STARTS[language], 0.0
            for position in (*words, END):
                total += float(decoder.table[image, before, position])
                before = OUTPUTS[language][position]
            found.append((total / (length + 1) ** penalty, words))
    return sorted(found, reverse=True)


@pytest.mark.parametrize("penalty", [0.0, 0.7])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_a_wide_beam_finds_the_best_of_all_captions(penalty, seed):
    decoder = TableDecoder(seed=seed)
    everything = sum(WORDS**length for length in range(MAX_WORDS + 1)) + WORDS**MAX_WORDS
    beam = Beam(everything, MAX_WORDS, penalty)
    found = search(decoder, 4, STARTS, OUTPUTS, ALL, beam)
    for language, best in found.items():
        for image in range(4):
            score, words = all_captions(decoder, image, language, penalty)[0]
            assert tuple(best.positions[image, 0, : len(words)]) == words
            assert best.positions[image, 0, len(words)] == END
            assert best.length[image, 0] == len(words) + 1
            assert best.log_probability[image, 0] == pytest.approx(
                score * (len(words) + 1) ** penalty, abs=1e-5
            )


def test_a_beam_of_one_takes_the_likeliest_word_at_every_step():
    decoder = TableDecoder()
    found = search(decoder, 4, {"zh": 2}, {"zh": OUTPUTS["zh"]}, ALL, Beam(1, 6, 0.0))["zh"]
    for image in range(4):
        before = 2
        for position in found.positions[image, 0]:
            assert position == decoder.table[image, before].argmax()
            before = OUTPUTS["zh"][position]
            if position == END:
                break


def test_a_wider_beam_never_finds_a_less_probable_caption():
    decoder = TableDecoder(images=16, seed=5)
    narrow, wide = (
        search(decoder, 16, STARTS, OUTPUTS, ALL, Beam(size, MAX_WORDS, 0.0))["en"]
        for size in (1, 40)
    )
    assert (wide.log_probability >= narrow.log_probability - 1e-5).all()


@pytest.mark.parametrize("size", [1, 3])
def test_an_image_has_the_same_captions_alone(size):
    decoder, beam = TableDecoder(images=16, seed=3), Beam(size, 6, candidates=5)
    together = search(decoder, 16, STARTS, OUTPUTS, ALL, beam)
    for image in range(16):
        alone = search(decoder.only([image]), 1, STARTS, OUTPUTS, ALL, beam)
        for language in STARTS:
            assert (
                alone[language].positions[0].tolist()
                == together[language].positions[image].tolist()
            )


def test_candidates_are_different_captions_best_first():
    decoder = TableDecoder(images=4, seed=2)
    beam = Beam(4, MAX_WORDS, candidates=6)
    found = search(decoder, 4, STARTS, OUTPUTS, ALL, beam)["en"]
    scores = beam.scores(found.log_probability, found.length)
    assert (scores[:, :-1] >= scores[:, 1:]).all()
    everything = [all_captions(decoder, image, "en", 0.7) for image in range(4)]
    for image in range(4):
        known = {words: score for score, words in everything[image]}
        rows = found.positions[image][np.isfinite(found.log_probability[image])]
        captions = [tuple(word for word in row.tolist() if word != END) for row in rows]
        assert len(captions) == len(set(captions)) > 0
        for caption, score in zip(captions, scores[image], strict=False):
            assert known[caption] == pytest.approx(score, abs=1e-5)


def test_what_is_there_is_said_once_but_articles_are_repeated():
    decoder = TableDecoder()
    decoder.table[:] = [-9.0, -1.0, -2.0, -3.0]  # the same word again and again, and no end
    once = {"en": np.array([True, False, False, True])}
    found = search(decoder, 4, {"en": 1}, OUTPUTS, once, Beam(1, 4, 0.0, 5.0))["en"]
    assert found.positions[:, 0].tolist() == [[1, 2, 3, 3, END]] * 4
    vocabulary = CaptionVocabulary({"en": ("a", "pole"), "ja": ("の", "夜")})
    for language in vocabulary.languages:
        assert vocabulary.repeatable(language).tolist() == [True, True, False]


def test_languages_are_searched_independently():
    decoder, beam = TableDecoder(), Beam(3, MAX_WORDS)
    both = search(decoder, 4, STARTS, OUTPUTS, ALL, beam)
    for language in STARTS:
        alone = search(decoder, 4, {language: STARTS[language]}, OUTPUTS, ALL, beam)[language]
        assert alone.positions.tolist() == both[language].positions.tolist()


def test_the_search_stops_once_every_caption_has_ended():
    decoder = TableDecoder()
    decoder.table[:] = -50.0
    decoder.table[:, :, END] = 0.0
    search(decoder, 4, STARTS, OUTPUTS, ALL, Beam(3, 20))
    assert decoder.steps == 1
