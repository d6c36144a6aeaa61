"""Frozen text encoders, for training only the image projection of another backbone.

A fast and an accurate backbone can then share the text encoders, which are most of a model's
size, and captions need not be encoded again when the backbone changes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from capsearch.encoders.training.fit.corpus import LanguageCaptions
from capsearch.encoders.training.nn.dual_encoder import encode_with
from capsearch.encoders.training.nn.w2vv import TextNetwork, TokenBatch
from capsearch.engine.records import Vectors


class FrozenText(nn.Module):
    """Sentences encoded beforehand: a sentence's only token id is its row in a table."""

    def __init__(self, tables: Mapping[str, Vectors]) -> None:
        super().__init__()
        self.tables = {language: torch.from_numpy(table) for language, table in tables.items()}

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenText:
        """Itself: the tables never change, and the averaged model would double their gigabytes."""
        return self

    def forward(self, sentences: TokenBatch, language: str) -> Tensor:
        """(N, D) unit rows."""
        return self.tables[language][torch.cat(list(sentences.token_ids))]


def freeze_text(
    network: TextNetwork, splits: Sequence[Mapping[str, LanguageCaptions]]
) -> tuple[FrozenText, list[dict[str, LanguageCaptions]]]:
    """Encode all captions of some splits once; the splits come back as rows of the result."""
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
            row_ids = torch.arange(start, start + len(captions.image_rows))[:, None]
            rows[at][language] = replace(captions, token_ids=list(row_ids))
            start += len(captions.image_rows)
        if parts:
            tables[language] = np.concatenate(parts)
    return FrozenText(tables), rows
