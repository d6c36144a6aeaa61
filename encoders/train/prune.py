"""What is fitted after training: a smaller hidden layer, the query bank, and calibration.

Structured pruning of the text encoders' hidden layer leaves fewer bytes to read for a query, whose
encoding is limited by memory bandwidth. A pivoted Cholesky factorisation selects the hidden units
that explain most of the output, and ridge regression refits the output layer to reproduce the
original vectors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from capsearch.encoders.calibrate.vectors import (
    CAPTIONS_PER_LANGUAGE,
    CaptionVectors,
    cluster_bank,
    fit_vectors,
)
from capsearch.encoders.models.hubness import QueryBank
from capsearch.encoders.models.text import Calibration
from capsearch.encoders.train.captions import Captions
from capsearch.encoders.train.dual_encoder import (
    DualEncoder,
    TrainingSet,
    encode,
    encode_with,
    project,
)
from capsearch.encoders.train.w2vv import LanguageBranch, TextNetwork
from capsearch.engine.errors import TrainingProblem

CAPTIONS_TO_PRUNE_BY = 10_000  # enough to fit some thousand columns
_RIDGE = 1e-4  # relative to each unit's own energy


def prune(
    text: TextNetwork, captions: Mapping[str, Captions], hidden: int, seed: int
) -> TextNetwork:
    """The text encoders with `hidden` units; their vectors change by a few degrees at most."""
    if hidden > text.config.hidden:
        raise TrainingProblem(f"the model has {text.config.hidden} hidden units, not {hidden}")
    if hidden == text.config.hidden:
        return text
    units, vectors = _hidden_units(text, captions, seed)
    selected = _pivoted_cholesky(units, text.out.weight.detach(), hidden)
    weight, bias = _ridge_regression(units[:, selected], vectors)
    sizes = {name: _branch(text, name).words.num_embeddings - 1 for name in text.branches}
    config = replace(text.config, hidden=hidden)
    smaller = TextNetwork(sizes, text.out.out_features, config)
    mixing = [f"branches.{name}.mix.{part}" for name in sizes for part in ("weight", "bias")]
    by_unit = {"sentence.weight", *mixing}  # parameters with one row per hidden unit
    state = {
        name: value[selected] if name in by_unit else value
        for name, value in text.state_dict().items()
    }
    smaller.load_state_dict({**state, "out.weight": weight, "out.bias": bias})
    return smaller.eval()


def _branch(text: TextNetwork, language: str) -> LanguageBranch:
    branch = text.branches[language]
    assert isinstance(branch, LanguageBranch)
    return branch


def _hidden_units(
    text: TextNetwork, captions: Mapping[str, Captions], seed: int
) -> tuple[Tensor, Tensor]:
    """(N, H) hidden units of some captions, and their (N, D) vectors."""
    random = np.random.default_rng(seed)
    units: list[Tensor] = []
    hook = text.out.register_forward_pre_hook(lambda _, inputs: units.append(inputs[0]))
    vectors = [
        encode_with(text, of_language.some(CAPTIONS_TO_PRUNE_BY, random), language)
        for language, of_language in captions.items()
        if len(of_language)
    ]
    hook.remove()
    return torch.cat(units), torch.from_numpy(np.concatenate(vectors))


def _pivoted_cholesky(units: Tensor, out: Tensor, count: int) -> Tensor:
    """(count,) units, ascending, that span most of what all units contribute to the output.

    The factorised matrix holds the inner products of the contributions; each pivot is the unit
    with the largest residual, the one that the earlier pivots explain least.
    """
    products = ((units.T @ units / len(units)) * (out.T @ out)).double()  # (H, H)
    residual = products.diagonal().clone()
    factors = products.new_zeros(len(products), count)
    pivots: list[int] = []
    for at in range(count):
        pivot = int(residual.argmax())
        pivots.append(pivot)
        explained = factors[:, :at] @ factors[pivot, :at]
        scale = residual[pivot].clamp_min(1e-12).sqrt()
        factors[:, at] = (products[:, pivot] - explained) / scale
        residual -= factors[:, at] ** 2
        residual[pivots] = -1.0
    return torch.tensor(sorted(pivots))


def _ridge_regression(units: Tensor, vectors: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (D, H) and bias (D,) that map `units` (N, H) to `vectors` (N, D)."""
    inputs = torch.cat([units, torch.ones(len(units), 1)], dim=1)
    energy = (inputs**2).sum(dim=0) + 1e-6
    normal = inputs.T @ inputs + _RIDGE * torch.diag(energy)
    solution = torch.linalg.solve(normal, inputs.T @ vectors)
    return solution[:-1].T.contiguous(), solution[-1]


def calibrate(model: DualEncoder, bank: QueryBank, validation: TrainingSet) -> Calibration:
    """Hubness penalties and weights of CL and CLM that validate best."""
    captions = {
        language: CaptionVectors.of(
            captions.image_rows,
            encode(model, captions, language),
            captions.sentence.astype(np.float32),
        )
        for language, captions in validation.captions.items()
        if len(captions)
    }
    return fit_vectors(project(model, validation), captions, validation.captions, bank)


def build_query_bank(model: DualEncoder, captions: Mapping[str, Captions], seed: int) -> QueryBank:
    """The query bank of a new model: a sample of its training captions as cluster centres."""
    random = np.random.default_rng(seed)
    sample = {
        language: of_language.some(CAPTIONS_PER_LANGUAGE, random)
        for language, of_language in captions.items()
        if len(of_language)
    }
    visual = np.concatenate([encode(model, drawn, language) for language, drawn in sample.items()])
    sentence = np.concatenate([drawn.sentence.astype(np.float32) for drawn in sample.values()])
    return cluster_bank(visual, sentence, seed)
