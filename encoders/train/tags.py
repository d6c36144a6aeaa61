"""Taggers: networks that predict tags from a pooled feature, as COCO-CN section IV-B compares them.

Their trainer, precision, recall and F at five as COCO-CN measures them, and Platt scaling of each
tag: from log-odds of a network to calibrated probabilities.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from capsearch.encoders.calibrate import regression
from capsearch.encoders.calibrate.regression import Floats, sigmoid
from capsearch.encoders.data.tag_labels import TagLabels
from capsearch.encoders.models.tagger import FIRST_LANGUAGE, SHARED
from capsearch.encoders.train.dual_encoder import TrainingOptions
from capsearch.encoders.train.loop import TrainingLoop, one_group
from capsearch.engine.errors import TrainingProblem
from capsearch.engine.metrics import precision_recall_f
from capsearch.engine.records import Vectors

Variant = Literal["cascade", "multi-task", "mlp"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)


@dataclass(frozen=True, slots=True)
class TagConfig:
    """The network; the defaults are the paper's.

    mlp: one network for each language. multi-task: one hidden layer for all languages. cascade:
    the scores of the `semantic` most frequent English tags are inputs of the other languages.
    """

    variant: Variant = "cascade"
    hidden: int = 1024
    semantic: int = 512
    dropout: float = 0.5

    def __post_init__(self) -> None:
        if self.variant not in VARIANTS:
            raise TrainingProblem(f"no variant '{self.variant}'; there is {', '.join(VARIANTS)}")


class TagNetwork(nn.Module):
    """(N, F) features to (N, K) log-odds for each language.

    The English scores in a cascade carry no gradient: the paper trains its two networks one
    after the other, and English is not to become a hidden layer of Chinese.
    """

    def __init__(self, features: int, priors: Mapping[str, Tensor], config: TagConfig, seed: int):
        """`priors`: the shares of the images that have each tag, (K,) by language."""
        super().__init__()
        torch.manual_seed(seed)
        if config.variant == "cascade" and FIRST_LANGUAGE not in priors:
            raise TrainingProblem("a cascade starts with English; add --lang en or take another")
        self.config = config
        first = len(priors.get(FIRST_LANGUAGE, ()))
        self.semantic = min(config.semantic, first) if config.variant == "cascade" else 0
        self.languages = tuple(sorted(priors, key=lambda language: language != FIRST_LANGUAGE))
        parts = (SHARED,) if config.variant == "multi-task" else self.languages
        self.hidden = nn.ModuleDict(
            {part: nn.Linear(features + self._extra(part), config.hidden) for part in parts}
        )
        self.out = nn.ModuleDict(
            {language: _output(config.hidden, priors[language]) for language in self.languages}
        )
        self.dropout = nn.Dropout(config.dropout)

    def _extra(self, part: str) -> int:
        return 0 if part in (FIRST_LANGUAGE, SHARED) else self.semantic

    def forward(self, pooled: Tensor) -> Mapping[str, Tensor]:
        """Log-odds by language."""
        return dict(self._outputs(pooled))

    def _outputs(self, pooled: Tensor) -> Iterator[tuple[str, Tensor]]:
        inputs = pooled
        for language in self.languages:
            part = SHARED if SHARED in self.hidden else language
            logits = self.out[language](self.dropout(torch.relu(self.hidden[part](inputs))))
            if language == FIRST_LANGUAGE and self.semantic:
                scores = torch.sigmoid(logits[:, : self.semantic].detach())
                inputs = torch.cat([pooled, scores], 1)
            yield language, logits


def _output(hidden: int, prior: Tensor) -> nn.Linear:
    """Starts at the tags' frequencies, so that training need not learn them first."""
    layer = nn.Linear(hidden, len(prior))
    with torch.no_grad():
        layer.weight.mul_(0.1)
        layer.bias.copy_(torch.logit(prior.clamp(1e-4, 1 - 1e-4)))
    return layer


def tag_loss(logits: Tensor, values: Tensor, known: Tensor) -> Tensor:
    """Binary cross entropy of (B, K) labels, summed over an image's known ones.

    A mean over the images that have any; 0 for a batch without.
    """
    each = nn.functional.binary_cross_entropy_with_logits(logits, values, reduction="none")
    annotated = (known.sum(1) > 0).sum().clamp(min=1)
    return (each * known).sum() / annotated


LOSS_SCALE = 0.02  # brings a sum over hundreds of tags to a scale at which clipping is rare
FIRST = 5  # tags that are measured


@dataclass(frozen=True, slots=True)
class TagSet:
    """Features of N images in one or more views, and their labels by language."""

    views: Vectors  # (V, N, F)
    labels: Mapping[str, TagLabels]

    def __len__(self) -> int:
        return int(self.views.shape[1])


class TagTrainer(TrainingLoop):
    """Trains a TagNetwork; the best epoch has the highest F@5 on validation."""

    metric = "F@5"
    model: TagNetwork

    def __init__(
        self,
        model: TagNetwork,
        train: TagSet,
        validation: TagSet,
        options: TrainingOptions,
        checkpoint: Path | None = None,
    ) -> None:
        groups = one_group(model.parameters(), options.lr)
        super().__init__(model, groups, len(train), options, checkpoint)
        self.train = train
        self.validation = validation

    def loss(self, image_rows: NDArray[np.int64], rng: np.random.Generator) -> Tensor:
        """The sum over the languages of the loss of their known tags."""
        views = rng.integers(len(self.train.views), size=len(image_rows))
        logits = self.model(torch.from_numpy(self.train.views[views, image_rows]).float())
        losses = []
        for language, labels in self.train.labels.items():
            values, known = map(torch.from_numpy, labels.dense(image_rows))
            losses.append(tag_loss(logits[language], values, known))
        return cast(Tensor, sum(losses)) * LOSS_SCALE

    def validate(self) -> Mapping[str, float]:
        """F@5 by language, of the averaged weights."""
        logits = tag_logits(cast(TagNetwork, self.averaged.module), self.validation.views[0])
        return {
            language: f_at_five(logits[language], labels)[2]
            for language, labels in self.validation.labels.items()
            if labels.captioned.any()
        }


def tag_logits(model: TagNetwork, pooled: Vectors) -> Mapping[str, Vectors]:
    """(N, K) log-odds by language, without dropout."""
    model.eval()
    with torch.no_grad():
        of_languages = model(torch.from_numpy(np.asarray(pooled, np.float32)))
    return {language: logits.numpy() for language, logits in of_languages.items()}


def f_at_five(scores: Vectors, labels: TagLabels) -> tuple[float, float, float]:
    """Precision, recall and F of the five best tags, means over the captioned images."""
    rows = np.flatnonzero(labels.captioned).tolist()
    positives: Sequence[NDArray[np.int64]] = [labels.positives[row] for row in rows]
    return precision_recall_f(scores[rows], positives, FIRST)


PRIOR = 10.0  # strength of the common slope and intercept, in images of probability one half
COMMON_SAMPLE = 1_000_000  # labels that the regression over all tags is fitted to
_STEPS = 25
_HALVINGS = 8  # of a step that would make things worse
_LARGEST_STEP = 1.0


@dataclass(frozen=True, slots=True)
class Platt:
    """log-odds = slope * logit + intercept, for each of K tags."""

    slope: Floats  # (K,)
    intercept: Floats  # (K,)

    def probabilities(self, logits: NDArray[np.floating]) -> Floats:
        """(N, K) of (N, K)."""
        return sigmoid(logits * self.slope + self.intercept)


def fit_platt(
    logits: NDArray[np.floating], values: NDArray[np.floating], known: NDArray[np.floating]
) -> Platt:
    """Maximum a posteriori slopes and intercepts of (N, K) logits; labels count where `known`.

    All tags share a prior: the regression over all of them together. A tag that validation images
    rarely or never show keeps nearly that. DataProblem where nothing is positive or negative.
    """
    scores = np.asarray(logits, np.float64)
    at = np.flatnonzero(known > 0)
    if len(at) > COMMON_SAMPLE:
        at = np.random.default_rng(0).choice(at, COMMON_SAMPLE, replace=False)
    labels = values.reshape(-1)[at].astype(np.float64)
    ones, zeros = np.ones(len(at)), np.zeros(len(at))
    common = regression.fit(scores.reshape(-1)[at][:, None], labels, ones, zeros)
    centre = np.array([float(common.coefficients[0]), common.intercept])
    posterior = _Posterior(centre, scores, values, known)
    parameters = np.tile(centre, (scores.shape[1], 1))  # (K, 2)
    loss = posterior.losses(parameters)
    for _ in range(_STEPS):
        step = posterior.newton_step(parameters)
        for _ in range(_HALVINGS):
            tried = posterior.losses(parameters + step)
            worse = tried > loss
            if not worse.any():
                break
            step[worse] /= 2
        step[worse] = 0.0
        parameters, loss = parameters + step, np.where(worse, loss, tried)
    return Platt(parameters[:, 0], parameters[:, 1])


@dataclass(frozen=True, slots=True)
class _Posterior:
    """What is maximised for each of K tags: its known labels and the common prior agree."""

    centre: Floats  # (2,) slope and intercept of the prior
    scores: Floats  # (N, K)
    values: NDArray[np.floating]  # (N, K)
    known: NDArray[np.floating]  # (N, K)

    def losses(self, parameters: Floats) -> Floats:
        """(K,) the cross entropy of the known labels, and the distance to the prior."""
        log_odds = self.scores * parameters[:, 0] + parameters[:, 1]
        each = self.known * (np.logaddexp(0.0, log_odds) - self.values * log_odds)
        apart = ((parameters - self.centre) ** 2).sum(axis=1)
        return np.asarray(each.sum(axis=0) + PRIOR / 8 * apart)

    def newton_step(self, parameters: Floats) -> Floats:
        """(K, 2), all tags at once: each has a 2 x 2 system."""
        probability = sigmoid(self.scores * parameters[:, 0] + parameters[:, 1])
        error = self.known * (self.values - probability)
        weight = self.known * probability * (1 - probability)
        strength = PRIOR / 4  # the curvature of one image of probability one half is a quarter
        gradient = np.stack([(error * self.scores).sum(0), error.sum(0)], 1)
        gradient -= strength * (parameters - self.centre)
        curvature = np.empty((len(parameters), 2, 2))
        curvature[:, 0, 0] = (weight * self.scores**2).sum(0) + strength
        curvature[:, 1, 1] = weight.sum(0) + strength
        curvature[:, 0, 1] = curvature[:, 1, 0] = (weight * self.scores).sum(0)
        step = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        return np.asarray(np.clip(step, -_LARGEST_STEP, _LARGEST_STEP))


def best_threshold(probabilities: Floats, values: NDArray[np.floating], steps: int = 99) -> float:
    """The probability above which tags have the highest F1 against (N, K) labels."""
    right = values > 0
    scored = []
    for threshold in np.linspace(0.01, 0.99, steps):
        given = probabilities >= threshold
        hits = float((given & right).sum())
        f1 = 2 * hits / max(float(given.sum() + right.sum()), 1.0)
        scored.append((f1, -float(threshold)))
    return -max(scored)[1]
