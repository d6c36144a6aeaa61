"""Distillation: text encoders that learn the space of a CLIP-like model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
import torch
from small_problems import FEATURES, axes, captions, options, random_model, vocabulary

from capsearch.encoders.settings import TextRun
from capsearch.encoders.train.captions import NO_IMAGE
from capsearch.encoders.train.dual_encoder import TrainingSet, encode
from capsearch.encoders.train.text_run import find_teacher, read_sentences, taught
from capsearch.encoders.train.trainer import Distillation, Trainer
from capsearch.engine.errors import TrainingProblem


def test_sentences_are_sorted_by_language_and_simplified(tmp_path: Path) -> None:
    file = tmp_path / "s.txt"
    file.write_text("a red car\n\n一輛紅色的車\n赤い車\n", encoding="utf-8")
    assert read_sentences([file], ["en", "zh"]) == {"en": ["a red car"], "zh": ["一辆红色的车"]}
    with pytest.raises(TrainingProblem, match="no sentence in ja"):
        (tmp_path / "e.txt").write_text("only English\n")
        read_sentences([tmp_path / "e.txt"], ["ja"])


def test_the_distance_is_one_minus_the_cosine_and_only_where_there_is_a_teacher() -> None:
    known = replace(captions([0, 1], [[0], [1]]), teacher=np.eye(2, 8, dtype=np.float16))
    distillation = Distillation({"en": known, "zh": captions([0], [[0]])}, 4)
    texts = torch.tensor([[0.6, 0.8, 0, 0, 0, 0, 0, 0]])
    (distance,) = distillation.distances("en", np.array([1]), texts)
    assert distance.tolist() == pytest.approx([1 - 0.8])
    assert distillation.distances("zh", np.array([0]), texts) == []


def test_sentences_without_images_are_drawn_for_their_teacher_only() -> None:
    rows = [0, NO_IMAGE, NO_IMAGE, 1]
    known = replace(captions(rows, [[0]] * 4), teacher=np.eye(4, 8, dtype=np.float16))
    unknown = captions(rows, [[0]] * 4)
    drawn = dict(Distillation({"en": known, "zh": unknown}, 2).without_image(rng()))
    assert {language: sorted(found) for language, found in drawn.items()} == {"en": [1, 2]}


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_captions_keep_the_teachers_vectors_when_some_are_drawn() -> None:
    class Teacher:
        def encode(self, texts: list[str]) -> np.ndarray:
            return np.array([[len(text)] * 8 for text in texts], np.float32)

    two = taught(replace(captions([0, 1], [[0], [1]]), texts=["a", "bbb"]), Teacher())
    assert two.teacher[:, 0].tolist() == [1, 3]
    assert sorted(two.some(2, rng()).teacher[:, 0].tolist()) == [1, 3]
    assert len(taught(captions([], []), Teacher()).teacher) == 0


def test_a_teacher_teaches_words_that_no_image_shows() -> None:
    """Word 5 occurs only in sentences without images; its target is an axis of its own."""
    settings = options(space="teacher", dimension=FEATURES, epochs=60, distillation_weight=5.0)
    data = axes(30)
    shown = [row for row, ids in enumerate(data.captions["en"].ids) if int(ids[0]) != 5]
    paired = data.captions["en"]
    rows = np.append(paired.image_rows[shown], np.full(10, NO_IMAGE))
    ids = [*(int(paired.ids[row][0]) for row in shown), *[5] * 10]
    taught_captions = replace(
        captions(rows, [[one] for one in ids]),
        teacher=np.eye(FEATURES, dtype=np.float16)[ids],
    )
    train = TrainingSet(data.inputs, {"en": taught_captions})
    model = random_model({"en": vocabulary("en")}, settings)
    trainer = Trainer(model, train, data, replace(settings, patience=60))
    list(trainer.fit())
    word = captions([0], [[5]], seed=3)
    found = encode(trainer.averaged.module, word, "en")[0]
    assert int(found.argmax()) == 5


def run(**changes: object) -> TextRun:
    return TextRun(data=(), name="x", **changes)  # type: ignore[arg-type]


def test_what_a_teacher_cannot_be() -> None:
    assert find_teacher(run()) is None
    with pytest.raises(TrainingProblem, match="need a --teacher"):
        find_teacher(run(sentences=(Path("x"),)))
    with pytest.raises(TrainingProblem, match="trio is no CLIP-like model"):
        find_teacher(run(teacher="trio"))
    with pytest.raises(TrainingProblem, match="--variant w2vv"):
        find_teacher(run(teacher="small", variant="w2vv"))
    with pytest.raises(TrainingProblem, match="the image tower of the --teacher"):
        find_teacher(run(teacher="small", backbone="lite0"))
