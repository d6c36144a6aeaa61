"""The losses of a student: a teacher's image vectors, also with a backbone in bfloat16."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from small_problems import axes, options, random_model, vocabulary  # noqa: E402

from capsearch.encoders.train.dual_encoder import project  # noqa: E402
from capsearch.encoders.train.trainer import Trainer  # noqa: E402

VOCABULARIES = {"en": vocabulary("en")}
ROWS = np.arange(16)


def teacher_vectors(count, dimension=8):
    """Unit vectors, the same for images of one kind; unlike those that captions lead to."""
    kinds = np.random.default_rng(4).normal(size=(6, dimension)).astype(np.float32)
    kinds /= np.linalg.norm(kinds, axis=1, keepdims=True)
    return kinds[np.arange(count) % 6]


def trainer(weight, taught=True, **settings):
    chosen = options(distillation_weight=weight, **settings)
    train = replace(axes(48), teacher=teacher_vectors(48)) if taught else axes(48)
    torch.manual_seed(0)
    backbone = torch.nn.Linear(6, 6)
    model = random_model(VOCABULARIES, chosen, backbone=backbone)
    return Trainer(model, train, axes(6, seed=9), chosen)


def distance(trained):
    return 1.0 - (project(trained.model, trained.train) * teacher_vectors(48)).sum(1).mean()


def loss(made):
    made.model.eval()  # without dropout
    return made.loss(ROWS, np.random.default_rng(0))


def test_the_distance_to_the_teacher_is_one_minus_the_mean_cosine():
    made, plain = trainer(2.0), trainer(2.0, taught=False)
    cosines = (project(made.model, made.train) * teacher_vectors(48)).sum(1)[ROWS]
    expected = loss(plain).item() + 2.0 * (1.0 - cosines.mean())
    assert loss(made).item() == pytest.approx(expected, rel=1e-5)


def test_the_distance_falls_in_training():
    taught, alone = (trainer(weight, epochs=40, lr=1e-2, patience=40) for weight in (5.0, 0.0))
    before = distance(taught)
    for one in (taught, alone):
        list(one.fit())
    assert distance(taught) < 0.5 * before
    assert distance(taught) < distance(alone)


def test_with_weight_0_a_teacher_changes_nothing():
    with_teacher, without = trainer(0.0), trainer(0.0, taught=False)
    assert [epoch.loss for epoch in with_teacher.fit()] == [epoch.loss for epoch in without.fit()]
    for name, value in without.model.state_dict().items():
        assert torch.equal(value, with_teacher.model.state_dict()[name]), name


def test_a_backbone_in_bfloat16_gives_nearly_the_loss_and_the_gradients_of_float32():
    gradients, losses = [], []
    for bfloat16 in (False, True):
        made = trainer(5.0, bfloat16=bfloat16)
        found = loss(made)
        found.backward()
        losses.append(found.item())
        gradients.append(made.model.backbone.weight.grad)
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=0.02)
    assert torch.cosine_similarity(gradients[0].flatten(), gradients[1].flatten(), 0) > 0.999
