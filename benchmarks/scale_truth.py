"""The exact ten best of a synthetic collection: every document scored, nothing approximated."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from capsearch.benchmarks.scale_vectors import CAPTIONS_PER_IMAGE
from capsearch.engine.evidence import Evidence
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import Vectors
from capsearch.indexer.embedded.arrays import Rows, as_float32, sequential

TOP = 10


def best(
    images: Rows, captions: Rows, queries: Sequence[EncodedQuery], languages: Sequence[str]
) -> list[tuple[int, ...]]:
    """The slots of the ten best images by each query; `languages` are those of the captions."""
    by_image = _image_scores(images, queries)  # (N, Q)
    if queries[0].caption is None:
        return [
            _top(one, Evidence.of(len(images), image=by_image[:, at].astype(float)))
            for at, one in enumerate(queries)
        ]
    textual = np.stack([one.caption for one in queries if one.caption is not None])
    offsets = [[one.caption_offsets.get(lang, 0.0) for one in queries] for lang in languages]
    by_caption = _best_of_each(_scores(captions, textual), np.array(offsets, np.float32))
    return [
        _top(
            one,
            Evidence.of(
                len(images),
                image=by_image[:, at].astype(float),
                caption=by_caption[:, at].astype(float),
            ),
        )
        for at, one in enumerate(queries)
    ]


def recall(found: Sequence[Sequence[object]], exact: Sequence[Sequence[object]]) -> float:
    """The mean share of the exact ten best that was found."""
    return float(
        np.mean(
            [len(set(one) & set(best)) / len(best) for one, best in zip(found, exact, strict=True)]
        )
    )


def _image_scores(rows: Rows, queries: Sequence[EncodedQuery]) -> NDArray[np.float32]:
    """(N, Q) inner products, and what queries name."""
    scores = _scores(rows, np.stack([one.image for one in queries if one.image is not None]))
    for at, one in enumerate(queries):
        if one.named is not None:
            scores[:, at] += one.named.of_products(_scores(rows, one.named.weights))
    return scores


def _scores(rows: Rows, queries: Vectors) -> NDArray[np.float32]:
    """(N, Q)."""
    return np.concatenate([as_float32(block) @ queries.T for block in sequential(rows)])


def _best_of_each(scores: NDArray[np.float32], offsets: NDArray[np.float32]) -> NDArray[np.float32]:
    """(N * captions, Q) -> (N, Q): the best caption of each image."""
    by_image = scores.reshape(-1, CAPTIONS_PER_IMAGE, scores.shape[1])
    by_image += offsets
    return np.asarray(by_image.max(axis=1))


def _top(query: EncodedQuery, evidence: Evidence) -> tuple[int, ...]:
    scores = query.fusion.scores(evidence)
    chosen = np.argpartition(-scores, TOP)[:TOP]
    return tuple(chosen[np.argsort(-scores[chosen])].tolist())
