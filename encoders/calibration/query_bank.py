"""A query bank: captions as some thousand cluster centres."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.hubness import QueryBank
from capsearch.engine.records import Vectors

CAPTIONS_PER_LANGUAGE = 8000  # at most, so that no language dominates the bank
CENTRES = 2048  # on validation as good as 12,000 captions; docs/ablations.md
KMEANS_ITERATIONS = 10


def cluster_bank(visual: Vectors, sentence: Vectors, seed: int) -> QueryBank:
    """Captions, (N, D) and (N, S) in both spaces, clustered in the shared one."""
    cluster = _clusters(visual, seed)
    counts = np.bincount(cluster)
    used = counts > 0

    def means(rows: Vectors) -> Vectors:
        sums = np.zeros((len(counts), rows.shape[1]), np.float32)
        np.add.at(sums, cluster, rows)
        return np.asarray(sums[used] / counts[used, None], np.float32)

    fractions = (counts[used] / counts.sum()).astype(np.float32)
    return QueryBank(means(visual), means(sentence), np.log(fractions))


def _clusters(vectors: Vectors, seed: int) -> NDArray[np.int64]:
    """(N,) the cluster of each vector; up to CENTRES vectors, each is its own cluster."""
    if len(vectors) <= CENTRES:
        return np.arange(len(vectors))
    import faiss

    clusters = faiss.Kmeans(
        vectors.shape[1],
        CENTRES,
        niter=KMEANS_ITERATIONS,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(vectors),  # FAISS would subsample otherwise
    )
    clusters.train(vectors)
    return np.asarray(clusters.index.search(vectors, 1)[1][:, 0], np.int64)
