"""The text encoder at search time: the trained network, in numpy with int8 weights."""

import json
from dataclasses import asdict

import numpy as np
import pytest
from small_models import write_backbone_card, write_sentence_model

from capsearch.encoders.models import model_folder, registry
from capsearch.engine.errors import UnknownLanguage, UnknownModel

torch = pytest.importorskip("torch")

from small_problems import SMALL, options, random_model, vocabulary  # noqa: E402

from capsearch.encoders.models.hubness import HubnessPenalty, QueryBank  # noqa: E402
from capsearch.encoders.models.w2vv import (  # noqa: E402
    MAX_TOKENS,
    gru,
)
from capsearch.encoders.train.export import (  # noqa: E402
    export_text,
    load_text,
)
from capsearch.encoders.train.w2vv import TextConfig, TokenBatch  # noqa: E402
from capsearch.engine.vectors import strip_bias  # noqa: E402

SENTENCE_WEIGHT = 0.3
PENALTIES = {"image": HubnessPenalty(0.5, 20.0, 0.2), "caption": HubnessPenalty(1.0, 10.0, 0.1)}
# A quarter of the bank's queries lie on the first axis of either space, the rest on the second.
BANK = QueryBank(
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
    """A text model in folder/text with random weights, the models it builds on; the torch model."""
    sentence = write_sentence_model(folder / "sentence")
    backbone = write_backbone_card(folder / "backbone")
    vocabularies = {language: vocabulary(language) for language in TEXTS}
    network = random_model(vocabularies, options(config=config, seed=seed)).eval()
    card = {
        "name": "small",
        "languages": list(TEXTS),
        "dimension": 8,
        "backbone": str(backbone),
        "backbone_digest": model_folder.read_card(backbone)["digest"],
        "sentence": str(sentence),
        "clm_weights": dict.fromkeys(TEXTS, 0.4),
        "cl_floors": dict.fromkeys(TEXTS, 0.1),
        "sentence_weight": SENTENCE_WEIGHT,
        "hubness": {side: asdict(penalty) for side, penalty in penalties.items()},
    }
    export_text(network, vocabularies, BANK, folder / "text", card)
    return network, vocabularies


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    network, vocabularies = write_model(folder)
    return network, vocabularies, registry.load(str(folder / "text"))


@pytest.fixture(scope="module")
def model(made):
    return made[2]


def torch_vectors(network, vocabularies, sentences, texts, language):
    """The vectors of the torch network, with the tokenizer of training."""
    known = vocabularies[language]
    token_ids = [torch.from_numpy(known.token_ids(known.tokenizer.tokens(text))) for text in texts]
    with torch.no_grad():
        sentence = torch.from_numpy(sentences.encode(texts))
        return network(TokenBatch(token_ids, sentence), language).numpy()


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


def test_requests_are_searched_by_what_they_ask_for(model):
    for asked, language, meant in (("where is the cat?", "en", "cat"), ("有猫的照片", "zh", "猫")):
        request = model.text.understand(asked, language)
        plain = model.text.understand(meant, language)
        np.testing.assert_array_equal(request.vectors.visual, plain.vectors.visual)
        assert (request.keywords, request.concepts) == (plain.keywords, plain.concepts)


class TestNumpyAndTorch:
    @pytest.mark.parametrize("language", TEXTS)
    def test_agree_within_the_rounding_to_int8(self, made, language):
        network, vocabularies, model = made
        texts = [t for t in TEXTS[language] if t != "紅色的車"]  # training simplifies before
        served = strip_bias(model.text.encode(texts, language).visual)
        trained = torch_vectors(network.text, vocabularies, model.text.sentences, texts, language)
        np.testing.assert_allclose(served, trained, atol=0.02)

    @pytest.mark.parametrize("language", TEXTS)
    def test_agree_exactly_if_both_have_int8_weights(self, made, tmp_path, language):
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
    def test_agree_for_every_variant(self, tmp_path, pooling, inputs):
        sizes = {"bow_width": 12, "word_width": 8, "gru_width": 10, "hidden": 24}
        config = TextConfig(inputs=inputs, pooling=pooling, **sizes)
        trained, vocabularies = write_model(tmp_path, config)
        model = registry.load(str(tmp_path / "text"))
        texts = ["a red car", "a cat"]
        served = strip_bias(model.text.encode(texts, "en").visual)
        for network, atol in ((trained.text, 0.02), (load_text(str(tmp_path / "text"))[0], 1e-5)):
            expected = torch_vectors(network, vocabularies, model.text.sentences, texts, "en")
            np.testing.assert_allclose(served, expected, atol=atol)

    def test_agree_for_the_image_projection(self, made):
        network, _, model = made
        features = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
        with torch.no_grad():
            expected = network.image(torch.from_numpy(features)).numpy()
        np.testing.assert_allclose(strip_bias(model.image.project(features)), expected, atol=0.02)

    def test_have_the_same_gru(self):
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
    def test_rows_are_unit_vectors_and_the_query_coordinate_1(self, model):
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
            (1 - SENTENCE_WEIGHT) * shared + SENTENCE_WEIGHT * sentence, abs=1e-5
        )
        assert model.text.caption_dimension == first.caption.shape[1] == 8 + 512 + 1

    @pytest.mark.parametrize("language", TEXTS)
    @pytest.mark.parametrize("text", ["", "…", "?!", "🦓", "  ", "ж"])
    def test_text_without_known_words_is_zero_and_unknown(self, model, text, language):
        encoded = model.text.encode(["", text], language)
        assert encoded.known == (False, False)
        assert not encoded.visual.any()
        assert not encoded.caption.any()

    def test_unknown_texts_do_not_change_the_other_rows(self, model):
        alone = model.text.encode(["a red car"], "en")
        beside = model.text.encode(["…", "a red car", ""], "en")
        assert beside.known == (False, True, False)
        np.testing.assert_allclose(beside.visual[1], alone.visual[0], atol=1e-6)
        np.testing.assert_allclose(beside.caption[1], alone.caption[0], atol=1e-6)

    def test_a_word_that_only_the_sentence_encoder_has_is_known(self, model):
        # "c" is a piece of the sentence encoder, and not in the vocabulary
        assert model.text.encode(["c"], "en").known == (True,)

    def test_traditional_is_encoded_like_simplified(self, model):
        encoded = model.text.encode(["红色的车", "紅色的車"], "zh")
        # Not exact: a matrix product may sum the rows of a batch in different order.
        np.testing.assert_allclose(encoded.visual[0], encoded.visual[1], atol=1e-6)

    def test_no_texts_give_no_rows(self, model):
        encoded = model.text.encode([], "en")
        assert encoded.visual.shape == (0, 9)
        assert encoded.caption.shape == (0, 521)
        assert encoded.known == ()

    def test_tokens_are_truncated_and_unknown_ones_left_out(self, model):
        encoder = model.text.encoders["en"]
        assert len(encoder.token_ids(["red"] * 100)) == MAX_TOKENS
        assert encoder.token_ids(encoder.read("zebra red okapi cat").tokens).tolist() == [5, 3]

    def test_an_unknown_language_is_refused(self, model):
        with pytest.raises(UnknownLanguage, match="small does not read 'fr'; it reads en, zh, ja"):
            model.text.encode(["un chat"], "fr")

    def test_clm_weight_and_cl_floor_come_from_the_card(self, model):
        assert model.text.convex("zh").weight == 0.4
        assert model.text.convex("ja").floor == 0.1
        assert model.text.languages == ("en", "zh", "ja")


class TestHubnessPenalty:
    def test_of_an_image_follows_its_similarity_to_the_query_bank(self, made):
        _, _, model = made
        features = np.random.default_rng(1).normal(size=(4, 6)).astype(np.float32)
        vectors = model.image.project(features)
        cosines = strip_bias(vectors)[:, :2]  # with the query bank's two centres
        similarity = np.log(np.exp(20 * cosines) @ [0.25, 0.75]) / 20
        np.testing.assert_allclose(vectors[:, -1], -0.5 * (similarity - 0.2), atol=0.003)

    def test_of_a_caption_is_computed_in_the_space_of_caption_vectors(self, model):
        encoded = model.text.encode(["a red car", "a blue cat"], "en").caption
        documents = model.text.as_documents(encoded)
        np.testing.assert_array_equal(strip_bias(documents), strip_bias(encoded))
        vectors = strip_bias(encoded)
        cosines = (
            np.sqrt(1 - SENTENCE_WEIGHT) * vectors[:, :2]
            + np.sqrt(SENTENCE_WEIGHT) * vectors[:, 8:10]
        )
        similarity = np.log(np.exp(10 * cosines) @ [0.25, 0.75]) / 10
        np.testing.assert_allclose(documents[:, -1], -(similarity - 0.1), atol=0.003)

    def test_of_a_caption_without_known_words_is_zero(self, model):
        encoded = model.text.encode(["…", "a cat"], "en").caption
        assert not model.text.as_documents(encoded)[0].any()

    def test_needs_the_query_bank(self, tmp_path):
        write_model(tmp_path)
        (tmp_path / "text" / "query_bank.safetensors").unlink()
        model = registry.load(str(tmp_path / "text"))
        with pytest.raises(UnknownModel, match=r"has no query_bank\.safetensors"):
            model.image.project(np.ones((2, 6), np.float32))

    def test_is_part_of_the_digest(self, tmp_path):
        digests = set()
        for folder, penalties in (
            ("one", PENALTIES),
            ("two", {**PENALTIES, "image": HubnessPenalty(0.25, 20.0, 0.2)}),
        ):
            (tmp_path / folder).mkdir()
            torch.manual_seed(0)
            write_model(tmp_path / folder, penalties=penalties)
            digests.add(registry.load(str(tmp_path / folder / "text")).digest)
        assert len(digests) == 2

    def test_is_zero_for_a_model_without_one(self, tmp_path):
        write_model(tmp_path)
        card = model_folder.read_card(tmp_path / "text")
        model_folder.write_card(
            tmp_path / "text", {k: v for k, v in card.items() if k != "hubness"}
        )
        (tmp_path / "text" / "query_bank.safetensors").unlink()
        model = registry.load(str(tmp_path / "text"))
        assert not model.image.project(np.ones((2, 6), np.float32))[:, -1].any()
        assert not model.text.as_documents(model.text.encode(["a cat"], "en").caption)[:, -1].any()


def test_a_model_of_one_language_detects_every_text_as_that(tmp_path):
    write_model(tmp_path)
    card = model_folder.read_card(tmp_path / "text")
    model_folder.write_card(tmp_path / "text", {**card, "languages": ["zh"]})
    model = registry.load(str(tmp_path / "text"))
    assert model.text.detect("a cat") == model.text.detect("猫") == "zh"


def test_another_tokenizer_version_is_refused_with_the_way_out(tmp_path):
    write_model(tmp_path)
    stored = tmp_path / "text" / "en.json"
    content = json.loads(stored.read_text(encoding="utf-8"))
    stored.write_text(json.dumps({**content, "tokenizer": "en-porter9"}), encoding="utf-8")
    model = registry.load(str(tmp_path / "text"))
    with pytest.raises(UnknownModel, match=r"tokenizer en-porter9.*install the capsearch it was"):
        model.text.encode(["a cat"], "en")
