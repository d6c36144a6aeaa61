"""The trainer of text encoders, image projection and, if it is to be fine-tuned, the backbone.

Its inputs are either cached features (`capsearch train text`: the backbone is the identity) or
cached activations of the frozen lower blocks (`capsearch train backbone`: the backbone is the
upper blocks, which are fine-tuned).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from capsearch.encoders.training.fit.caption_loss import CaptionLoss, Side
from capsearch.encoders.training.fit.corpus import LanguageCaptions
from capsearch.encoders.training.fit.distillation import Distillation
from capsearch.encoders.training.fit.labels import label_loss
from capsearch.encoders.training.fit.loop import TrainingLoop
from capsearch.encoders.training.fit.validation import evaluate
from capsearch.encoders.training.nn.dual_encoder import (
    DualEncoder,
    TrainingOptions,
    TrainingSet,
    batch_of,
)
from capsearch.encoders.training.nn.generation import GenerationHead
from capsearch.encoders.training.nn.losses import LOSSES
from capsearch.encoders.training.nn.w2vv import TextNetwork
from capsearch.engine.errors import TrainingProblem


class Trainer(TrainingLoop):
    """Trains a DualEncoder against captions, and against labels where there are some."""

    model: DualEncoder

    def __init__(
        self,
        model: DualEncoder,
        train: TrainingSet,
        validation: TrainingSet,
        options: TrainingOptions,
        checkpoint: Path | None = None,
    ) -> None:
        super().__init__(model, _parameter_groups(model, options), len(train), options, checkpoint)
        self.train = train
        self.validation = validation
        self._rows = {
            language: captions.by_image(len(train)) for language, captions in train.captions.items()
        }
        self._distillation = Distillation(train.captions, self._batch_size)
        self._anchors = Distillation(train.anchors or {}, self._batch_size // 4)

    def validate(self) -> Mapping[str, float]:
        """CM MRR on validation of the averaged weights, by language."""
        return evaluate(cast(DualEncoder, self.averaged.module), self.validation)

    def loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """Captions against images and each other, the teacher's image vectors, and labels."""
        inputs = self._inputs(image_rows, rng)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.options.bfloat16):
            features = self.model.backbone(inputs).float()
        images = self.model.image(features)
        loss = self._caption_loss(images, image_rows, rng)
        if self.train.teacher is not None:
            teacher = torch.from_numpy(self.train.teacher[image_rows])
            distance = 1.0 - (images * teacher).sum(1).mean()
            loss = loss + self.options.distillation_weight * distance
        if self.model.labels is not None and self.train.labels is not None:
            logits = self.model.labels(features)
            of_labels = label_loss(logits, self.train.labels, image_rows)
            loss = loss + self.options.label_loss_weight * of_labels
        if self.model.generation is not None:
            written = self._generation_loss(self.model.generation, features, image_rows, rng)
            loss = loss + self.options.generation_loss_weight * written
        return loss

    def _generation_loss(
        self,
        head: GenerationHead,
        features: Tensor,
        image_rows: NDArray[np.int64],
        rng: np.random.Generator,
    ) -> Tensor:
        """The mean over the languages of the loss of writing one caption an image."""
        losses = []
        for language, captions in self.train.captions.items():
            rows, drawn = next(self._draws(language, image_rows, rng))
            if len(rows):
                sentences = [captions.token_ids[row] for row in drawn.tolist()]
                losses.append(head(features[rows], sentences, language))
        return torch.stack(losses).mean() if losses else features.new_zeros(())

    def _inputs(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """The batch's images, each in a random view."""
        views = rng.integers(len(self.train.inputs), size=len(image_rows))
        inputs = np.stack(
            [self.train.inputs[view, row] for view, row in zip(views, image_rows, strict=True)]
        )
        return torch.from_numpy(inputs.astype(np.float32))

    def _caption_loss(
        self, images: Tensor, image_rows: NDArray[np.int64], rng: np.random.Generator
    ) -> Tensor:
        """Captions against images, and against each other where an image has several."""
        drawn: list[Side] = []
        distances: list[Tensor] = []
        for language in self.train.captions:
            for rows, captions in self._draws(language, image_rows, rng):
                if len(rows) > 1:
                    drawn.append(self._side(language, rows, captions))
                    vectors = drawn[-1].vectors
                    distances += self._distillation.distances(language, captions, vectors)
        if not drawn:
            raise TrainingProblem("a batch without captions: the training split has too few")
        shown = self.train.shown.of(image_rows) if self.train.shown else None
        losses = CaptionLoss(LOSSES[self.options.loss], shown)
        loss = losses.against_images(drawn, images, self.model.scale)
        for taught in (self._distillation, self._anchors):
            for language, rows in taught.without_image(rng):
                texts = self._texts(language, taught.captions[language], rows)
                distances += taught.distances(language, rows, texts)
        if distances:
            loss = loss + self.options.distillation_weight * torch.cat(distances).mean()
        if not self.options.caption_loss_weight:
            return loss
        between = losses.between(drawn, self.model.caption_scale)
        return loss + self.options.caption_loss_weight * between

    def _side(self, language: str, rows: NDArray[np.int64], captions: NDArray[np.int64]) -> Side:
        of_language = self.train.captions[language]
        vectors = self._texts(language, of_language, captions)
        return Side(rows, vectors, of_language.concepts[captions])

    def _texts(self, language: str, captions: LanguageCaptions, rows: NDArray[np.int64]) -> Tensor:
        """Unit rows; not normalised in the feature space, where eq. 2 and MSE measure distances."""
        sentences = batch_of(captions, rows)
        if self.options.space == "feature":
            assert isinstance(self.model.text, TextNetwork)
            return self.model.text.raw(sentences, language)
        return self.model.text(sentences, language)  # type: ignore[no-any-return]

    def _draws(
        self, language: str, image_rows: NDArray[np.int64], rng: np.random.Generator
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """(rows in the batch, captions) `captions_per_image` times, without repeating a caption."""
        mixed = [rng.permutation(self._rows[language][row]) for row in image_rows]
        for draw in range(self.options.captions_per_image):
            having = [at for at, captions in enumerate(mixed) if len(captions) > draw]
            yield np.array(having, np.int64), np.array([mixed[at][draw] for at in having], np.int64)


def _parameter_groups(model: DualEncoder, options: TrainingOptions) -> Iterator[dict[str, Any]]:
    """The backbone's parts, whose lr rises from two thirds of `backbone_lr`; and the rest."""
    parts = [child for child in model.backbone.children() if any(True for _ in child.parameters())]
    for at, part in enumerate(parts):
        lr = options.backbone_lr * (2 + at / max(len(parts) - 1, 1)) / 3
        yield {"params": list(part.parameters()), "lr": lr, "peak": lr}
    scales = [model.scale, model.caption_scale]
    grouped = {id(p) for p in (*model.backbone.parameters(), *scales)}
    rest = [p for p in model.parameters() if id(p) not in grouped]
    common = {"lr": options.lr, "peak": options.lr}
    yield {"params": rest, **common}
    yield {"params": scales, "weight_decay": 0.0, **common}
