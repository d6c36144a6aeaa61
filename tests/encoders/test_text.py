"""The served text encoder is the trained one, in numpy and eight bits."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from small_models import write_backbone_card, write_sentence_model

from capsearch.encoders import model_folder, models
from capsearch.engine.errors import UnknownLanguage, UnknownModel

torch = pytest.importorskip("torch")

from small_problems import SMALL, options, random_pair, vocabulary  # noqa: E402

from capsearch.encoders.hubness import HubnessPenalty, QueryBank  # noqa: E402
from capsearch.encoders.text import MAX_TOKENS, gru  # noqa: E402
from capsearch.encoders.training.nn.w2vv import TextConfig, TokenBatch  # noqa: E402
from capsearch.encoders.training.runs.export import export_text  # noqa: E402
from capsearch.encoders.training.runs.import_weights import load_text  # noqa: E402
from capsearch.engine.vectors import strip_bias  # noqa: E402

SHARE = 0.3
PENALTIES = {"image": HubnessPenalty(0.5, 20.0, 0.2), "caption": HubnessPenalty(1.0, 10.0, 0.1)}
BANK = QueryBank(  # one question along the first axis of either space, three along the second
    np.eye(2, 8, dtype=np.float32),
    np.eye(2, 512, dtype=np.float32),
    np.log(np.array([0.25, 0.75], np.float32)),
)
TEXTS = {
    "en": ["a red car", "red red red cars", "a cat and a cat", "zebra", "blue " * 60],
    "zh": ["红色的车", "一只猫", "紅色的車", "蓝色绿色"],
    "ja": ["赤い車", "青い猫と赤い猫", "緑"],
}


def write_model(folder, config=SMALL, seed=3, penalties=PENALTIES):
    """A text model in folder/text with random weights, what it stands on, and its torch twin."""
    sentence = write_sentence_model(folder / "sentence")
    backbone = write_backbone_card(folder / "eyes")
    vocabularies = {language: vocabulary(language) for language in TEXTS}
    pair = random_pair(vocabularies, options(config=config, seed=seed)).eval()
    card = {
        "name": "small",
        "languages": list(TEXTS),
        "dimension": 8,
        "backbone": str(backbone),
        "backbone_digest": "0",
        "sentence": str(sentence),
        "clm_weights": dict.fromkeys(TEXTS, 0.4),
        "cl_floors": dict.fromkeys(TEXTS, 0.1),
        "sentence_weight": SHARE,
        "hubness": {side: asdict(penalty) for side, penalty in penalties.items()},
    }
    export_text(pair, vocabularies, BANK, folder / "text", card)
    return pair, vocabularies


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    pair, vocabularies = write_model(folder)
    return pair, vocabularies, models.load(str(folder / "text"))


@pytest.fixture(scope="module")
def model(made):
    return made[2]


def torch_vectors(network, vocabularies, sentences, texts, language):
    """What the torch network gives, with the tokenizer of training."""
    known = vocabularies[language]
    words = [known.numbers(known.tokenizer.tokens(text)) for text in texts]
    with torch.no_grad():
        given = torch.from_numpy(sentences.encode(texts))
        return network(TokenBatch(words, given), language).numpy()


@pytest.mark.parametrize(
    ("text", "language", "unknown"),
    [
        ("a red zebra", "en", ("zebra",)),
        ("a cat", "en", ()),
        ("", "zh", ()),
        ("赤い犬", "ja", ("犬",)),
    ],
)
def test_words_outside_the_vocabulary_are_named(model, text, language, unknown):
    assert model.text.unknown_words(text, language) == unknown


class TestTwins:
    @pytest.mark.parametrize("language", TEXTS)
    def test_numpy_and_torch_agree_within_the_rounding_to_eight_bits(self, made, language):
        pair, vocabularies, model = made
        texts = [t for t in TEXTS[language] if t != "紅色的車"]  # the corpus is Simplified before
        served = strip_bias(model.text.encode(texts, language).visual)
        trained = torch_vectors(pair.text, vocabularies, model.text.sentences, texts, language)
        np.testing.assert_allclose(served, trained, atol=0.02)

    @pytest.mark.parametrize("language", TEXTS)
    def test_and_exactly_once_both_are_rounded(self, made, tmp_path, language):
        _, vocabularies, model = made
        network, again = load_text(str(model.text.folder))
        assert again == vocabularies
        texts = TEXTS[language][:2]
        served = strip_bias(model.text.encode(texts, language).visual)
        reloaded = torch_vectors(network, again, model.text.sentences, texts, language)
        np.testing.assert_allclose(served, reloaded, atol=1e-5)

    @pytest.mark.parametrize(
        ("pooling", "inputs"),
        [("last", ("gru",)), ("mean", ("bow", "word2vec", "gru")), ("attention", ("sentence",))],
    )
    def test_every_variant_is_served(self, tmp_path, pooling, inputs):
        sizes = {"bow_width": 12, "word_width": 8, "gru_width": 10, "hidden": 24}
        config = TextConfig(inputs=inputs, pooling=pooling, **sizes)
        pair, vocabularies = write_model(tmp_path, config)
        model = models.load(str(tmp_path / "text"))
        texts = ["a red car", "a cat"]
        served = strip_bias(model.text.encode(texts, "en").visual)
        for network, atol in ((pair.text, 0.02), (load_text(str(tmp_path / "text"))[0], 1e-5)):
            twin = torch_vectors(network, vocabularies, model.text.sentences, texts, "en")
            np.testing.assert_allclose(served, twin, atol=atol)

    def test_the_image_projection_too(self, made):
        pair, _, model = made
        features = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
        with torch.no_grad():
            expected = pair.image(torch.from_numpy(features)).numpy()
        np.testing.assert_allclose(strip_bias(model.image.project(features)), expected, atol=0.02)

    def test_gru_is_torchs_gru(self):
        torch.manual_seed(0)
        reference = torch.nn.GRU(5, 7, batch_first=True)
        weights = [p.detach().numpy() for p in reference.parameters()]
        rng = np.random.default_rng(0)
        sentences = [rng.normal(size=(n, 5)).astype(np.float32) for n in (3, 9, 1, 9, 2)]
        for x, states in zip(sentences, gru(sentences, *weights), strict=True):
            with torch.no_grad():
                expected = reference(torch.from_numpy(x[None]))[0][0].numpy()
            np.testing.assert_allclose(states, expected, atol=1e-6)

    def test_equal_seeds_export_equal_models(self, tmp_path):
        (tmp_path / "one").mkdir()
        (tmp_path / "two").mkdir()
        for folder in (tmp_path / "one", tmp_path / "two"):
            torch.manual_seed(0)
            write_model(folder)
        digests = {model_folder.digest(tmp_path / one / "text") for one in ("one", "two")}
        assert len(digests) == 1


class TestEncoding:
    def test_rows_are_unit_and_end_as_questions_do(self, model):
        encoded = model.text.encode(TEXTS["en"][:3], "en")
        for rows in (encoded.visual, encoded.caption):
            np.testing.assert_allclose(np.linalg.norm(strip_bias(rows), axis=1), 1.0, atol=1e-5)
            assert rows[:, -1].tolist() == [1.0, 1.0, 1.0]

    def test_a_caption_product_is_the_weighted_sum_of_both_cosines(self, model):
        one, other = ["a red car"], ["a blue cat"]
        first, second = (model.text.encode(text, "en") for text in (one, other))
        shared = (strip_bias(first.visual) @ strip_bias(second.visual).T).item()
        sentences = model.text.sentences
        sentence = (sentences.encode(one) @ sentences.encode(other).T).item()
        assert (strip_bias(first.caption) @ strip_bias(second.caption).T).item() == pytest.approx(
            (1 - SHARE) * shared + SHARE * sentence, abs=1e-5
        )
        assert model.text.caption_dimension == first.caption.shape[1] == 8 + 512 + 1

    @pytest.mark.parametrize("language", TEXTS)
    @pytest.mark.parametrize("text", ["", "…", "?!", "🦓", "  ", "ж"])
    def test_text_that_carries_nothing_is_zero_and_unknown(self, model, text, language):
        encoded = model.text.encode(["", text], language)
        assert encoded.known == (False, False)
        assert not encoded.visual.any()
        assert not encoded.caption.any()

    def test_the_unknown_do_not_touch_their_neighbours(self, model):
        alone = model.text.encode(["a red car"], "en")
        beside = model.text.encode(["…", "a red car", ""], "en")
        assert beside.known == (False, True, False)
        np.testing.assert_allclose(beside.visual[1], alone.visual[0], atol=1e-6)
        np.testing.assert_allclose(beside.caption[1], alone.caption[0], atol=1e-6)

    def test_a_word_only_the_sentence_encoder_has_is_known(self, model):
        # "c" is a piece of the sentence encoder, and no word of the vocabulary
        assert model.text.encode(["c"], "en").known == (True,)

    def test_traditional_is_read_as_simplified(self, model):
        encoded = model.text.encode(["红色的车", "紅色的車"], "zh")
        # One batch, two rows: a matrix product may sum them in different order.
        np.testing.assert_allclose(encoded.visual[0], encoded.visual[1], atol=1e-6)

    def test_no_text_gives_no_rows(self, model):
        encoded = model.text.encode([], "en")
        assert encoded.visual.shape == (0, 9)
        assert encoded.caption.shape == (0, 521)
        assert encoded.known == ()

    def test_words_beyond_the_limit_do_not_count(self, model):
        encoder = model.text.encoders["en"]
        assert len(encoder.token_ids("red " * 100)) == MAX_TOKENS
        assert encoder.token_ids("zebra red okapi cat").tolist() == [5, 3]

    def test_a_language_it_does_not_read_is_refused(self, model):
        with pytest.raises(UnknownLanguage, match="small does not read 'fr'; it reads en, zh, ja"):
            model.text.encode(["un chat"], "fr")

    def test_clm_weight_and_floor_are_those_of_the_card(self, model):
        assert model.text.clm_weight("zh") == 0.4
        assert model.text.cl_floor("ja") == 0.1
        assert model.text.languages == ("en", "zh", "ja")


class TestTolls:
    def test_images_pay_by_how_near_they_lie_to_the_bank(self, made):
        _, _, model = made
        features = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
        vectors = model.image.project(features)
        cosines = strip_bias(vectors)[:, :2]  # with the bank's two questions
        near = np.log(np.exp(20 * cosines) @ [0.25, 0.75]) / 20
        np.testing.assert_allclose(vectors[:, -1], -0.5 * (near - 0.2), atol=0.003)

    def test_captions_too_in_the_space_they_are_compared_in(self, model):
        encoded = model.text.encode(["a red car", "a blue cat"], "en").caption
        offered = model.text.as_documents(encoded)
        np.testing.assert_array_equal(strip_bias(offered), strip_bias(encoded))
        given = strip_bias(encoded)
        cosines = np.sqrt(1 - SHARE) * given[:, :2] + np.sqrt(SHARE) * given[:, 8:10]
        near = np.log(np.exp(10 * cosines) @ [0.25, 0.75]) / 10
        np.testing.assert_allclose(offered[:, -1], -(near - 0.1), atol=0.003)

    def test_a_caption_that_says_nothing_neither_pays_nor_gets_anything(self, model):
        encoded = model.text.encode(["…", "a cat"], "en").caption
        assert not model.text.as_documents(encoded)[0].any()

    def test_a_bank_that_is_missed_is_named(self, tmp_path):
        write_model(tmp_path)
        (tmp_path / "text" / "query_bank.safetensors").unlink()
        model = models.load(str(tmp_path / "text"))
        with pytest.raises(UnknownModel, match=r"has no query_bank\.safetensors"):
            model.image.project(np.ones((2, 6), np.float32))

    def test_other_tolls_make_another_model(self, tmp_path):
        digests = set()
        for folder, penalties in (
            ("one", PENALTIES),
            ("two", {**PENALTIES, "image": HubnessPenalty(0.25, 20.0, 0.2)}),
        ):
            (tmp_path / folder).mkdir()
            torch.manual_seed(0)
            write_model(tmp_path / folder, penalties=penalties)
            digests.add(models.load(str(tmp_path / folder / "text")).digest)
        assert len(digests) == 2

    def test_a_model_made_before_there_were_tolls_opens_and_takes_none(self, tmp_path):
        write_model(tmp_path)
        card = model_folder.read_card(tmp_path / "text")
        model_folder.write_card(
            tmp_path / "text", {k: v for k, v in card.items() if k != "hubness"}
        )
        (tmp_path / "text" / "query_bank.safetensors").unlink()
        model = models.load(str(tmp_path / "text"))
        assert not model.image.project(np.ones((2, 6), np.float32))[:, -1].any()
        assert not model.text.as_documents(model.text.encode(["a cat"], "en").caption)[:, -1].any()


def test_a_model_of_one_language_takes_every_text_for_it(tmp_path):
    write_model(tmp_path)
    card = model_folder.read_card(tmp_path / "text")
    model_folder.write_card(tmp_path / "text", {**card, "languages": ["zh"]})
    model = models.load(str(tmp_path / "text"))
    assert model.text.detect("a cat") == model.text.detect("猫") == "zh"


def test_another_tokenizer_version_is_refused_with_what_to_do(tmp_path):
    write_model(tmp_path)
    stored = tmp_path / "text" / "en.json"
    content = json.loads(stored.read_text(encoding="utf-8"))
    stored.write_text(json.dumps({**content, "tokenizer": "en-porter9"}), encoding="utf-8")
    model = models.load(str(tmp_path / "text"))
    with pytest.raises(UnknownModel, match=r"tokenizer en-porter9.*install the capsearch it was"):
        model.text.encode(["a cat"], "en")
