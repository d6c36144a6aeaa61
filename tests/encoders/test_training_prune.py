"""Pruning hidden units: which are selected, and an output layer refitted to the same vectors."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import captions, options, random_model, vocabulary  # noqa: E402

from capsearch.encoders.train.dual_encoder import encode_with  # noqa: E402
from capsearch.encoders.train.prune import prune  # noqa: E402
from capsearch.encoders.train.w2vv import TextConfig  # noqa: E402
from capsearch.engine.errors import TrainingProblem  # noqa: E402

HIDDEN = 24


@pytest.fixture
def text():
    config = TextConfig(bow_width=12, word_width=8, gru_width=10, hidden=HIDDEN)
    languages = {language: vocabulary(language) for language in ("en", "zh")}
    return random_model(languages, options(config=config)).text.eval()


@pytest.fixture
def sample():
    words = [[at % 6, at % 5] for at in range(200)]
    return {
        language: captions(range(200), words, seed) for seed, language in enumerate(("en", "zh"))
    }


def cosines(one, other, sample):
    return np.concatenate(
        [
            (encode_with(one, rows, language) * encode_with(other, rows, language)).sum(axis=1)
            for language, rows in sample.items()
        ]
    )


def test_units_without_influence_are_removed_first_and_vectors_stay(text, sample):
    unused = torch.arange(0, HIDDEN, 2)
    with torch.no_grad():
        text.out.weight[:, unused] = 0.0
    smaller = prune(text, sample, HIDDEN // 2, seed=1)
    assert smaller.config.hidden == smaller.out.in_features == HIDDEN // 2
    used = text.sentence.weight[1::2]
    torch.testing.assert_close(smaller.sentence.weight, used)
    assert cosines(text, smaller, sample).mean() > 0.999


def test_the_refitted_output_compensates_for_removed_units(text, sample):
    smaller = prune(text, sample, HIDDEN - 6, seed=1)
    refitted = cosines(text, smaller, sample).mean()
    before = text.sentence.weight
    columns = [int((before == row).all(dim=1).nonzero()[0]) for row in smaller.sentence.weight]
    with torch.no_grad():  # the same units with the original output layer
        smaller.out.weight.copy_(text.out.weight[:, columns])
        smaller.out.bias.copy_(text.out.bias)
    assert refitted > cosines(text, smaller, sample).mean()
    assert refitted > 0.95


def test_the_given_model_is_not_changed_and_its_own_size_returns_it(text, sample):
    before = {name: value.clone() for name, value in text.state_dict().items()}
    prune(text, sample, HIDDEN // 2, seed=1)
    for name, value in text.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert prune(text, sample, HIDDEN, seed=1) is text


def test_more_units_than_the_model_has_are_refused(text, sample):
    with pytest.raises(TrainingProblem, match="has 24 hidden units, not 25"):
        prune(text, sample, HIDDEN + 1, seed=1)
