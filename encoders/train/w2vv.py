"""Enhanced W2VV in torch (`encoders.models.w2vv` runs it in numpy), and the paper's variants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from capsearch.engine.errors import TrainingProblem

Input = Literal["bow", "word2vec", "gru", "sentence"]
Pooling = Literal["last", "mean", "attention"]
INPUTS: tuple[Input, ...] = ("bow", "word2vec", "gru", "sentence")


@dataclass(frozen=True, slots=True)
class TextConfig:
    """The inputs of a text encoder, and the widths of its layers."""

    inputs: tuple[Input, ...] = INPUTS
    pooling: Pooling = "attention"
    bow_width: int = 512
    word_width: int = 300
    gru_width: int = 256
    sentence_width: int = 512
    hidden: int = 2048
    dropout_words: float = 0.2
    dropout_hidden: float = 0.3
    train_words: bool = True  # the word vectors; the paper's Enhanced W2VV freezes them


def text_config(inputs: str, pooling: Pooling, hidden: int | None) -> TextConfig:
    """The text encoders that --inputs, --pooling and --hidden describe."""
    chosen = tuple(filter(None, map(str.strip, inputs.split(","))))
    if not chosen or not {*chosen} <= {*INPUTS}:
        raise TrainingProblem(f"--inputs are some of {','.join(INPUTS)}, not {inputs!r}")
    config = TextConfig(inputs=cast(tuple[Input, ...], chosen), pooling=pooling)
    return replace(config, hidden=hidden) if hidden else config


@dataclass(frozen=True, slots=True)
class TokenBatch:
    """A batch of sentences in one language: token ids and sentence vectors."""

    token_ids: Sequence[Tensor] = field(repr=False)  # N tensors of vocabulary rows
    sentence: Tensor = field(repr=False)  # (N, S)


class LanguageBranch(nn.Module):
    """One language's tokens -> (N, H): bag of words, mean vector and pooled GRU, concatenated."""

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

    def forward(self, token_ids: Sequence[Tensor]) -> Tensor:
        """(N, H) before the ReLU; a sentence without known tokens gives the bias alone."""
        padding = self.bow.num_embeddings - 1  # the row after the vocabulary
        lengths = torch.tensor([max(len(ids), 1) for ids in token_ids])
        padded = nn.utils.rnn.pad_sequence(
            [ids if len(ids) else torch.tensor([padding]) for ids in token_ids],
            batch_first=True,
            padding_value=padding,
        )  # (N, T)
        present = padded.ne(padding)
        drop = self.config.dropout_words
        bag = F.dropout(self._bag(padded), drop, self.training)
        vectors = self.words(padded)  # (N, T, E)
        mean = vectors.sum(1) / present.sum(1, keepdim=True).clamp(min=1)
        mean = F.dropout(mean, drop, self.training)
        pooled = self._pooled(vectors, lengths, present)
        pooled = F.dropout(pooled, drop, self.training)
        return self.mix(torch.cat([bag, mean, pooled], 1) * self.used)  # type: ignore[no-any-return]

    def _bag(self, padded: Tensor) -> Tensor:
        """Sum over the distinct tokens of a sentence."""
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
    """1 for the columns of the chosen inputs, 0 for the others."""
    parts = [torch.full((width,), float(name in inputs)) for name, width in widths.items()]
    return torch.cat(parts)


class TextNetwork(nn.Module):
    """All languages' sentences -> (N, D) unit rows of the shared space.

    Each language has a branch for its tokens; the sentence input and the output layer are
    shared, so that English captions improve Chinese and Japanese queries too.
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
        # Unit vectors have entries around 1/sqrt(512); this matches the scale of the branches.
        self.sentence.weight.data *= 4.0
        self.out = nn.Linear(config.hidden, dimension)

    def forward(self, sentences: TokenBatch, language: str) -> Tensor:
        """(N, D) unit rows."""
        return F.normalize(self.raw(sentences, language), dim=1)

    def raw(self, sentences: TokenBatch, language: str) -> Tensor:
        """(N, D) before normalising, as the paper's MSE and contrastive losses compare them."""
        hidden = self.branches[language](sentences.token_ids)
        if "sentence" in self.config.inputs:
            vectors = F.dropout(sentences.sentence, self.config.dropout_words / 2, self.training)
            hidden = hidden + self.sentence(vectors)
        hidden = F.dropout(F.relu(hidden), self.config.dropout_hidden, self.training)
        return self.out(hidden)  # type: ignore[no-any-return]


class ImageProjection(nn.Module):
    """(N, F) standardised features -> (N, D) unit rows.

    `identity` does not project: the paper's models predict the features themselves.
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
        features = F.dropout(features, self.dropout, self.training)
        return F.normalize(self.linear(features), dim=1)
