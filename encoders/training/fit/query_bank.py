"""The query bank of a new model: its training captions as some thousand cluster centres."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from capsearch.encoders.calibration.query_bank import CAPTIONS_PER_LANGUAGE, cluster_bank
from capsearch.encoders.hubness import QueryBank
from capsearch.encoders.training.fit.corpus import LanguageCaptions
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, encode


def build_query_bank(
    model: DualEncoder, captions: Mapping[str, LanguageCaptions], seed: int
) -> QueryBank:
    """A random sample of every language's captions, clustered in the shared space."""
    random = np.random.default_rng(seed)
    sample = {
        language: one.some(CAPTIONS_PER_LANGUAGE, random)
        for language, one in captions.items()
        if len(one.image_rows)
    }
    visual = np.concatenate([encode(model, one, language) for language, one in sample.items()])
    sentence = np.concatenate([one.sentence.astype(np.float32) for one in sample.values()])
    return cluster_bank(visual, sentence, seed)
