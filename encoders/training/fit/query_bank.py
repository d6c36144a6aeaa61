"""The bank of a new model: its training captions as some thousand centres."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.hubness import QueryBank
from capsearch.encoders.training.fit.corpus import LanguageCaptions
from capsearch.encoders.training.nn.dual_encoder import DualEncoder, encode
from capsearch.engine.records import Vectors

CAPTIONS_EACH = 8000  # of a language: none shall outweigh the others
CENTRES = 2048  # as good on validation as 12,000 captions themselves
ROUNDS = 10


def build_query_bank(
    pair: DualEncoder, captions: Mapping[str, LanguageCaptions], seed: int
) -> QueryBank:
    """Some captions of every language, drawn at random and clustered where images lie."""
    random = np.random.default_rng(seed)
    told = {name: one for name, one in captions.items() if len(one.image_rows)}
    drawn = {name: one.some(CAPTIONS_EACH, random) for name, one in told.items()}
    visual = np.concatenate([encode(pair, one, name) for name, one in drawn.items()])
    sentence = np.concatenate([one.sentence.astype(np.float32) for one in drawn.values()])
    centre_of = _clustered(visual, seed)
    counts = np.bincount(centre_of)
    there = counts > 0

    def means(rows: Vectors) -> Vectors:
        sums = np.zeros((len(counts), rows.shape[1]), np.float32)
        np.add.at(sums, centre_of, rows)
        return np.asarray(sums[there] / counts[there, None], np.float32)

    shares = (counts[there] / counts.sum()).astype(np.float32)
    return QueryBank(means(visual), means(sentence), np.log(shares))


def _clustered(vectors: Vectors, seed: int) -> NDArray[np.int64]:
    """(N,) the cluster of each; few vectors are clusters of their own."""
    if len(vectors) <= CENTRES:
        return np.arange(len(vectors))
    import faiss

    clusters = faiss.Kmeans(
        vectors.shape[1],
        CENTRES,
        niter=ROUNDS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),  # FAISS would draw a sample of its own
    )
    clusters.train(vectors)
    return np.asarray(clusters.index.search(vectors, 1)[1][:, 0], np.int64)
