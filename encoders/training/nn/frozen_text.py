"""Another backbone into an existing space: only the image projection is trained.

So a fast and an accurate backbone share the text encoders, which are most of what a model
weighs, and sentences need no second encoding when one switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from capsearch.encoders.training.fit.corpus import LanguageCaptions
from capsearch.encoders.training.nn.dual_encoder import encode_with
from capsearch.encoders.training.nn.w2vv import TextNetwork, TokenBatch
from capsearch.engine.records import Vectors


class FrozenText(nn.Module):
    """Sentences that were encoded before: their word numbers are rows of a table."""

    def __init__(self, tables: Mapping[str, Vectors]) -> None:
        super().__init__()
        self.tables = {language: torch.from_numpy(table) for language, table in tables.items()}

    def forward(self, sentences: TokenBatch, language: str) -> Tensor:
        """(N, D) unit rows."""
        return self.tables[language][torch.cat(list(sentences.words))]


def known(
    network: TextNetwork, splits: Sequence[Mapping[str, LanguageCaptions]]
) -> tuple[FrozenText, list[dict[str, LanguageCaptions]]]:
    """All captions of some splits encoded once, and the splits again as rows of the result."""
    tables: dict[str, Vectors] = {}
    rows: list[dict[str, LanguageCaptions]] = [{} for _ in splits]
    for language in network.branches:
        parts, start = [], 0
        for at, split in enumerate(splits):
            captions = split[language]
            if not len(captions.image_rows):
                rows[at][language] = captions
                continue
            parts.append(encode_with(network, captions, language))
            numbers = torch.arange(start, start + len(captions.image_rows))[:, None]
            rows[at][language] = replace(captions, words=list(numbers))
            start += len(captions.image_rows)
        if parts:
            tables[language] = np.concatenate(parts)
    return FrozenText(tables), rows
