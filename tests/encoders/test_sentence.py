"""The sentence encoder: segmentation into pieces, and what a vector depends on."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_models import write_sentence_model

from capsearch.encoders.models import registry
from capsearch.encoders.models.sentence import PieceSegmenter, SentenceEncoder

MARKS = ("<s>", "</s>", "<unk>")


def segmenter(**scores):
    """Marks 0, 1, 2; then the given pieces from 3 on. `_` stands for the space mark."""
    pieces = (*MARKS, *(piece.replace("_", "▁") for piece in scores))
    return PieceSegmenter(pieces, (0.0, 0.0, 0.0, *scores.values()))


class TestPieces:
    def test_the_split_with_the_higher_sum_wins(self):
        # ▁ab + c: -2 - 1 = -3 beats ▁a + bc: -1.5 - 2 = -3.5
        assert segmenter(_ab=-2.0, c=-1.0, _a=-1.5, bc=-2.0).pieces("abc") == (0, 3, 4, 1)

    def test_the_same_split_loses_if_its_pieces_are_less_likely(self):
        # ▁ab + c: -2 - 2 = -4 loses to ▁a + bc: -1.5 - 2 = -3.5
        assert segmenter(_ab=-2.0, c=-2.0, _a=-1.5, bc=-2.0).pieces("abc") == (0, 5, 6, 1)

    def test_one_long_piece_beats_two_that_are_each_more_likely(self):
        # -2.5 against -1.5 - 1.5 = -3
        assert segmenter(_ab=-2.5, _a=-1.5, b=-1.5).pieces("ab") == (0, 3, 1)

    def test_an_unknown_character_costs_ten_more_than_the_least_likely_piece(self):
        # x unknown: -4 - 10 = -14; ▁ + x + b = -1 - 14 - 4
        assert segmenter(_=-1.0, b=-4.0).pieces("xb") == (0, 3, 2, 4, 1)

    def test_spaces_case_and_width_are_normalised(self):
        cut = segmenter(_ab=-1.0, _c=-1.0)
        assert cut.pieces("AB  c") == cut.pieces("ａｂ c") == (0, 3, 4, 1)

    @pytest.mark.parametrize("text", ["", "  ", "\u200b"])
    def test_an_empty_text_is_one_unknown_piece(self, text):
        assert segmenter(_a=-1.0).pieces(text) == (0, 2, 1)

    def test_a_long_text_is_truncated(self):
        assert len(segmenter(_=-1.0, a=-1.0).pieces("a" * 10_000)) == 256 + 2

    @pytest.mark.parametrize(
        ("text", "known"),
        [("ab", True), ("ab x", True), ("x", False), ("!", False), ("", False), ("!!x", False)],
    )
    def test_a_text_is_known_if_some_piece_has_a_letter(self, text, known):
        assert segmenter(_ab=-1.0, **{"!": -1.0, "_": -2.0}).known(text) is known


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return SentenceEncoder(write_sentence_model(tmp_path_factory.mktemp("models") / "tiny"))


class TestVectors:
    TEXTS = ("a red car", "", "红车", "car " * 50, "!", "кошка", "a")

    def test_are_unit_rows(self, encoder):
        vectors = encoder.encode(self.TEXTS)
        assert vectors.shape == (len(self.TEXTS), 512)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-5)

    def test_do_not_depend_on_the_other_texts(self, encoder):
        together = encoder.encode(self.TEXTS * 30)  # several micro-batches
        alone = np.concatenate([encoder.encode([text]) for text in self.TEXTS])
        np.testing.assert_allclose(together, np.tile(alone, (30, 1)), atol=1e-5)

    def test_no_texts_give_no_rows(self, encoder):
        assert encoder.encode([]).shape == (0, 512)

    def test_of_ten_thousand_characters_only_the_beginning_counts(self, encoder):
        long = encoder.encode(["car " * 2_500, "car " * 5_000])
        np.testing.assert_allclose(long[0], long[1], atol=1e-6)

    def test_word_order_counts(self, encoder):
        one, other = encoder.encode(["a red car", "car red a"])
        assert float(one @ other) < 0.9999

    @settings(max_examples=30)
    @given(st.lists(st.text(), max_size=4))
    def test_of_every_text_are_finite(self, encoder, texts):
        assert np.isfinite(encoder.encode(texts)).all()


class TestBuiltIn:
    def test_translations_are_more_similar_than_unrelated_sentences(self):
        built_in = SentenceEncoder(registry.find("use3", "sentence"))
        en, zh, ja, other = built_in.encode(
            [
                "a cat sleeps on a sofa",
                "一只猫在沙发上睡觉",
                "ソファーで寝ている猫",
                "a bus in traffic",
            ]
        )
        assert min(en @ zh, en @ ja, zh @ ja) > max(en @ other, zh @ other, ja @ other)

    @pytest.mark.parametrize(("text", "known"), [("cat", True), ("猫", True), ("…", False)])
    def test_words_are_known_and_punctuation_is_not(self, text, known):
        assert SentenceEncoder(registry.find("use3", "sentence")).known(text) is known
