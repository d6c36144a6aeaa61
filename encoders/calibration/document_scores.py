"""What queries score on the images of a data set, by every source of evidence."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibration.collection import EncodedImages, Rows
from capsearch.encoders.concepts.mentions import mentioned
from capsearch.encoders.evidence import DocumentBank, best_scores
from capsearch.engine.records import EncodedText, Vectors

Floats = NDArray[np.float64]


def best_of_captions(scores: Vectors, owners: Rows, images: int) -> Floats:
    """(Q, M) caption scores -> (Q, N) the best of each image; NaN for images without any."""
    best = np.full((len(scores), images), -np.inf)
    for at, owner in enumerate(owners):
        best[:, owner] = np.maximum(best[:, owner], scores[:, at])
    return np.where(np.isneginf(best), np.nan, best)


def generated_scores(data: EncodedImages, queries: Vectors, images: Rows) -> dict[str, Vectors]:
    """(Q, N) scores of what the model wrote about each image, by language."""
    found = {}
    for language, captions in data.generated.items():
        kept = captions.of_images(images)
        owners = np.searchsorted(images, kept.image_rows)
        scores = best_of_captions(queries @ kept.documents.T, owners, len(images))
        found[language] = scores.astype(np.float32)
    return found


def tag_scores(
    data: EncodedImages, texts: Sequence[str], language: str, images: Rows
) -> Vectors | None:
    """(Q, N) how sure the model's tags are of what each query names; None without tags."""
    if not data.tags:
        return None
    tags = [data.tags[row] for row in images.tolist()]
    columns = {one: at for at, one in enumerate(sorted({t.concept for some in tags for t in some}))}
    table = np.zeros((len(tags), len(columns)), np.float32)  # (N, K)
    for row, some in enumerate(tags):
        for tag in some:
            table[row, columns[tag.concept]] = max(table[row, columns[tag.concept]], tag.confidence)
    scores = np.zeros((len(texts), len(tags)), np.float32)
    for at, text in enumerate(texts):
        mentions = _mentioned(text, language)
        named = [[columns[one] for one in ids if one in columns] for ids in mentions]
        for chosen in named:
            if chosen:
                scores[at] += table[:, chosen].max(axis=1) / len(named)
    return scores


def named_scores(
    data: EncodedImages,
    texts: Sequence[str],
    language: str,
    images: Rows,
    bank: DocumentBank,
) -> tuple[Floats | None, Floats | None]:
    """(Q, N) what classifiers say of what each query names, and (Q,) of unrelated images."""
    found = data.classifiers
    if found is None:
        return None, None
    images_scores = found.scores(texts, language, data.images[images])
    return images_scores, best_scores(found.scores(texts, language, bank.images))


@lru_cache(maxsize=100_000)
def _mentioned(text: str, language: str) -> tuple[frozenset[str], ...]:
    return mentioned(text, language)


def backgrounds(bank: DocumentBank, visual: Vectors, caption: Vectors) -> tuple[Floats, Floats]:
    """(Q,) what queries score on unrelated images, and on unrelated captions."""
    encoded = EncodedText(visual, caption, (True,) * len(visual))
    found = [bank.background(encoded, row) for row in range(len(visual))]
    return (
        np.array([one["image"] for one in found]),
        np.array([one["caption"] for one in found]),
    )
