"""Names as captions: what they are true of is no negative, and who shows what."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage  # noqa: E402
from capsearch.encoders.data.labels import split_of  # noqa: E402
from capsearch.encoders.text.tokenizers import tokenizer  # noqa: E402
from capsearch.encoders.train.captions import (  # noqa: E402
    NO_IMAGE,
    PER_IMAGE,
    ShownConcepts,
    Vocabulary,
    name_captions,
    shown_concepts,
)
from capsearch.encoders.train.dual_encoder import (  # noqa: E402
    LOSSES,
    CaptionLoss,
    Side,
)
from capsearch.encoders.train.trainer import name_anchors  # noqa: E402
from capsearch.encoders.train.w2vv import TextConfig, TextNetwork  # noqa: E402

ONE = torch.tensor(1.0)
EYE = torch.eye(2)


class TestMatchingPairs:
    """A name is true of several images of a batch: they are no negatives of it."""

    MATCHING = torch.tensor([[False, True, False], [False, False, False]])
    THREE = torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0]])
    ROWS = torch.tensor([0, 2])

    def loss(self, name, matching):
        return LOSSES[name](EYE, self.THREE, self.ROWS, ONE, matching).item()

    def test_infonce_leaves_them_out(self):
        # scores [[1, .8, 0], [0, .6, 1]]; text 0 has only image 2 as a negative
        to_images = math.log(1 + math.exp(0 - 1)) + math.log(
            1 + math.exp(0 - 1) + math.exp(0.6 - 1)
        )
        to_texts = 2 * math.log(1 + math.exp(0 - 1))
        assert self.loss("infonce", self.MATCHING) == pytest.approx((to_images + to_texts) / 4)

    def test_triplet_leaves_them_out(self):
        # text 0: .2 + 0 - 1 < 0; text 1: .2 + .6 - 1 < 0
        assert self.loss("triplet", self.MATCHING) == 0.0

    def test_contrastive_leaves_them_out(self):
        everything = torch.ones(2, 3, dtype=torch.bool)
        assert self.loss("contrastive", everything) == 0.0  # positives are 0 apart

    @pytest.mark.parametrize("name", ["infonce", "triplet"])
    def test_the_own_image_stays_the_positive_one(self, name):
        own = torch.tensor([[True, False, False], [False, False, True]])
        assert self.loss(name, own) == self.loss(name, None)


def side(rows, concepts=None, vectors=None):
    vectors = torch.eye(max(rows) + 1)[rows] if vectors is None else vectors
    named = None if concepts is None else np.array(concepts)
    return Side(np.array(rows), vectors, named)


class TestCaptionLoss:
    # image 0 shows concepts 0 and 1, image 1 concept 1, image 2 nothing
    SHOWN = np.array([[True, True], [False, True], [False, False]])

    def matching(self, one, other):
        seen = []

        def loss(texts, vectors, rows, scale, matching):
            seen.append(matching)
            return torch.zeros(())

        losses = CaptionLoss(loss, self.SHOWN)
        if other is None:
            losses.against_images([one], torch.eye(3), torch.tensor(0.0))
        else:
            losses.between([one, other], torch.tensor(0.0))
        return seen[0].tolist()

    def test_a_name_matches_every_image_that_shows_it(self):
        named = side([0, 2], [1, -1])
        assert self.matching(named, None) == [[True, True, False], [False, False, False]]

    def test_a_name_matches_the_captions_of_every_image_that_shows_it(self):
        names, sentences = side([0, 1], [1, -1]), side([0, 1], [-1, 0])
        # names[0] is true of both images; sentences[1] names concept 0, which image 0 shows
        assert self.matching(names, sentences) == [[True, True], [False, False]]

    def test_without_concepts_nothing_else_matches(self):
        seen = []
        losses = CaptionLoss(lambda *given: seen.append(given[4]) or torch.zeros(()))
        losses.against_images([side([0, 1], [-1, -1])], torch.eye(2), torch.tensor(0.0))
        assert seen == [None]

    def test_captions_of_different_images_have_no_loss_between_them(self):
        losses = CaptionLoss(LOSSES["infonce"])
        assert losses.between([side([0, 1]), side([2, 3])], torch.tensor(0.0)) == 0.0


def test_the_concepts_that_a_batchs_images_show():
    numbers = {"bird": 0, "dog": 1, "wren": 2}
    shown = ShownConcepts([np.array([2, 0]), np.array([], np.int64), np.array([1])], numbers)
    assert shown.of(np.array([2, 0])).tolist() == [[False, True, False], [True, False, True]]


def labelled(*concepts):
    images = [CaptionedImage(str(n), "train", f"{n}.jpg", {}, concepts=one) for n, one in concepts]
    return CaptionDataset(tuple(images))


def test_an_image_shows_what_its_label_stands_for_and_everything_above():
    shown = shown_concepts(labelled((1, ("violin",)), (2, ())))
    by_number = {number: one for one, number in shown.numbers.items()}
    first, second = ({by_number[n] for n in rows.tolist()} for rows in shown.by_image)
    assert {"violin", "string-instrument", "musical-instrument"} <= first
    assert second == set()


def test_images_without_labels_show_nothing_that_is_known():
    assert shown_concepts(labelled((1, ()))) is None


def test_captions_name_what_their_image_shows():
    data = labelled((1, ()), (2, ("violin",)))
    shown = shown_concepts(data)
    names = name_captions(data, "en", shown)
    assert len(names.texts) == PER_IMAGE
    assert names.image_rows.tolist() == [1] * PER_IMAGE
    assert set(names.concepts.tolist()) <= set(shown.by_image[1].tolist())
    assert name_captions(data, "en", shown).texts == names.texts  # the same in every run


def test_names_of_concepts_held_out_are_used_where_images_show_them():
    assert split_of("tuba") == "test"
    for concepts, used in ((("tuba",), True), (("violin",), False)):
        data = labelled((1, concepts))
        names = name_captions(data, "en", shown_concepts(data))
        assert any("tuba" in text for text in names.texts) == used


class TestAnchors:
    IDS = ("dolphin", "violin")

    def anchors(self):
        words = {"en": ("dolphin", "violin"), "ja": ("イルカ", "バイオリン")}
        vocabularies = {
            language: Vocabulary(language, known, tokenizer(language))
            for language, known in words.items()
        }
        torch.manual_seed(0)
        text = TextNetwork(dict.fromkeys(words, 2), 16, TextConfig()).eval()
        return name_anchors(text, vocabularies, RandomSentences(), self.IDS)

    def test_all_names_of_a_concept_have_one_target(self):
        anchors = self.anchors()
        for found in anchors.values():
            assert (found.image_rows == NO_IMAGE).all()
            assert len(np.unique(found.teacher, axis=0)) == len(self.IDS)
            assert np.linalg.norm(found.teacher.astype(float), axis=1) == pytest.approx(1, abs=1e-2)
        english, japanese = (np.unique(anchors[one].teacher, axis=0) for one in ("en", "ja"))
        assert np.array_equal(english, japanese)


class RandomSentences:
    """A sentence encoder: unit vectors that depend on the text alone."""

    def encode(self, texts):
        rows = [np.random.default_rng(list(text.encode())).normal(size=512) for text in texts]
        return np.array([one / np.linalg.norm(one) for one in rows], np.float32)
