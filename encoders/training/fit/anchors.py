"""Names of concepts as anchors, so that text encoders do not forget them while they are fine-tuned.

Every name is drawn to the mean of the vectors that the initial encoders give the commonest names of
its concept in all languages: that mean finds more than the name in one language does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders import concepts
from capsearch.encoders.datasets.text_cache import EncodesSentences
from capsearch.encoders.training.fit.corpus import (
    NO_IMAGE,
    LanguageCaptions,
    Vocabulary,
    encode_captions,
)
from capsearch.encoders.training.nn.dual_encoder import encode_with
from capsearch.encoders.training.nn.w2vv import TextNetwork
from capsearch.engine.records import Vectors

_NAMES = 3  # of a concept in each language, the commonest first


def name_anchors(
    text: TextNetwork,
    vocabularies: Mapping[str, Vocabulary],
    sentences: EncodesSentences,
    concept_ids: Sequence[str],
) -> dict[str, LanguageCaptions]:
    """Names by language, as sentences without images whose teacher is `text` as it is now."""
    anchors, vectors, owners = {}, {}, {}
    for language, vocabulary in vocabularies.items():
        named = [
            (at, name)
            for at, one in enumerate(concept_ids)
            for name in concepts.by_id(one).names[language][:_NAMES]
        ]
        owners[language] = np.array([at for at, _ in named], np.int64)
        rows = np.full(len(named), NO_IMAGE)
        names = [name for _, name in named]
        anchors[language] = encode_captions(vocabulary, names, rows, sentences)
        vectors[language] = encode_with(text, anchors[language], language)
    targets = _means(vectors, owners, len(concept_ids))
    return {
        language: replace(found, teacher=targets[owners[language]].astype(np.float16))
        for language, found in anchors.items()
    }


def _means(
    vectors: Mapping[str, Vectors], owners: Mapping[str, NDArray[np.int64]], count: int
) -> Vectors:
    """(K, D) unit means over the languages of each concept's first name."""
    total = np.zeros((count, next(iter(vectors.values())).shape[1]), np.float32)
    for language, found in vectors.items():
        concept, first = np.unique(owners[language], return_index=True)
        total[concept] += found[first]
    means: Vectors = total / np.maximum(np.linalg.norm(total, axis=1, keepdims=True), 1e-6)
    return means
