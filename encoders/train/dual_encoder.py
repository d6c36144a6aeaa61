"""The model that is trained (a dual encoder), its losses by name, its options, its training data.

A loss takes the vectors of sentences (T, D) and of images (B, D), the row of each sentence's image
(T,), the learned scale, and which pairs match beside that one (T, B), if any do. It is a mean over
the sentences. An image has at most one sentence in a call, so every pair that does not match is a
negative. A caption can be the name of a concept ("dolphin"), which is true of every image that
shows it: those are no negatives.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from capsearch.encoders.models.caption_search import END, CaptionVocabulary
from capsearch.encoders.train.captions import Captions, ShownConcepts, Vocabulary
from capsearch.encoders.train.decoders import CaptionConfig, ShowAndTell
from capsearch.encoders.train.w2vv import ImageProjection, TextConfig, TextNetwork, TokenBatch
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Vectors

Loss = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor | None], Tensor]


def info_nce(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """Softmax in both directions. Images without a sentence in the batch are negatives too."""
    logits = scale * texts @ images.T  # (T, B)
    if matching is not None:
        others = matching.scatter(1, rows[:, None], False)
        logits = logits.masked_fill(others, -torch.inf)
    to_images = F.cross_entropy(logits, rows)
    to_texts = F.cross_entropy(logits[:, rows].T, torch.arange(len(rows)))
    return (to_images + to_texts) / 2


def hardest_triplet(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """VSE++ / W2VV++: margin .2 against the hardest negative in the batch, both ways."""
    scores = texts @ images.T  # (T, B)
    positive = scores.gather(1, rows[:, None])  # (T, 1)
    positives = torch.zeros_like(scores, dtype=torch.bool) if matching is None else matching
    positives = positives.scatter(1, rows[:, None], True)
    to_images = (0.2 + scores - positive).clamp(min=0).masked_fill(positives, 0).max(1).values
    square = (0.2 + scores[:, rows] - positive.T).clamp(min=0)
    to_texts = square.masked_fill(positives[:, rows], 0).max(0).values
    return (to_images + to_texts).mean()


def contrastive(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """COCO-CN eq. 2, margin 2, Euclidean: one random negative for each positive pair."""
    positive = (texts - images[rows]).pow(2).sum(1)
    others = (rows + torch.randint(1, len(images), rows.shape)) % len(images)
    negative = (2.0 - (texts - images[others]).norm(dim=1)).clamp(min=0).pow(2)
    if matching is not None:
        negative = negative.masked_fill(matching.gather(1, others[:, None])[:, 0], 0)
    return (positive + negative).mean()  # type: ignore[no-any-return]


def squared_error(
    texts: Tensor, images: Tensor, rows: Tensor, scale: Tensor, matching: Tensor | None = None
) -> Tensor:
    """W2VV: the image's feature is the regression target; there are no negatives."""
    return F.mse_loss(texts, images[rows])


LOSSES: Mapping[str, Loss] = {
    "infonce": info_nce,
    "triplet": hardest_triplet,
    "contrastive": contrastive,
    "mse": squared_error,
}


@dataclass(frozen=True, slots=True)
class Side:
    """Images, or captions of one language, of a batch: at most one for each of its images."""

    rows: NDArray[np.int64]  # of the batch, ascending
    vectors: Tensor  # one for each
    concepts: NDArray[np.int64] | None = None  # that captions name, -1 for a sentence; images: None

    def only(self, at: NDArray[np.int64]) -> Side:
        """Some of them."""
        concepts = None if self.concepts is None else self.concepts[at]
        return Side(self.rows[at], self.vectors[at], concepts)


@dataclass(frozen=True, slots=True)
class CaptionLoss:
    """A loss by name over pairs of sides; `shown` (B, K) tells which images show which concepts."""

    loss: Loss
    shown: NDArray[np.bool_] | None = None

    def against_images(self, captions: Sequence[Side], images: Tensor, log_scale: Tensor) -> Tensor:
        """Every language's captions against all images of the batch."""
        everything = Side(np.arange(len(images)), images)
        return self._mean([(side, everything) for side in captions], log_scale)

    def between(self, captions: Sequence[Side], log_scale: Tensor) -> Tensor | float:
        """Captions against each other where an image has several; 0 where none has."""
        pairs = [
            (side, other)
            for side, other in combinations(captions, 2)
            if len(np.intersect1d(side.rows, other.rows, assume_unique=True)) > 1
        ]
        return self._mean(pairs, log_scale) if pairs else 0.0

    def _mean(self, pairs: Sequence[tuple[Side, Side]], log_scale: Tensor) -> Tensor:
        """One side's captions against the other side, a mean over the captions."""
        scale = log_scale.exp().clamp(max=100.0)
        total, count = torch.zeros(()), 0
        for side, other in pairs:
            common = side.only(np.flatnonzero(np.isin(side.rows, other.rows)))
            targets = torch.from_numpy(np.searchsorted(other.rows, common.rows))
            matching = self._matching(common, other)
            part = self.loss(common.vectors, other.vectors, targets, scale, matching)
            total = total + part * len(common.rows)
            count += len(common.rows)
        return total / count

    def _matching(self, side: Side, other: Side) -> Tensor | None:
        """(T, B): a caption names what the other side's image shows, or the other way round."""
        if self.shown is None:
            return None
        matching = _named_and_shown(side.concepts, self.shown[other.rows])
        if other.concepts is not None:
            matching = matching | _named_and_shown(other.concepts, self.shown[side.rows]).T
        return torch.from_numpy(matching)


def _named_and_shown(
    concepts: NDArray[np.int64] | None, shown: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """(T, B) where caption t names a concept that image b shows."""
    assert concepts is not None  # only captions are compared with something
    matching: NDArray[np.bool_] = shown[:, concepts].T & (concepts >= 0)[:, None]
    return matching


class GenerationHead(nn.Module):
    """Joint learning of backbone and decoder (Zhu 2016): a Show-and-Tell LSTM on (N, F) features.

    Its loss trains the backbone's last blocks beside the retrieval loss. It writes the words of the
    text encoders, which are stems and dictionary forms, so the decoder itself is thrown away: a
    captioner is trained afterwards on the features that it helped to form.
    """

    def __init__(self, words: Mapping[str, tuple[str, ...]], features: int, width: int = 256):
        super().__init__()
        self.image = nn.Linear(features, width)
        self.decoder = ShowAndTell(CaptionVocabulary(words), CaptionConfig(width=width))

    def forward(
        self, features: Tensor, sentences: Sequence[NDArray[np.int64]], language: str
    ) -> Tensor:
        """The mean cross entropy of the words of captions, each given as ids in its vocabulary."""
        ended = [np.append(ids + 1, END) for ids in sentences]
        logits, targets, _ = self.decoder.predictions(self.image(features), ended, language)
        return F.cross_entropy(logits, targets)


EVALUATION_BATCH = 256


@dataclass(frozen=True, slots=True)
class TrainingOptions:
    """Hyperparameters; the defaults are those of the built-in text encoders."""

    config: TextConfig = field(default_factory=TextConfig)
    dimension: int = 512
    loss: str = "infonce"
    # feature: as in COCO-CN, without projection; teacher: the same, on unit vectors
    space: Literal["shared", "feature", "teacher"] = "shared"
    epochs: int = 10
    batch_size: int = 256
    lr: float = 1e-3
    captions_per_image: int = 2  # drawn at each step for each image and language
    caption_loss_weight: float = 0.5  # of the loss between captions of one image, any languages
    distillation_weight: float = 5.0  # of the distance to a teacher's vectors
    weight_decay: float = 0.01
    ema_epochs: float = 1.0  # length of the exponential moving average of the weights
    patience: int = 4  # epochs without a better validation MRR before training stops
    backbone_lr: float = 3e-4  # of the backbone's head; its blocks have two thirds of it
    label_loss_weight: float = 0.1  # of the label loss, where there are labels
    generation_loss_weight: float = 0.0  # of captions written from features (Zhu 2016)
    bfloat16: bool = False  # the backbone, or a captioner, is computed in bfloat16
    seed: int = 7

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            raise TrainingProblem(f"no loss called '{self.loss}'; there is {', '.join(LOSSES)}")


@dataclass(frozen=True, slots=True)
class Labels:
    """Labels of images beside their captions: (N, L) 0 or 1, and where they are known."""

    values: NDArray[np.uint8]
    known: NDArray[np.bool_]  # (N, L)


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Inputs of the backbone in one or more views (original, flipped), and captions."""

    inputs: NDArray[Any]  # (V, N, ...) features or activations, possibly memory-mapped
    captions: Mapping[str, Captions]
    labels: Labels | None = None
    shown: ShownConcepts | None = None  # where captions name concepts
    teacher: Vectors | None = None  # (N, D) a teacher's unit image vectors
    anchors: Mapping[str, Captions] | None = None  # names with their teacher, no images

    def __len__(self) -> int:
        return int(self.inputs.shape[1])


class DualEncoder(nn.Module):
    """A backbone, text encoders and an image projection into one space, learned temperatures.

    `backbone` None: the inputs are features already. `text` replaces the default TextNetwork.
    """

    def __init__(
        self,
        vocabularies: Mapping[str, Vocabulary],
        vectors: Mapping[str, Tensor],
        features: int,
        options: TrainingOptions,
        backbone: nn.Module | None = None,
        labels: int = 0,
        text: nn.Module | None = None,
    ) -> None:
        super().__init__()
        torch.manual_seed(options.seed)  # equal seeds start from equal weights
        self.backbone = backbone or nn.Identity()
        sizes = {language: len(vocabulary.words) for language, vocabulary in vocabularies.items()}
        self.text = text or TextNetwork(sizes, options.dimension, options.config, dict(vectors))
        if options.space != "shared" and options.dimension != features:
            raise TrainingProblem(f"the feature space has {features} dimensions")
        self.image = ImageProjection(features, options.dimension, options.space != "shared")
        self.labels = nn.Linear(features, labels) if labels else None
        words = {language: vocabulary.words for language, vocabulary in vocabularies.items()}
        joint = options.generation_loss_weight > 0
        self.generation = GenerationHead(words, features) if joint else None
        self.scale = nn.Parameter(torch.tensor(math.log(20.0)))
        self.caption_scale = nn.Parameter(torch.tensor(math.log(20.0)))


def batch_of(captions: Captions, rows: NDArray[np.int64]) -> TokenBatch:
    """Some captions as an input of the text encoders."""
    sentence = torch.from_numpy(captions.sentence[rows].astype(np.float32))
    return TokenBatch([torch.from_numpy(captions.ids[row]) for row in rows], sentence)


def project(model: DualEncoder, images: TrainingSet) -> Vectors:
    """(N, D) image vectors of the first view, without dropout."""
    features = image_features(model, images)
    with torch.no_grad():
        return model.image(torch.from_numpy(features)).numpy()  # type: ignore[no-any-return]


def image_features(model: DualEncoder, images: TrainingSet) -> Vectors:
    """(N, F) backbone features of the first view, without dropout."""
    model.eval()
    with torch.no_grad():
        parts = [
            model.backbone(torch.from_numpy(np.array(rows, np.float32))).numpy()
            for rows in _chunks(images.inputs[0])
        ]
    return np.concatenate(parts)


def _chunks(rows: NDArray[Any]) -> Iterator[NDArray[Any]]:
    for start in range(0, len(rows), EVALUATION_BATCH):
        yield rows[start : start + EVALUATION_BATCH]


def encode(model: DualEncoder, captions: Captions, language: str) -> Vectors:
    """(C, D) caption vectors without dropout."""
    return encode_with(model.text, captions, language)


def encode_with(text: nn.Module, captions: Captions, language: str) -> Vectors:
    """(C, D) caption vectors of any text encoder, without dropout."""
    text.eval()
    with torch.no_grad():
        parts = [
            text(batch_of(captions, rows), language).numpy()
            for rows in _chunks(np.arange(len(captions)))
        ]
    return np.concatenate(parts)


class FrozenText(nn.Module):
    """Sentences encoded beforehand: a sentence's only token id is its row in a table.

    Backbones that are projected into one space share text encoders, which are most of a model's
    size, and captions need not be encoded again when the backbone changes.
    """

    def __init__(self, tables: Mapping[str, Vectors]) -> None:
        super().__init__()
        self.tables = {language: torch.from_numpy(table) for language, table in tables.items()}
        self.dimension = next(iter(tables.values())).shape[1]

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenText:
        """Itself: the tables never change, and the averaged model would double their gigabytes."""
        return self

    def forward(self, sentences: TokenBatch, language: str) -> Tensor:
        """(N, D) unit rows."""
        return self.tables[language][torch.cat(list(sentences.token_ids))]


def freeze_text(
    network: TextNetwork, splits: Sequence[Mapping[str, Captions]]
) -> tuple[FrozenText, list[dict[str, Captions]]]:
    """Encode all captions of some splits once; the splits come back as rows of the result."""
    tables: dict[str, Vectors] = {}
    rows: list[dict[str, Captions]] = [{} for _ in splits]
    for language in network.branches:
        parts, start = [], 0
        for at, split in enumerate(splits):
            captions = split[language]
            if not len(captions):
                rows[at][language] = captions
                continue
            parts.append(encode_with(network, captions, language))
            row_ids = np.arange(start, start + len(captions))[:, None]
            rows[at][language] = replace(captions, ids=list(row_ids))
            start += len(captions)
        if parts:
            tables[language] = np.concatenate(parts)
    return FrozenText(tables), rows
