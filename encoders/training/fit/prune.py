"""A narrower hidden layer for text encoders that learn on: fewer bytes to read for a query.

A sentence is encoded as fast as the weights can be read. Of the hidden units those stay that
between them say most of what all say, and the output is fitted anew to what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from capsearch.encoders.training.fit.corpus import LanguageCaptions
from capsearch.encoders.training.nn.dual_encoder import encode_with
from capsearch.encoders.training.nn.w2vv import LanguageBranch, TextNetwork
from capsearch.engine.errors import TrainingProblem

CAPTIONS_EACH = 10_000  # of a language: enough to fit some thousand columns to
_RIDGE = 1e-4  # of each unit's own energy


def pruned(
    text: TextNetwork, captions: Mapping[str, LanguageCaptions], hidden: int, seed: int
) -> TextNetwork:
    """The same encoders with `hidden` units; its vectors stay within a few degrees."""
    if hidden > text.config.hidden:
        raise TrainingProblem(f"the model has {text.config.hidden} hidden units, not {hidden}")
    if hidden == text.config.hidden:
        return text
    units, said = _observed(text, captions, seed)
    kept = _telling(units, text.out.weight.detach(), hidden)
    weight, bias = _fitted(units[:, kept], said)
    sizes = {name: _branch(text, name).words.num_embeddings - 1 for name in text.branches}
    config = replace(text.config, hidden=hidden)
    narrow = TextNetwork(sizes, text.out.out_features, config)
    mixing = [f"branches.{name}.mix.{part}" for name in sizes for part in ("weight", "bias")]
    cut = {"sentence.weight", *mixing}
    state = {name: one[kept] if name in cut else one for name, one in text.state_dict().items()}
    narrow.load_state_dict({**state, "out.weight": weight, "out.bias": bias})
    return narrow.eval()


def _branch(text: TextNetwork, language: str) -> LanguageBranch:
    branch = text.branches[language]
    assert isinstance(branch, LanguageBranch)
    return branch


def _observed(
    text: TextNetwork, captions: Mapping[str, LanguageCaptions], seed: int
) -> tuple[Tensor, Tensor]:
    """(N, H) hidden units on some captions, and (N, D) what the encoders make of them."""
    random = np.random.default_rng(seed)
    units: list[Tensor] = []
    seen = text.out.register_forward_pre_hook(lambda _, given: units.append(given[0]))
    said = [
        encode_with(text, told.some(CAPTIONS_EACH, random), language)
        for language, told in captions.items()
        if len(told.image_rows)
    ]
    seen.remove()
    return torch.cat(units), torch.from_numpy(np.concatenate(said))


def _telling(units: Tensor, out: Tensor, count: int) -> Tensor:
    """(count,) units, ascending, that span most of what all contribute to the output.

    A pivoted Cholesky factorisation of the contributions' products: each pick is the unit
    whose contribution the ones before it explain least.
    """
    products = ((units.T @ units / len(units)) * (out.T @ out)).double()  # (H, H)
    left = products.diagonal().clone()
    factors = products.new_zeros(len(products), count)
    picked: list[int] = []
    for at in range(count):
        best = int(left.argmax())
        picked.append(best)
        explained = factors[:, :at] @ factors[best, :at]
        factors[:, at] = (products[:, best] - explained) / left[best].clamp_min(1e-12).sqrt()
        left -= factors[:, at] ** 2
        left[picked] = -1.0
    return torch.tensor(sorted(picked))


def _fitted(units: Tensor, said: Tensor) -> tuple[Tensor, Tensor]:
    """Weight (D, H) and bias (D,) that make `said` of `units`, by ridge regression."""
    given = torch.cat([units, torch.ones(len(units), 1)], dim=1)
    energy = (given**2).sum(dim=0) + 1e-6
    normal = given.T @ given + _RIDGE * torch.diag(energy)
    solution = torch.linalg.solve(normal, given.T @ said)
    return solution[:-1].T.contiguous(), solution[-1]
