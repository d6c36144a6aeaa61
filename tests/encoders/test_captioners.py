"""Caption decoders in numpy, against torch; vocabularies; captioners in model folders."""

import json

import numpy as np
import pytest

from capsearch.encoders.models import captioner as captioners
from capsearch.encoders.models import model_folder
from capsearch.encoders.models.caption_search import (
    END,
    Beam,
    CaptionVocabulary,
    Hypotheses,
    build_vocabulary,
    join_words,
)
from capsearch.encoders.models.captioner import (
    WEIGHTS_FILE,
    BuiltInCaptioner,
    CaptionDecoders,
    Confidence,
    with_tags,
)
from capsearch.engine.errors import TrainingProblem, UnknownModel
from capsearch.engine.records import ImageFeatures

pytest.importorskip("torch")

import torch

from capsearch.encoders.train.caption_metrics import split_words
from capsearch.encoders.train.decoders import DECODERS, CaptionConfig, CaptionNetwork, ImageBatch

WORDS = {"en": ("a", "cat", "dog"), "zh": ("猫", "狗", "，", "一只")}
VOCABULARY = CaptionVocabulary(WORDS)
POOLED, CELLS = 6, (4, 5)


def network(architecture="transformer", groups=None, **more):
    config = CaptionConfig(architecture, width=64, layers=2, max_words=5, **more)
    made = CaptionNetwork(POOLED, CELLS, groups or {"all": VOCABULARY}, config, seed=3)
    return made.eval()


def features(count=3):
    rng = np.random.default_rng(0)
    grid = rng.normal(size=(count, *CELLS)).astype(np.float32)
    return ImageFeatures(rng.normal(size=(count, POOLED)).astype(np.float32), grid)


def opened(decoders: CaptionDecoders, images):
    part = captioners._Part(decoders.arrays, "all")
    image = captioners._Part(decoders.arrays, "image")
    output = decoders._outputs["all"]
    return captioners.DECODERS[decoders.architecture](part, image, output, images)


@pytest.mark.parametrize("architecture", DECODERS)
def test_numpy_decodes_step_by_step_what_torch_computes_at_once(architecture):
    model, images = network(architecture), features()
    rows = np.array([[2, 5, 6, 8], [2, 7, 5, 5], [2, 8, 8, 6]])  # start token of zh, then words
    with torch.no_grad():
        batch = ImageBatch(torch.from_numpy(images.pooled), torch.from_numpy(images.grid))
        decoder = model.decoder("all")
        hidden = decoder(model.image(batch), torch.from_numpy(rows))
        expected = torch.log_softmax(decoder.logits(hidden, "zh"), -1).numpy()
    served = opened(model.served(), images)
    state = served.initial(rows[:, :1])
    for at in range(rows.shape[1]):
        outputs, state = served.step(rows[:, at : at + 1], state, at)
        found = served.log_probabilities(outputs, "zh")[:, 0]
        np.testing.assert_allclose(found, expected[:, at], atol=1e-4)


def test_a_word_depends_only_on_the_words_before():
    model = network()
    images = features(1)
    batch = ImageBatch(torch.from_numpy(images.pooled), torch.from_numpy(images.grid))
    one, other = (torch.tensor([[1, 3, 4, last]]) for last in (3, 5))
    with torch.no_grad():
        memory = model.image(batch)
        first, second = (model.decoder("all")(memory, rows) for rows in (one, other))
    torch.testing.assert_close(first[:, :3], second[:, :3])
    assert not torch.allclose(first[:, 3], second[:, 3])


@pytest.mark.parametrize("size", [1, 3])
def test_batches_and_beams_do_not_change_a_caption(size):
    decoders, beam = network().served(), Beam(size, 4)
    together = decoders.captions(features(), beam)["en"]
    images = features()
    for row in range(3):
        alone = ImageFeatures(images.pooled[row : row + 1], images.grid[row : row + 1])
        found = decoders.captions(alone, beam)["en"]
        assert found.positions[0].tolist() == together.positions[row].tolist()


def test_languages_may_have_decoders_of_their_own():
    groups = {one: VOCABULARY.only(one) for one in WORDS}
    found = network("show-and-tell", groups).served().captions(features(), Beam(2, 4))
    assert set(found) == {"en", "zh"}


def test_an_unknown_decoder_is_named():
    with pytest.raises(TrainingProblem, match="no decoder 'parrot'; there is transformer"):
        network("parrot")


def test_a_transformers_width_fits_its_heads():
    with pytest.raises(TrainingProblem, match="multiple of 64"):
        CaptionNetwork(POOLED, CELLS, {"all": VOCABULARY}, CaptionConfig(width=100), seed=1)


def test_output_biases_start_at_the_frequencies():
    model = network("multimodal-rnn")
    model.decoder("all").set_frequencies({"en": np.array([9, 0, 4, 1])})
    with torch.no_grad():
        shares = torch.softmax(model.decoder("all").logits(torch.zeros(64), "en"), 0)
    torch.testing.assert_close(shares, torch.tensor([10, 1, 5, 2]) / 18)


class TestVocabulary:
    def test_rows_of_languages_do_not_overlap(self):
        assert len(VOCABULARY) == 1 + 2 + 3 + 4
        assert [VOCABULARY.start(one) for one in WORDS] == [1, 2]
        assert VOCABULARY.outputs("en").tolist() == [END, 3, 4, 5]
        assert VOCABULARY.outputs("zh").tolist() == [END, 6, 7, 8, 9]
        with pytest.raises(KeyError):
            VOCABULARY.outputs("ja")

    def test_a_caption_is_encoded_and_decoded(self):
        assert VOCABULARY.encode(("a", "cat"), "en").tolist() == [1, 2, END]
        assert VOCABULARY.decode([1, 2, END, 3], "en") == "A cat"
        assert VOCABULARY.decode([4, 1, 3, END], "zh") == "一只猫"  # no comma at the end

    def test_captions_with_unknown_words_are_not_trained_on(self):
        assert VOCABULARY.encode(("a", "zebra"), "en") is None
        assert VOCABULARY.encode((), "en") is None

    def test_words_are_chosen_by_frequency(self):
        made = build_vocabulary({"en": [("a", "cat"), ("a", "dog"), ("a", "cat")]}, 2, 9)
        assert made.words == {"en": ("a", "cat")}
        assert build_vocabulary({"en": [("a", "cat"), ("a",)]}, 1, 1).words == {"en": ("a",)}

    def test_it_is_stored_and_read(self, tmp_path):
        VOCABULARY.save(tmp_path)
        assert CaptionVocabulary.load(tmp_path).words == WORDS


@pytest.mark.parametrize(
    ("text", "language", "words"),
    [
        ("A man's well-known cat.", "en", ("a", "man's", "well-known", "cat")),
        ("一隻貓，一只狗。", "zh", ("一只", "猫", "一只", "狗")),
        ("猫が、寝ている。", "ja", ("猫", "が", "寝", "て", "いる")),
    ],
)
def test_captions_are_split_into_words_as_written(text, language, words):
    assert split_words(text, language) == words


def test_commas_are_kept_for_writing():
    assert "，" in split_words("一只猫，一只狗。", "zh", commas=True)
    assert "、" in split_words("猫が、寝ている", "ja", commas=True)


def test_latin_words_in_chinese_keep_a_space():
    assert join_words(("wii", "sports", "游戏"), "zh") == "wii sports游戏"


def write_captioner(folder, **changes):
    model = network()
    folder.mkdir(exist_ok=True)
    model_folder.save_arrays(folder / WEIGHTS_FILE, model.arrays())
    VOCABULARY.save(folder)
    card = {
        "kind": "captioner",
        "name": "toy",
        "languages": ["en", "zh"],
        "architecture": "transformer",
        "groups": {"all": ["en", "zh"]},
        "beam": {"size": 2, "max_words": 4, "length_penalty": 0.7},
        "confidence": {one: {"slope": 1.0, "intercept": 0.5} for one in WORDS},
        "backbone": "lite0",
    }
    model_folder.write_card(folder, {**card, **changes})
    return folder


def test_a_captioner_writes_one_caption_for_each_language(tmp_path):
    captioner = captioners.load(write_captioner(tmp_path))
    assert isinstance(captioner, BuiltInCaptioner)
    found = captioner.caption(features(40))  # more than a batch
    assert len(found) == 40
    for captions in found:
        assert [one.language for one in captions] == ["en", "zh"]
        assert all(one.source == f"model:{captioner.name}" for one in captions)
        assert all(0.0 <= one.confidence <= 1.0 for one in captions)
    assert captioner.caption(features(0)) == ()


def test_captions_need_the_feature_map(tmp_path):
    captioner = captioners.load(write_captioner(tmp_path))
    with pytest.raises(ValueError, match="captions need the feature map"):
        captioner.caption(ImageFeatures(features().pooled))


def test_another_search_writes_with_the_same_weights(tmp_path):
    captioner = captioners.load(write_captioner(tmp_path))
    assert captioner.searching(Beam(1, 4)).beam.size == 1


def test_a_decoder_of_a_newer_version_is_refused(tmp_path):
    write_captioner(tmp_path, architecture="mamba")
    with pytest.raises(UnknownModel, match="has a decoder 'mamba'; this capsearch has transformer"):
        captioners.load(tmp_path)


def test_tags_of_another_tagger_are_refused(tmp_path, monkeypatch):
    class Other:
        name = "tags@new"

    monkeypatch.setattr(captioners.registry, "load_tagger", lambda name: Other())
    captioner = captioners.load(write_captioner(tmp_path, tagger="tags", tagger_digest="old"))
    with pytest.raises(UnknownModel, match="trained with the tags of tags@old, but there is"):
        captioner.caption(features())


def test_tags_stand_beside_the_pooled_feature():
    class Tags:
        def probabilities(self, pooled):
            return np.full((len(pooled), 2), 0.5, np.float32)

    found = with_tags(features(), Tags())
    assert found.pooled.shape == (3, POOLED + 2)
    assert with_tags(features(), None).pooled.shape == (3, POOLED)


def test_confidence_is_a_logistic_function_of_the_mean_log_probability():
    found = Hypotheses(np.zeros((1, 1, 2), np.int64), np.array([[-4.0]], "f"), np.array([[2]]))
    assert Confidence(1.0, 2.0)(found).tolist() == [[0.5]]  # 1 * (-4 / 2) + 2 = 0


def test_the_card_of_a_captioner_is_json(tmp_path):
    write_captioner(tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["kind"] == "captioner"
