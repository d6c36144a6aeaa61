"""Fewer hidden units: the ones that tell most, and an output that says the same."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import captions, options, random_pair, vocabulary  # noqa: E402

from capsearch.encoders.training.fit.prune import pruned  # noqa: E402
from capsearch.encoders.training.nn.dual_encoder import encode_with  # noqa: E402
from capsearch.encoders.training.nn.w2vv import TextConfig  # noqa: E402
from capsearch.engine.errors import TrainingProblem  # noqa: E402

HIDDEN = 24


@pytest.fixture
def text():
    config = TextConfig(bow_width=12, word_width=8, gru_width=10, hidden=HIDDEN)
    languages = {language: vocabulary(language) for language in ("en", "zh")}
    return random_pair(languages, options(config=config)).text.eval()


@pytest.fixture
def told():
    words = [[at % 6, at % 5] for at in range(200)]
    return {
        language: captions(range(200), words, seed) for seed, language in enumerate(("en", "zh"))
    }


def cosines(one, other, told):
    return np.concatenate(
        [
            (encode_with(one, rows, language) * encode_with(other, rows, language)).sum(axis=1)
            for language, rows in told.items()
        ]
    )


def test_units_that_say_nothing_go_first_and_nothing_is_lost(text, told):
    silent = torch.arange(0, HIDDEN, 2)
    with torch.no_grad():
        text.out.weight[:, silent] = 0.0
    narrow = pruned(text, told, HIDDEN // 2, seed=1)
    assert narrow.config.hidden == narrow.out.in_features == HIDDEN // 2
    kept = text.sentence.weight[1::2]
    torch.testing.assert_close(narrow.sentence.weight, kept)
    assert cosines(text, narrow, told).mean() > 0.999


def test_the_output_makes_up_for_the_units_that_left(text, told):
    narrow = pruned(text, told, HIDDEN - 6, seed=1)
    refitted = cosines(text, narrow, told).mean()
    before = text.sentence.weight
    columns = [int((before == row).all(dim=1).nonzero()[0]) for row in narrow.sentence.weight]
    with torch.no_grad():  # the same units with the output as it was
        narrow.out.weight.copy_(text.out.weight[:, columns])
        narrow.out.bias.copy_(text.out.bias)
    assert refitted > cosines(text, narrow, told).mean()
    assert refitted > 0.95


def test_the_model_given_stays_as_it_was_and_its_own_width_changes_nothing(text, told):
    before = {name: value.clone() for name, value in text.state_dict().items()}
    pruned(text, told, HIDDEN // 2, seed=1)
    for name, value in text.state_dict().items():
        torch.testing.assert_close(value, before[name])
    assert pruned(text, told, HIDDEN, seed=1) is text


def test_no_model_grows(text, told):
    with pytest.raises(TrainingProblem, match="has 24 hidden units, not 25"):
        pruned(text, told, HIDDEN + 1, seed=1)
