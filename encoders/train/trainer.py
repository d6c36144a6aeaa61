"""The trainer of text encoders, image projection and, if it is to be fine-tuned, the backbone.

Its inputs are either cached features (`capsearch train text`: the backbone is the identity) or
cached activations of the frozen lower blocks (`capsearch train backbone`: the backbone is the
upper blocks, which are fine-tuned).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.calibrate.vectors import cm_mrr
from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.features import EncodesSentences
from capsearch.encoders.text import concepts
from capsearch.encoders.train.captions import NO_IMAGE, Captions, Vocabulary, draws
from capsearch.encoders.train.dual_encoder import (
    LOSSES,
    CaptionLoss,
    DualEncoder,
    GenerationHead,
    Labels,
    Side,
    TrainingOptions,
    TrainingSet,
    batch_of,
    encode,
    encode_with,
    project,
)
from capsearch.encoders.train.loop import TrainingLoop
from capsearch.encoders.train.w2vv import TextNetwork
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Vectors

LABEL_SCALE = 0.02  # brings a sum over some hundred labels to the scale of the caption loss
MIN_LABEL_COUNT = 30  # images that must have a label before it becomes a column


def labels_of(data: CaptionDataset) -> Labels | None:
    """Objects and human tags as columns; None where the data has neither.

    An image without any object (or any tag) was not annotated: its object (or tag) columns
    are unknown rather than 0.
    """
    groups = ([image.objects for image in data.images], [image.tags_zh for image in data.images])
    parts = [part for part in map(_columns, groups) if part is not None]
    if not parts:
        return None
    return Labels(
        np.concatenate([values for values, _ in parts], axis=1),
        np.concatenate([known for _, known in parts], axis=1),
    )


def _columns(group: Sequence[Sequence[str]]) -> tuple[NDArray[Any], NDArray[Any]] | None:
    """(N, L) values and (N, L) known of the labels that are frequent enough."""
    counts = Counter(name for names in group for name in names)
    frequent = sorted(name for name, count in counts.items() if count >= MIN_LABEL_COUNT)
    if not frequent:
        return None
    column = {name: number for number, name in enumerate(frequent)}
    values = np.zeros((len(group), len(column)), np.uint8)
    for row, names in enumerate(group):
        for name in names:
            if name in column:
                values[row, column[name]] = 1
    known = np.array([bool(names) for names in group])[:, None] & np.ones(len(column), np.bool_)
    return values, known


def label_loss(logits: Tensor, labels: Labels, image_rows: NDArray[np.int64]) -> Tensor:
    """Binary cross entropy, summed over an image's known labels, averaged over the batch."""
    values = torch.from_numpy(labels.values[image_rows].astype(np.float32))
    known = torch.from_numpy(labels.known[image_rows].astype(np.float32))
    each = nn.functional.binary_cross_entropy_with_logits(logits, values, reduction="none")
    return (each * known).sum() / len(image_rows) * LABEL_SCALE


def evaluate(model: DualEncoder, validation: TrainingSet) -> Mapping[str, float]:
    """CM MRR by language."""
    images = project(model, validation)
    return {
        language: cm_mrr(encode(model, captions, language) @ images.T, captions.image_rows)
        for language, captions in validation.captions.items()
        if len(captions)
    }


@dataclass(frozen=True)
class Distillation:
    """Cosine distances of text vectors to the teacher's, for captions of every language."""

    captions: Mapping[str, Captions]
    batch_size: int

    def distances(self, language: str, rows: NDArray[np.int64], texts: Tensor) -> list[Tensor]:
        """(N,) 1 - cosine of these captions' unit vectors, or nothing without a teacher."""
        teacher = self.captions[language].teacher
        if not len(teacher):
            return []
        targets = torch.from_numpy(teacher[rows].astype(np.float32))
        return [1.0 - (texts * targets).sum(1)]

    def without_image(self, rng: np.random.Generator) -> Iterator[tuple[str, NDArray[np.int64]]]:
        """For each language a batch of the sentences without images that a teacher has read."""
        for language, captions in self.captions.items():
            if not len(captions.teacher):
                continue
            rows = np.flatnonzero(captions.image_rows == NO_IMAGE)
            if len(rows):
                yield language, rng.choice(rows, min(self.batch_size, len(rows)), replace=False)


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
            rows, drawn = next(draws(self._rows[language], image_rows, 1, rng))
            if len(rows):
                sentences = [captions.ids[row] for row in drawn]
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
        count = self.options.captions_per_image
        for language in self.train.captions:
            for rows, captions in draws(self._rows[language], image_rows, count, rng):
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

    def _texts(self, language: str, captions: Captions, rows: NDArray[np.int64]) -> Tensor:
        """Unit rows; not normalised in the feature space, where eq. 2 and MSE measure distances."""
        sentences = batch_of(captions, rows)
        if self.options.space == "feature":
            assert isinstance(self.model.text, TextNetwork)
            return self.model.text.raw(sentences, language)
        return self.model.text(sentences, language)  # type: ignore[no-any-return]


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


_NAMES = 3  # of a concept in each language, the commonest first


def name_anchors(
    text: TextNetwork,
    vocabularies: Mapping[str, Vocabulary],
    sentences: EncodesSentences,
    concept_ids: Sequence[str],
) -> dict[str, Captions]:
    """Names of concepts, as sentences without images that keep `text` from forgetting them.

    The teacher of a name is the mean of the vectors that `text`, as it is now, gives the commonest
    names of its concept in all languages: that mean finds more than the name in one language does.
    """
    anchors, vectors, owners = {}, {}, {}
    for language, vocabulary in vocabularies.items():
        named = [
            (row, name)
            for row, concept in enumerate(concept_ids)
            for name in concepts.by_id(concept).names[language][:_NAMES]
        ]
        owners[language] = np.array([row for row, _ in named], np.int64)
        names = Captions(np.full(len(named), NO_IMAGE), [name for _, name in named])
        anchors[language] = vocabulary.encode(names, sentences)
        vectors[language] = encode_with(text, anchors[language], language)
    targets = _means(vectors, owners, len(concept_ids))
    return {
        language: replace(names, teacher=targets[owners[language]].astype(np.float16))
        for language, names in anchors.items()
    }


def _means(
    vectors: Mapping[str, Vectors], owners: Mapping[str, NDArray[np.int64]], count: int
) -> Vectors:
    """(K, D) unit means over the languages of each concept's first name."""
    total = np.zeros((count, next(iter(vectors.values())).shape[1]), np.float32)
    for language, of_names in vectors.items():
        concept, first = np.unique(owners[language], return_index=True)
        total[concept] += of_names[first]
    means: Vectors = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-6)
    return means
