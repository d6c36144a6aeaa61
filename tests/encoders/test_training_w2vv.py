"""The text encoders in torch: losses by hand, bag of words, attention, corpora, variants."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import (  # noqa: E402
    FEATURES,
    SMALL,
    captions,
    options,
    random_model,
    vocabulary,
)

from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage  # noqa: E402
from capsearch.encoders.models.w2vv import MAX_TOKENS  # noqa: E402
from capsearch.encoders.train.captions import (  # noqa: E402
    Captions,
    Vocabulary,
    build_vocabulary,
    texts_of,
    word_vectors,
)
from capsearch.encoders.train.dual_encoder import LOSSES  # noqa: E402
from capsearch.encoders.train.text_run import VARIANTS, apply_variant  # noqa: E402
from capsearch.encoders.train.w2vv import LanguageBranch, TextConfig  # noqa: E402
from capsearch.engine.errors import TrainingProblem  # noqa: E402
from capsearch.engine.records import Caption  # noqa: E402

ROWS = torch.tensor([0, 1])
ONE = torch.tensor(1.0)
EYE = torch.eye(2)


def loss(name, texts, images, rows=ROWS, scale=ONE):
    return LOSSES[name](torch.as_tensor(texts), torch.as_tensor(images), rows, scale).item()


class TestLosses:
    def test_infonce_of_two_positive_pairs(self):
        # logits are the identity times the scale: -log(e^3 / (e^3 + e^0)) both ways
        expected = -math.log(math.exp(3) / (math.exp(3) + 1))
        assert loss("infonce", EYE, EYE, scale=torch.tensor(3.0)) == pytest.approx(expected)

    def test_infonce_is_the_mean_of_both_directions(self):
        images = torch.tensor([[1.0, 0.0], [0.6, 0.8]])  # scores [[1, .6], [0, .8]]
        to_images = math.log(1 + math.exp(0.6 - 1)) + math.log(1 + math.exp(0 - 0.8))
        to_texts = math.log(1 + math.exp(0 - 1)) + math.log(1 + math.exp(0.6 - 0.8))
        assert loss("infonce", EYE, images) == pytest.approx((to_images + to_texts) / 4)

    def test_an_image_without_a_sentence_is_still_a_negative(self):
        three = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
        assert loss("infonce", EYE, three) > loss("infonce", EYE, EYE)

    def test_triplet_takes_the_hardest_negative_of_each_side(self):
        images = torch.tensor([[1.0, 0.0], [0.9, 0.1]])  # scores [[1, .9], [0, .1]]
        to_images = (0.2 + 0.9 - 1.0) + (0.2 + 0.0 - 0.1)
        to_texts = 0.0 + (
            0.2 + 0.9 - 0.1
        )  # image 0: .2 + 0 - 1 < 0; image 1: text 0 is more similar
        assert loss("triplet", EYE, images) == pytest.approx((to_images + to_texts) / 2)

    def test_triplet_is_zero_when_all_pairs_are_separated(self):
        assert loss("triplet", EYE, EYE) == 0.0

    def test_contrastive_attracts_positives_and_repels_negatives_up_to_the_margin(self):
        # positives: 0; negatives: (2 - sqrt 2)^2 each
        assert loss("contrastive", EYE, EYE) == pytest.approx((2 - math.sqrt(2)) ** 2)

    def test_contrastive_ignores_negatives_beyond_the_margin(self):
        # positives: 1 and 0; negatives are 3 and 4 apart, more than the margin of 2
        texts = torch.tensor([[0.0], [4.0]])
        assert loss("contrastive", texts, torch.tensor([[1.0], [4.0]])) == pytest.approx(0.5)

    def test_mse_is_the_mean_over_entries(self):
        assert (
            loss("mse", [[1.0, 2.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]) == (1 + 4 + 0 + 1) / 4
        )

    @pytest.mark.parametrize("name", LOSSES)
    def test_rows_assign_sentences_to_images(self, name):
        swapped = loss(name, EYE, EYE.flip(0), rows=torch.tensor([1, 0]))
        assert swapped == pytest.approx(loss(name, EYE, EYE))


def branch(**config):
    torch.manual_seed(1)
    made = {"bow_width": 4, "word_width": 4, "gru_width": 5, "hidden": 6}
    return LanguageBranch(5, TextConfig(**{**made, **config}), torch.randn(5, 4)).eval()


def ids(*tokens):
    return torch.tensor(tokens, dtype=torch.long)


class IdentityGru(torch.nn.Module):
    """A GRU whose states are its inputs."""

    def forward(self, packed):
        return packed, None


class TestTokens:
    def test_a_bag_counts_a_token_once(self):
        one = branch()
        bag = one._bag(torch.tensor([[2, 0, 2, 2, 5]]))  # 5 is padding
        torch.testing.assert_close(bag[0], one.bow.weight[2] + one.bow.weight[0])

    @pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
    def test_padding_changes_nothing(self, pooling):
        one = branch(pooling=pooling)
        short, long = ids(1, 2), ids(0, 1, 2, 3, 4, 4)
        torch.testing.assert_close(one([short, long])[0], one([short])[0])

    def test_attention_weights_sum_to_one(self):
        one = branch()
        states = torch.ones(2, 3, 5)
        present = torch.tensor([[True, True, True], [True, False, False]])
        one.gru = IdentityGru()
        pooled = one._pooled(states, torch.tensor([3, 1]), present)
        torch.testing.assert_close(pooled, torch.ones(2, 5))

    @pytest.mark.parametrize("pooling", ["last", "mean", "attention"])
    def test_a_sentence_without_known_tokens_is_the_bias(self, pooling):
        one = branch(pooling=pooling)
        torch.testing.assert_close(one([ids(), ids(1)])[0], one.mix.bias)

    def test_inputs_that_are_left_out_change_nothing(self):
        one = branch(inputs=("bow",))
        same_bag = one([ids(1, 2, 3), ids(3, 2, 1, 1)])
        torch.testing.assert_close(same_bag[0], same_bag[1])
        assert not torch.allclose(branch()([ids(1, 2, 3)]), branch()([ids(3, 2, 1)]))

    def test_frozen_word_vectors_have_no_gradient(self):
        assert branch(train_words=False).words.weight.requires_grad is False
        assert branch().words.weight.requires_grad is True


def captioned(number, **texts):
    captions_of = {
        lang: tuple(Caption(text, lang, "test") for text in one) for lang, one in texts.items()
    }
    return CaptionedImage(str(number), "train", f"{number}.png", captions_of)


class TestCorpus:
    DATA = CaptionDataset(
        (
            captioned(0, en=["a cat", "a dog"], zh=["一隻貓"]),
            captioned(1, zh=["一只狗"]),
            captioned(2, en=["a cat"]),
        )
    )

    def test_captions_come_with_the_row_of_their_image(self):
        written = texts_of(self.DATA, "en")
        assert written.texts == ["a cat", "a dog", "a cat"]
        assert written.image_rows.tolist() == [0, 0, 2]

    def test_chinese_is_simplified(self):
        assert texts_of(self.DATA, "zh").texts == ["一只猫", "一只狗"]

    def test_translations_made_for_testing_are_left_out(self):
        written = {
            "zh": (Caption("猫", "zh", "coco-cn-translated"), Caption("狗", "zh", "coco-cn"))
        }
        data = CaptionDataset((CaptionedImage("1", "train", "1.png", written),))
        assert texts_of(data, "zh").texts == ["狗"]

    def test_a_vocabulary_has_the_words_that_occur_often_enough(self):
        made, tokens = build_vocabulary("en", ["a cat", "a dog", "two cats"], min_count=2)
        assert made.words == ("a", "cat")
        assert tokens == [("a", "cat"), ("a", "dog"), ("two", "cat")]

    def test_a_vocabulary_without_words_suggests_a_lower_min_count(self):
        with pytest.raises(TrainingProblem, match=r"no en word occurs 5 times.*--min-count"):
            build_vocabulary("en", ["a cat"])

    def test_a_chinese_vocabulary_comes_with_its_dictionary(self):
        made, _ = build_vocabulary("zh", ["红色的车", "红色的猫"], min_count=1)
        assert set(made.tokenizer.dictionary.words) == set(made.words) == {"红色", "的", "车", "猫"}

    def test_token_ids_skip_unknown_tokens_and_are_truncated_as_in_search(self):
        made = vocabulary("en")
        assert made.token_ids(("a", "zebra", "cat")).tolist() == [0, 3]
        assert len(made.token_ids(("cat",) * 100)) == MAX_TOKENS
        assert made.token_ids(()).dtype == np.int64

    def test_word_vectors_have_one_scale_and_depend_on_the_seed_alone(self):
        made = Vocabulary("en", ("cat", "dog"), vocabulary("en").tokenizer)
        tokens = [("cat", "dog"), ("dog", "cat", "a")] * 5
        one, again = (word_vectors(made, tokens, 8, seed=3) for _ in range(2))
        assert one.shape == (2, 8)
        assert one.std() == pytest.approx(0.1, rel=1e-3)
        np.testing.assert_array_equal(one, again)

    def test_by_image_lists_the_captions_of_each_image(self):
        rows = captions([2, 0, 2, 3], [[0]] * 4).by_image(5)
        assert [one.tolist() for one in rows] == [[1], [], [0, 2], [3], []]

    def test_captions_are_encoded_in_the_order_given(self):
        class Lengths:
            def encode(self, texts):
                return np.array([[len(text)] for text in texts], np.float32)

        given = Captions(np.array([4, 2]), ["a cat", "zebra"])
        made = vocabulary("en").encode(given, Lengths())
        assert [ids.tolist() for ids in made.ids] == [[0, 3], []]
        assert made.sentence.tolist() == [[5.0], [5.0]]
        assert made.image_rows.tolist() == [4, 2]


class TestCaptions:
    CAPTIONS = Captions(np.array([4, 2, 4]), ["a", "b", "c"], sources=["x", "y", "x"])

    def test_some_of_them_have_the_same_columns(self):
        some = self.CAPTIONS.at([2, 0])
        assert (some.image_rows.tolist(), some.texts, some.sources) == (
            [4, 4],
            ["c", "a"],
            ["x"] * 2,
        )
        assert len(some.ids) == len(some.sentence) == 0

    def test_a_sum_has_the_columns_that_both_have(self):
        both = self.CAPTIONS + Captions(np.array([7]), ["d"], concepts=np.array([3]))
        assert (both.image_rows.tolist(), both.texts) == ([4, 2, 4, 7], ["a", "b", "c", "d"])
        assert len(both.sources) == len(both.concepts) == 0

    def test_a_sum_with_none_keeps_all_columns(self):
        none = Captions(np.array([], np.int64))
        assert (self.CAPTIONS + none).sources == (none + self.CAPTIONS).sources == ["x", "y", "x"]

    def test_those_of_some_sources(self):
        assert self.CAPTIONS.of_sources(lambda source: source == "x").texts == ["a", "c"]


class TestVariants:
    @pytest.mark.parametrize("name", VARIANTS)
    def test_each_can_be_built(self, name):
        settings = apply_variant(name, options(), FEATURES)
        made = random_model({"en": vocabulary("en")}, settings)
        assert made.image(torch.eye(FEATURES)).shape == (FEATURES, settings.dimension)

    def test_in_the_feature_space_images_are_not_projected(self):
        settings = apply_variant("enhanced-w2vv", options(), FEATURES)
        made = random_model({"en": vocabulary("en")}, settings).train()
        torch.testing.assert_close(made.image(torch.eye(FEATURES)), torch.eye(FEATURES))

    def test_an_unknown_variant_is_refused_with_the_known_ones(self):
        with pytest.raises(TrainingProblem, match="called 'w3vv'; there is shared, w2vv"):
            apply_variant("w3vv", options(), FEATURES)

    def test_the_feature_space_has_the_features_dimension(self):
        with pytest.raises(TrainingProblem, match="feature space has 6 dimensions"):
            random_model({"en": vocabulary("en")}, options(space="feature", dimension=8))

    def test_an_unknown_loss_is_refused_with_the_known_ones(self):
        with pytest.raises(TrainingProblem, match="no loss called 'hope'; there is infonce"):
            options(loss="hope", config=SMALL)
