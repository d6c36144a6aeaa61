"""Enhanced W2VV in torch: what `encoders.text` runs in numpy, and the paper's variants of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

Input = Literal["bow", "word2vec", "gru", "sentence"]
Pooling = Literal["last", "mean", "attention"]
INPUTS: tuple[Input, ...] = ("bow", "word2vec", "gru", "sentence")


@dataclass(frozen=True, slots=True)
class TextConfig:
    """Which parts a text encoder has, and how wide they are."""

    inputs: tuple[Input, ...] = INPUTS
    pooling: Pooling = "attention"
    bow_width: int = 512
    word_width: int = 300
    gru_width: int = 256
    sentence_width: int = 512
    hidden: int = 2048
    dropout_words: float = 0.2
    dropout_hidden: float = 0.3
    train_words: bool = True  # the paper's Enhanced W2VV freezes them; see the ablations


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A batch of one language: word numbers a sentence, and sentence vectors."""

    words: Sequence[Tensor] = field(repr=False)  # N tensors of vocabulary numbers
    sentence: Tensor = field(repr=False)  # (N, S)


class LanguageBranch(nn.Module):
    """One language's words -> (N, H): bag of words, mean word vector, pooled GRU, side by side."""

    def __init__(self, vocabulary: int, config: TextConfig, vectors: Tensor | None) -> None:
        super().__init__()
        self.config = config
        self.bow = nn.Embedding(vocabulary + 1, config.bow_width, padding_idx=vocabulary)
        self.words = nn.Embedding(vocabulary + 1, config.word_width, padding_idx=vocabulary)
        nn.init.normal_(self.bow.weight, std=0.02)
        if vectors is not None:
            self.words.weight.data[:vocabulary] = vectors
        for table in (self.bow, self.words):
            table.weight.data[vocabulary] = 0.0
        self.words.weight.requires_grad_(config.train_words)
        self.gru = nn.GRU(config.word_width, config.gru_width, batch_first=True)
        self.attention = nn.Linear(config.gru_width, 1)
        widths = {"bow": config.bow_width, "word2vec": config.word_width, "gru": config.gru_width}
        self.mix = nn.Linear(sum(widths.values()), config.hidden)
        self.used: Tensor
        self.register_buffer("used", _mask(widths, config.inputs), persistent=False)

    def forward(self, words: Sequence[Tensor]) -> Tensor:
        """(N, H) before the ReLU; a sentence without known words gives the bias alone."""
        vocabulary = self.bow.num_embeddings - 1  # its number is the padding's
        lengths = torch.tensor([max(len(one), 1) for one in words])
        padded = nn.utils.rnn.pad_sequence(
            [one if len(one) else torch.tensor([vocabulary]) for one in words],
            batch_first=True,
            padding_value=vocabulary,
        )  # (N, T)
        present = padded.ne(vocabulary)
        drop = self.config.dropout_words
        bag = F.dropout(self._bag(padded), drop, self.training)
        vectors = self.words(padded)  # (N, T, E)
        mean = vectors.sum(1) / present.sum(1, keepdim=True).clamp(min=1)
        mean = F.dropout(mean, drop, self.training)
        pooled = self._pooled(vectors, lengths, present)
        pooled = F.dropout(pooled, drop, self.training)
        return self.mix(torch.cat([bag, mean, pooled], 1) * self.used)  # type: ignore[no-any-return]

    def _bag(self, padded: Tensor) -> Tensor:
        """Sum over the distinct words of a sentence."""
        ordered = padded.sort(dim=1).values
        repeated = F.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
        return (self.bow(ordered) * ~repeated[:, :, None]).sum(1)  # type: ignore[no-any-return]

    def _pooled(self, vectors: Tensor, lengths: Tensor, present: Tensor) -> Tensor:
        if "gru" not in self.config.inputs:
            return vectors.new_zeros(len(vectors), self.config.gru_width)
        packed = pack_padded_sequence(vectors, lengths, batch_first=True, enforce_sorted=False)
        outputs, last = self.gru(packed)
        states, _ = pad_packed_sequence(outputs, batch_first=True)  # (N, T, G)
        known = present.any(1, keepdim=True)
        if self.config.pooling == "last":
            return last[0] * known  # type: ignore[no-any-return]
        if self.config.pooling == "mean":
            return (states * present[:, :, None]).sum(1) / lengths[:, None] * known
        relevance = self.attention(states)[:, :, 0].masked_fill(~present, -1e9)  # eq. 1
        return (relevance.softmax(1)[:, :, None] * states).sum(1) * known  # type: ignore[no-any-return]


def _mask(widths: dict[str, int], inputs: tuple[Input, ...]) -> Tensor:
    """1 for the columns of inputs in use, 0 for the others."""
    parts = [torch.full((width,), float(name in inputs)) for name, width in widths.items()]
    return torch.cat(parts)


class TextNetwork(nn.Module):
    """All languages' sentences -> (N, D) unit rows of the shared space.

    The words have a branch for each language; the sentence input and the output layer are
    one for all, so that what English captions teach serves Chinese and Japanese queries.
    """

    def __init__(
        self,
        vocabularies: dict[str, int],
        dimension: int,
        config: TextConfig,
        vectors: dict[str, Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.branches = nn.ModuleDict(
            {
                language: LanguageBranch(size, config, (vectors or {}).get(language))
                for language, size in vocabularies.items()
            }
        )
        self.sentence = nn.Linear(config.sentence_width, config.hidden, bias=False)
        # Unit vectors have entries around 1/sqrt(512); bring them to the words' scale.
        self.sentence.weight.data *= 4.0
        self.out = nn.Linear(config.hidden, dimension)

    def forward(self, sentences: TokenBatch, language: str) -> Tensor:
        """(N, D) unit rows."""
        return F.normalize(self.raw(sentences, language), dim=1)

    def raw(self, sentences: TokenBatch, language: str) -> Tensor:
        """(N, D) before normalising: what the paper's MSE and contrastive losses compare."""
        hidden = self.branches[language](sentences.words)
        if "sentence" in self.config.inputs:
            given = F.dropout(sentences.sentence, self.config.dropout_words / 2, self.training)
            hidden = hidden + self.sentence(given)
        hidden = F.dropout(F.relu(hidden), self.config.dropout_hidden, self.training)
        return self.out(hidden)  # type: ignore[no-any-return]


class ImageProjection(nn.Module):
    """(N, F) standardised features -> (N, D) unit rows.

    `identity` leaves the features where they are: the paper's models predict them as such.
    """

    def __init__(self, features: int, dimension: int, identity: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(features, dimension)
        self.dropout = 0.0 if identity else 0.1
        if identity:
            nn.init.eye_(self.linear.weight)
            nn.init.zeros_(self.linear.bias)
            self.linear.requires_grad_(False)

    def forward(self, features: Tensor) -> Tensor:
        """(N, D) unit rows."""
        kept = F.dropout(features, self.dropout, self.training)
        return F.normalize(self.linear(kept), dim=1)
