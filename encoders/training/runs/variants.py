"""Variants of the text encoders by name: ours, and those of the papers' tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from capsearch.encoders.training.nn.dual_encoder import TrainingOptions
from capsearch.encoders.training.nn.w2vv import TextConfig
from capsearch.engine.errors import TrainingProblem

Variant = Callable[[TrainingOptions, int], TrainingOptions]

# COCO-CN, table X: three inputs, frozen word2vec vectors, predicting the image feature itself.
_PAPER = TextConfig(inputs=("bow", "word2vec", "gru"), gru_width=1024, train_words=False)


def _shared(options: TrainingOptions, features: int) -> TrainingOptions:
    return options


def _w2vv(options: TrainingOptions, features: int) -> TrainingOptions:
    config = replace(_PAPER, pooling="last", train_words=True)
    return replace(
        options,
        config=config,
        loss="mse",
        space="feature",
        dimension=features,
        caption_loss_weight=0.0,
    )


def _with_attention(options: TrainingOptions, features: int) -> TrainingOptions:
    return replace(_w2vv(options, features), config=_PAPER)


def _enhanced(options: TrainingOptions, features: int) -> TrainingOptions:
    return replace(_with_attention(options, features), loss="contrastive")


def _plus_plus(options: TrainingOptions, features: int) -> TrainingOptions:
    config = replace(_PAPER, pooling="mean", train_words=True)
    return replace(options, config=config, loss="triplet", caption_loss_weight=0.0)


VARIANTS: Mapping[str, Variant] = {
    "shared": _shared,
    "w2vv": _w2vv,
    "w2vv-attention": _with_attention,
    "enhanced-w2vv": _enhanced,
    "w2vv++": _plus_plus,
}


def apply_variant(name: str, options: TrainingOptions, features: int) -> TrainingOptions:
    """The options of a named variant for a backbone with `features` features."""
    if name not in VARIANTS:
        raise TrainingProblem(f"no variant called '{name}'; there is {', '.join(VARIANTS)}")
    return VARIANTS[name](options, features)
