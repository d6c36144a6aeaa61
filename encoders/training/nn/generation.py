"""Joint learning of backbone and decoder (Zhu 2016): an LSTM that writes captions from features.

Its loss trains the backbone's last blocks beside the retrieval loss. It writes the words of the
text encoders, which are stems and dictionary forms, so the decoder itself is thrown away: a
captioner is trained afterwards on the features that it helped to form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from capsearch.encoders.captioners.vocabulary import END, CaptionVocabulary
from capsearch.encoders.training.nn.caption_decoders import CaptionConfig, ShowAndTell

_PADDING = -100


class GenerationHead(nn.Module):
    """Cross entropy of captions under a Show-and-Tell LSTM, given (N, F) features."""

    def __init__(self, words: Mapping[str, tuple[str, ...]], features: int, width: int = 256):
        super().__init__()
        self.image = nn.Linear(features, width)
        self.decoder = ShowAndTell(CaptionVocabulary(words), CaptionConfig(width=width))

    def forward(self, features: Tensor, sentences: Sequence[Tensor], language: str) -> Tensor:
        """The mean over the words of captions, each given as ids in its vocabulary."""
        vocabulary = self.decoder.vocabulary
        ended = [torch.cat([ids + 1, ids.new_tensor([END])]) for ids in sentences]
        targets = nn.utils.rnn.pad_sequence(ended, batch_first=True, padding_value=_PADDING)
        rows = torch.from_numpy(vocabulary.outputs(language))
        start = torch.full((len(targets), 1), vocabulary.start(language))
        tokens = torch.cat([start, rows[targets[:, :-1].clamp(min=0)]], 1)
        hidden = self.decoder(self.image(features), tokens)
        known = targets != _PADDING
        logits = self.decoder.logits(hidden[known], language)
        return nn.functional.cross_entropy(logits, targets[known])
