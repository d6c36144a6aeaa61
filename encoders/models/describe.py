"""Images outside an index: what the model writes about them, and sentences that suit them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capsearch.encoders.images.preprocess import decode
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.scores import (
    Documents,
    Queries,
    calibration_of,
    encode_texts,
    evidence_matrix,
)
from capsearch.engine.errors import InvalidImage, UnknownLanguage, UnknownModel
from capsearch.engine.protocols import Head
from capsearch.engine.records import Caption, Pixels, Tag, Vectors
from capsearch.engine.vectors import similarity_query

_BATCH = 16
# MRR of trio on 600 val images in en, zh, ja: .624, .686, .589 with 0; .642, .698, .592 with 1/4;
# .625, .655, .562 with 1.
_BACKGROUND_WEIGHT = 0.25


@dataclass(frozen=True, slots=True)
class Description:
    """What a model wrote about an image file; `problem` says why it could not be opened."""

    path: Path
    captions: tuple[Caption, ...] = ()
    tags: tuple[Tag, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence of a pool, and how well it suits an image."""

    text: str
    language: str
    score: float


def no_heads(model: str) -> str:
    """What to tell whoever asks a model for captions and tags that has none."""
    return (
        f"{model} writes neither captions nor tags: no tagger or captioner was trained with its "
        "backbone; `capsearch models` lists what there is"
    )


def require_head(model: Model, head: Head | None = None) -> None:
    """UnknownModel unless the model has this head, or any if none is named."""
    enricher = model.enricher()
    if not enricher:
        raise UnknownModel(no_heads(model.name))
    if head is not None and getattr(enricher, head) is None:
        writes = {"tagger": "tags", "captioner": "captions"}[head]
        raise UnknownModel(f"{model.name} writes no {writes}: no {head} is trained with it")


def describe_files(model: Model, paths: Sequence[Path]) -> Iterator[Description]:
    """Captions and tags of image files, in order, by whichever heads the model has."""
    for start in range(0, len(paths), _BATCH):
        yield from _described(model, paths[start : start + _BATCH])


def _described(model: Model, paths: Sequence[Path]) -> Iterator[Description]:
    opened = [(path, _pixels(model, path)) for path in paths]
    pixels = [decoded for _, decoded in opened if not isinstance(decoded, str)]
    written = iter(_written(model, pixels) if pixels else ())
    for path, decoded in opened:
        if isinstance(decoded, str):
            yield Description(path, problem=decoded)
        else:
            yield Description(path, *next(written))


def _written(
    model: Model, pixels: Sequence[Pixels]
) -> Iterator[tuple[tuple[Caption, ...], tuple[Tag, ...]]]:
    """Captions and tags of each image."""
    enricher, features = model.enricher(), model.image.feature_maps(pixels)
    captions: Sequence[tuple[Caption, ...]] = [()] * len(pixels)
    tags: Sequence[tuple[Tag, ...]] = [()] * len(pixels)
    if enricher.captioner is not None and features.grid is not None:
        captions = enricher.captioner.caption(features)
    if enricher.tagger is not None:
        tags = enricher.tagger.tag(features)
    return zip(captions, tags, strict=True)


def _pixels(model: Model, path: Path) -> Pixels | str:
    try:
        return decode(path, model.image.preprocess).pixels
    except InvalidImage as problem:
        return str(problem)
    except OSError as problem:
        return f"cannot be read: {problem.strerror or problem}"


def best_sentences(
    model: Model, pixels: Pixels, pool: Sequence[str], limit: int, language: str | None = None
) -> tuple[Sentence, ...]:
    """The sentences of a pool that suit an image best: search the other way.

    The score is the cosine less a part of what the sentence scores on unrelated images, where the
    model is calibrated: a sentence that is near every image says little about this one. Equal
    scores keep the order of the pool. `language` says that all are in one; otherwise each is
    detected. UnknownLanguage for one that the model does not read.
    """
    if language is not None and language not in model.text.languages:
        known = ", ".join(model.text.languages)
        raise UnknownLanguage(f"no model reads '{language}'; choose one of {known}")
    image = similarity_query(model.image.project(model.image.features([pixels]))[0])
    texts = list(dict.fromkeys(pool))
    languages = [language or model.text.detect(text) for text in texts]
    sentences: dict[int, Sentence] = {}
    for known in model.text.languages:
        rows = [row for row, detected in enumerate(languages) if detected == known]
        scores = _scores(model, image, [texts[row] for row in rows], known) if rows else ()
        sentences |= {
            row: Sentence(texts[row], known, score)
            for row, score in zip(rows, scores, strict=True)
            if score > -np.inf
        }
    ranked = sorted(sentences.items(), key=lambda item: (-item[1].score, item[0]))
    return tuple(sentence for _, sentence in ranked[:limit])


def _scores(model: Model, image: Vectors, texts: Sequence[str], language: str) -> Sequence[float]:
    """-inf for a sentence of which the model knows nothing."""
    encoded = encode_texts(model.text, texts, language)
    queries = Queries(language, tuple(texts), encoded.visual, encoded.caption)
    stored = calibration_of(model, language)
    matrix = evidence_matrix(queries, Documents(image[None]), stored.bank if stored else None)
    scores = matrix.image[:, 0] - _BACKGROUND_WEIGHT * matrix.image_background
    return [
        float(score) if known else -np.inf
        for score, known in zip(scores, encoded.known, strict=True)
    ]
