"""The model that is trained (a dual encoder), its options, and its training data."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.training.fit.corpus import LanguageCaptions, Vocabulary
from capsearch.encoders.training.fit.names import ShownConcepts
from capsearch.encoders.training.nn.generation import GenerationHead
from capsearch.encoders.training.nn.losses import LOSSES
from capsearch.encoders.training.nn.w2vv import (
    ImageProjection,
    TextConfig,
    TextNetwork,
    TokenBatch,
)
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.records import Vectors

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
    captions: Mapping[str, LanguageCaptions]
    labels: Labels | None = None
    shown: ShownConcepts | None = None  # where captions name concepts
    teacher: Vectors | None = None  # (N, D) a teacher's unit image vectors
    anchors: Mapping[str, LanguageCaptions] | None = None  # names with their teacher, no images

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


def batch_of(captions: LanguageCaptions, rows: NDArray[np.int64]) -> TokenBatch:
    """Some captions as an input of the text encoders."""
    sentence = torch.from_numpy(captions.sentence[rows].astype(np.float32))
    return TokenBatch([captions.token_ids[row] for row in rows], sentence)


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


def encode(model: DualEncoder, captions: LanguageCaptions, language: str) -> Vectors:
    """(C, D) caption vectors without dropout."""
    return encode_with(model.text, captions, language)


def encode_with(text: nn.Module, captions: LanguageCaptions, language: str) -> Vectors:
    """(C, D) caption vectors of any text encoder, without dropout."""
    text.eval()
    with torch.no_grad():
        parts = [
            text(batch_of(captions, rows), language).numpy()
            for rows in _chunks(np.arange(len(captions.image_rows)))
        ]
    return np.concatenate(parts)
