"""A training problem with a known answer: each word names an axis of the feature space."""

from functools import cache

import numpy as np
import torch

from capsearch.encoders.text.tokenizers import tokenizer
from capsearch.encoders.train.captions import Captions, Vocabulary
from capsearch.encoders.train.dual_encoder import DualEncoder, TrainingOptions, TrainingSet
from capsearch.encoders.train.w2vv import TextConfig

torch.set_num_threads(1)  # these problems are too small for more

SMALL = TextConfig(bow_width=12, word_width=8, gru_width=10, hidden=24)
WORDS = {
    "en": ("a", "blue", "car", "cat", "green", "red", "tree"),
    "zh": ("一", "红色", "绿色", "蓝色", "猫", "车"),
    "ja": ("猫", "緑", "赤い", "車", "青い"),
}
FEATURES = 6


@cache
def vocabulary(language):
    splitter = tokenizer(language)
    if language == "zh":
        splitter = splitter.pinned(set(WORDS["zh"]))
    return Vocabulary(language, WORDS[language], splitter)


def options(**changes):
    made = {"dimension": 8, "epochs": 3, "batch_size": 16, "lr": 5e-3, "config": SMALL}
    return TrainingOptions(**{**made, **changes})


def random_model(vocabularies, settings=None, features=FEATURES, **parts):
    """A dual encoder with random word vectors."""
    settings = settings or options()
    width, generator = settings.config.word_width, torch.Generator().manual_seed(settings.seed)
    vectors = {
        language: torch.randn(len(one.words), width, generator=generator) * 0.1
        for language, one in vocabularies.items()
    }
    return DualEncoder(vocabularies, vectors, features, settings, **parts)


def captions(image_rows, token_ids, seed=0):
    """Captions with the given token ids and random unit sentence vectors."""
    sentence = np.random.default_rng(seed).normal(size=(len(image_rows), 512)).astype(np.float32)
    sentence /= np.linalg.norm(sentence, axis=1, keepdims=True)
    return Captions(
        np.array(image_rows, np.int64),
        ids=[np.array(ids, np.int64) for ids in token_ids],
        sentence=sentence.astype(np.float16),
        concepts=np.full(len(image_rows), -1, np.int64),
    )


def axes(count, seed=0, languages=("en",)):
    """Image i lies along axis i % 6 (with noise), and its two captions are the word i % 6."""
    rng = np.random.default_rng(seed)
    kinds = np.arange(count) % FEATURES
    features = np.eye(FEATURES, dtype=np.float32)[kinds] * 2
    features = features + rng.normal(0, 0.05, features.shape).astype(np.float32)
    by_language = {
        language: captions(
            np.repeat(np.arange(count), 2), [[kind] for kind in np.repeat(kinds, 2)], seed
        )
        for language in languages
    }
    return TrainingSet(features[None], by_language)
