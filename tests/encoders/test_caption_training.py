"""Training of captioners: captions, schemes, the loop, confidence and metrics."""

from dataclasses import replace

import numpy as np
import pytest

from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.layouts import CaptionedImage
from capsearch.encoders.models.caption_search import Beam
from capsearch.encoders.train import caption_metrics
from capsearch.engine.errors import MissingExtra, TrainingProblem
from capsearch.engine.records import Caption

pytest.importorskip("torch")
pytest.importorskip("pycocoevalcap")

import torch
from small_problems import FEATURES, axes, random_model, vocabulary
from small_problems import options as small_options

from capsearch.encoders.train.activations import EncodedImages
from capsearch.encoders.train.caption_match import fit_confidence, is_right
from capsearch.encoders.train.caption_metrics import cider
from capsearch.encoders.train.caption_run import SCHEMES, stages_of
from capsearch.encoders.train.caption_trainer import (
    CaptionSet,
    CaptionTrainer,
    ReferenceSet,
    ciders,
)
from capsearch.encoders.train.captions import encode, main_captions, tokenise, vocabulary_of
from capsearch.encoders.train.decoders import CaptionConfig, CaptionNetwork
from capsearch.encoders.train.dual_encoder import TrainingOptions
from capsearch.encoders.train.trainer import Trainer

THINGS = {"cat": "猫", "dog": "狗", "horse": "马", "bus": "公交车"}
LANGUAGES = ("en", "zh")


def captioned(number, thing, source="coco"):
    texts = {"en": f"a {thing} on the road", "zh": f"路上有一只{THINGS[thing]}"}
    captions = {one: (Caption(text, one, source),) for one, text in texts.items()}
    return CaptionedImage(str(number), "train", f"{number}.jpg", captions)


def images(count=16):
    """Features that tell what an image shows, and captions that say it."""
    things = list(THINGS)
    data = CaptionDataset(tuple(captioned(n, things[n % 4]) for n in range(count)))
    pooled = np.eye(4, dtype=np.float32)[np.arange(count) % 4] * 3
    return EncodedImages(data, pooled, np.repeat(pooled[:, None], 2, 1).astype(np.float16))


def trainer(path=None, epochs=25, alternate=False, groups=None):
    found = images()
    captions = tokenise(found.data, LANGUAGES, max_words=8)
    vocabulary = vocabulary_of(captions, min_count=1)
    groups = {name: vocabulary.only(*one) for name, one in (groups or {"all": LANGUAGES}).items()}
    config = CaptionConfig(width=64, layers=1, max_words=8, dropout=0.0, label_smoothing=0.0)
    network = CaptionNetwork(4, (2, 4), groups, config, seed=1)
    options = TrainingOptions(
        epochs=epochs, batch_size=4, lr=1e-2, captions_per_image=1, ema_epochs=0.1, patience=99
    )
    train = CaptionSet(found, {one: encode(captions[one], vocabulary, one) for one in LANGUAGES})
    validation = ReferenceSet(found, caption_metrics.references_of(found.data, LANGUAGES))
    return CaptionTrainer(network, train, validation, options, path, alternate)


@pytest.fixture(scope="module")
def trained():
    one = trainer()
    for _ in one.fit():
        pass
    return one


def test_a_captioner_learns_to_say_what_is_there(trained):
    assert trained.best.metric == "CIDEr-D"
    assert min(trained.best.validation.values()) > 5  # 10 is a copy of the references
    found = trained.averaged.module.served()
    scores = ciders(found, trained.validation, Beam(3, 8))
    assert scores["zh"] == pytest.approx(trained.best.validation["zh"], abs=1.0)


def test_a_resumed_run_has_the_same_weights(tmp_path):
    whole, first = trainer(epochs=3), trainer(tmp_path / "c.safetensors", epochs=3)
    list(whole.fit())
    epochs = first.fit()
    next(epochs)
    second = trainer(tmp_path / "c.safetensors", epochs=3)
    second.resume()
    assert second.epoch == 1
    list(second.fit())
    for name, value in whole.averaged.module.state_dict().items():
        assert value.equal(second.averaged.module.state_dict()[name]), name


def test_in_bfloat16_the_loss_is_nearly_that_of_float32():
    losses = []
    for bfloat16 in (False, True):
        one = trainer()
        one.options = replace(one.options, bfloat16=bfloat16)
        one.model.eval()
        losses.append(one.loss(np.arange(8), np.random.default_rng(0)).item())
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


def test_alternating_batches_train_one_language_at_a_time():
    one = trainer(alternate=True, groups={"en": ("en",), "zh": ("zh",)})
    one.step = 1
    one.loss(np.arange(8), np.random.default_rng(0)).backward()
    assert one.model.decoder("en").embedding.weight.grad is None
    assert one.model.decoder("zh").embedding.weight.grad is not None


def test_a_batch_without_captions_is_an_error():
    one = trainer()
    one.train = CaptionSet(one.train.images, {})
    with pytest.raises(TrainingProblem, match="a batch without captions"):
        one.loss(np.arange(2), np.random.default_rng(0))


def test_confidence_is_high_where_captions_are_right(trained):
    decoders = trained.averaged.module.served()
    found = fit_confidence(decoders, trained.validation, Beam(2, 8))
    assert set(found) == set(LANGUAGES)
    hypotheses = decoders.captions(trained.validation.images.at(np.arange(4)), Beam(2, 8))
    assert (found["en"](hypotheses["en"]) > 0.8).all()


def test_a_caption_is_right_if_it_names_nothing_else():
    assert is_right("a cat on the road", "en", frozenset({"cat", "road"}))
    assert is_right("an animal on the road", "en", frozenset({"cat", "road"}))
    assert not is_right("a dog on the road", "en", frozenset({"cat", "road"}))
    assert is_right("路上有一只猫", "zh", frozenset({"cat", "road"}))


class TestCaptions:
    def test_long_captions_are_left_out(self):
        found = tokenise(images(2).data, ("en",), max_words=8)["en"]
        assert found.words[0] == ("a", "cat", "on", "the", "road")
        with pytest.raises(TrainingProblem, match="no en captions in split 'train'"):
            tokenise(images(2).data, ("en",), max_words=3)

    def test_captions_that_people_wrote_come_last_in_sequential_training(self):
        data = CaptionDataset((captioned(0, "cat"), captioned(1, "dog", source="llm-long")))
        found = tokenise(data, ("en",), 8)["en"]
        assert main_captions(found).image_rows.tolist() == [0]

    def test_without_main_sources_all_captions_count(self):
        found = tokenise(CaptionDataset((captioned(0, "cat", source="mine"),)), ("en",), 8)["en"]
        assert main_captions(found).image_rows.tolist() == [0]

    def test_a_language_without_frequent_words_is_named(self):
        with pytest.raises(TrainingProblem, match="no en word occurs 9 times"):
            vocabulary_of(tokenise(images(2).data, ("en",), 8), min_count=9)


class TestSchemes:
    def test_every_scheme_has_stages(self):
        for scheme in SCHEMES:
            languages = ("zh",) if scheme == "monolingual" else ("en", "zh")
            first = stages_of(scheme, languages)[0]
            assert first.keep == ("everything" if first.needs_captioner else "nothing")

    def test_transfer_keeps_the_embedding_of_the_image(self):
        first, second = stages_of("transfer", ("en", "ja"))
        assert (first.languages, second.languages, second.keep) == (("en",), ("ja",), "image")

    def test_sequential_training_ends_with_main_captions_at_a_tenth_of_the_rate(self):
        first, second = stages_of("sequential", ("en", "ja"))
        assert (first.main, second.main) == (False, True)
        assert (second.keep, second.lr) == ("everything", 0.1)

    def test_self_training_learns_from_picked_captions_too(self):
        (stage,) = stages_of("self-training", ("en", "ja"))
        assert (stage.main, stage.picked, stage.needs_captioner) == (True, True, True)

    def test_alternate_training_has_a_decoder_for_each_language(self):
        (stage,) = stages_of("alternate", ("en", "ja"))
        assert stage.groups == {"en": ("en",), "ja": ("ja",)}

    @pytest.mark.parametrize(
        ("scheme", "languages", "message"),
        [
            ("monolingual", ("en", "ja"), "one language; give one --lang"),
            ("transfer", ("ja",), "from English to other languages"),
            ("alternate", ("ja",), "several languages"),
            ("artificial-token", ("ja",), "several languages"),
            ("osmosis", ("ja",), "no scheme called 'osmosis'; there is sequential"),
        ],
    )
    def test_languages_that_a_scheme_cannot_have_are_named(self, scheme, languages, message):
        with pytest.raises(TrainingProblem, match=message):
            stages_of(scheme, languages)


REFERENCES = {0: ("a cat on the road",), 1: ("a dog in the house",)}


class TestMetrics:
    def test_a_copy_of_the_reference_has_the_highest_scores(self, monkeypatch):
        monkeypatch.setattr(caption_metrics, "has_java", lambda: False)
        copied = caption_metrics.all_scores(
            {0: "A cat on the road.", 1: "A dog in the house"}, REFERENCES, "en"
        )
        assert copied["BLEU-4"] == pytest.approx(1.0)
        assert copied["ROUGE-L"] == pytest.approx(1.0)
        assert copied["CIDEr-D"] == pytest.approx(10.0)
        assert "METEOR" not in copied

    def test_unrelated_captions_score_nothing(self):
        assert cider({0: "zebras", 1: "zebras"}, REFERENCES, "en") == 0.0

    def test_references_are_words_without_punctuation(self):
        found = caption_metrics.references_of(images(1).data, ("zh",))
        assert found == {"zh": {0: ("路上 有 一只 猫",)}}

    def test_without_pycocoevalcap_the_extra_is_named(self, monkeypatch):
        import sys

        monkeypatch.setitem(sys.modules, "pycocoevalcap.cider.cider", None)
        monkeypatch.setitem(sys.modules, "pycocoevalcap.bleu.bleu", None)
        for measure in (caption_metrics.cider, caption_metrics.all_scores):
            with pytest.raises(MissingExtra, match="bench"):
                measure({}, {}, "en")


class TestJointLearning:
    def trainer(self, weight):
        settings = small_options(generation_loss_weight=weight)
        backbone = torch.nn.Linear(FEATURES, FEATURES)
        model = random_model({"en": vocabulary("en")}, settings, backbone=backbone)
        return Trainer(model, axes(16), axes(6), settings)

    def test_the_loss_of_writing_captions_trains_the_backbone(self, monkeypatch):
        one = self.trainer(weight=0.5)
        monkeypatch.setattr(one, "_caption_loss", lambda images, rows, rng: torch.zeros(()))
        loss = one.loss(np.arange(8), np.random.default_rng(0))
        # Seven words and the end, nearly equally likely at first.
        assert loss.item() / 0.5 == pytest.approx(np.log(7 + 1), abs=0.5)
        loss.backward()
        assert one.model.backbone.weight.grad.abs().sum() > 0

    def test_without_a_weight_there_is_no_decoder(self):
        assert self.trainer(weight=0.0).model.generation is None
