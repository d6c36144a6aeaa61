"""Networks that predict tags from a pooled feature, as COCO-CN section IV-B compares them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from capsearch.encoders.taggers import FIRST_LANGUAGE, SHARED
from capsearch.engine.errors import TrainingProblem

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
        self.languages = tuple(sorted(priors, key=lambda one: one != FIRST_LANGUAGE))
        parts = (SHARED,) if config.variant == "multi-task" else self.languages
        self.hidden = nn.ModuleDict(
            {one: nn.Linear(features + self._extra(one), config.hidden) for one in parts}
        )
        self.out = nn.ModuleDict(
            {one: _output(config.hidden, priors[one]) for one in self.languages}
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
