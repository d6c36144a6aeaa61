"""Another backbone into an existing space: only the image projection is trained.

So a fast and an accurate backbone share the text encoders, which are most of what a model
weighs, and sentences need no second encoding when one switches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from capsearch.encoders import models, storage
from capsearch.encoders.text import LanguageEncoder
from capsearch.encoders.training.corpus import LanguageCaptions, Vocabulary
from capsearch.encoders.training.network import (
    Pooling,
    Sentences,
    TextConfig,
    TextNetwork,
    WordsBranch,
)
from capsearch.encoders.training.pair import encode_with
from capsearch.engine.records import Vectors

_GRU = {
    "gru_Wx": "weight_ih_l0",
    "gru_Wh": "weight_hh_l0",
    "gru_bx": "bias_ih_l0",
    "gru_bh": "bias_hh_l0",
}


def load_text(name: str) -> tuple[TextNetwork, dict[str, Vocabulary]]:
    """A text model's encoders back in torch, as they are served, and their vocabularies."""
    folder = models.find(name, "text")
    card = storage.read_card(folder)
    shared = storage.Arrays(folder / "shared.safetensors")
    served = {language: LanguageEncoder(language, folder) for language in card["languages"]}
    vocabularies = {
        language: Vocabulary(language, tuple(encoder.stored["vocabulary"]), encoder.tokenizer)
        for language, encoder in served.items()
    }
    config = _config(next(iter(served.values())), shared)
    sizes = {language: len(vocabulary.words) for language, vocabulary in vocabularies.items()}
    network = TextNetwork(sizes, int(card["dimension"]), config)
    with torch.no_grad():
        _put(network.sentence.weight, shared["sentence_W"])
        _put(network.out.weight, shared["out_W"])
        _put(network.out.bias, shared["out_b"])
        for language, encoder in served.items():
            branch = network.branches[language]
            assert isinstance(branch, WordsBranch)
            _fill(branch, encoder.arrays)
    return network.eval(), vocabularies


def _config(encoder: LanguageEncoder, shared: storage.Arrays) -> TextConfig:
    """The widths and the pooling, which all languages of a model share."""
    arrays = encoder.arrays
    return TextConfig(
        pooling=cast(Pooling, encoder.stored["pooling"]),
        bow_width=arrays["bow"].shape[1],
        word_width=arrays["words"].shape[1],
        gru_width=arrays["gru_Wh"].shape[1],
        sentence_width=shared["sentence_W"].shape[1],
        hidden=shared["sentence_W"].shape[0],
    )


def _fill(branch: WordsBranch, arrays: storage.Arrays) -> None:
    _put(branch.bow.weight[:-1], arrays["bow"])
    _put(branch.words.weight[:-1], arrays["words"])
    for stored, name in _GRU.items():
        _put(getattr(branch.gru, name), arrays[stored])
    _put(branch.attention.weight[0], arrays["attention_W"])
    _put(branch.attention.bias, arrays["attention_b"])
    _put(branch.mix.weight, arrays["mix_W"])
    _put(branch.mix.bias, arrays["mix_b"])


def _put(target: Tensor, values: np.ndarray[Any, np.dtype[np.float32]]) -> None:
    target.copy_(torch.from_numpy(values))


class KnownText(nn.Module):
    """Sentences that were encoded before: their word numbers are rows of a table."""

    def __init__(self, tables: Mapping[str, Vectors]) -> None:
        super().__init__()
        self.tables = {language: torch.from_numpy(table) for language, table in tables.items()}

    def forward(self, sentences: Sentences, language: str) -> Tensor:
        """(N, D) unit rows."""
        return self.tables[language][torch.cat(list(sentences.words))]


def known(
    network: TextNetwork, splits: Sequence[Mapping[str, LanguageCaptions]]
) -> tuple[KnownText, list[dict[str, LanguageCaptions]]]:
    """All captions of some splits encoded once, and the splits again as rows of the result."""
    tables: dict[str, Vectors] = {}
    rows: list[dict[str, LanguageCaptions]] = [{} for _ in splits]
    for language in network.branches:
        parts, start = [], 0
        for at, split in enumerate(splits):
            captions = split[language]
            if not len(captions.photos):
                rows[at][language] = captions
                continue
            parts.append(encode_with(network, captions, language))
            numbers = torch.arange(start, start + len(captions.photos))[:, None]
            rows[at][language] = replace(captions, words=list(numbers))
            start += len(captions.photos)
        if parts:
            tables[language] = np.concatenate(parts)
    return KnownText(tables), rows
