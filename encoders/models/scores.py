"""What many queries score on many documents: the search engine's own scores, as matrices.

    evidence_matrix(queries, documents, ...)    what each source of evidence says, (Q, N) each
    score_matrix(model, queries, documents)     what a search makes of it, (Q, N)

Benchmarks, calibration and `capsearch describe` score by these, so that they measure what users
get; a test holds them and the engine together. One source is left out: words found as words.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.models.calibration import (
    ConceptClassifiers,
    DocumentBank,
    StoredEvidence,
    best_scores,
)
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.text import CalibratedTextEncoder
from capsearch.encoders.text.concepts.mentions import mentioned
from capsearch.engine.evidence import CalibratedEvidence, Evidence, EvidenceModel, Floats
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import EncodedText, Mode, Source, Tag, Vectors

Rows = NDArray[np.int64]
_TEXTS_A_BATCH = 256
Matrix = TypeVar("Matrix", bound="EvidenceMatrix")


@dataclass(frozen=True, slots=True)
class Queries:
    """Q queries of one language, encoded."""

    language: str
    texts: tuple[str, ...]
    visual: Vectors  # (Q, D)
    caption: Vectors  # (Q, C)

    def at(self, rows: Rows) -> Queries:
        """The queries in these rows."""
        texts = tuple(self.texts[row] for row in rows.tolist())
        return Queries(self.language, texts, self.visual[rows], self.caption[rows])


@dataclass(frozen=True, slots=True)
class CaptionRows:
    """M captions in one language as an index holds them, each with the row of its image."""

    vectors: Vectors  # (M, C)
    images: Rows  # (M,)

    def best(self, queries: Vectors, images: int) -> Vectors:
        """(Q, C) -> (Q, N) the score of each image's best caption; NaN for images without any."""
        return best_of_captions(queries @ self.vectors.T, self.images, images)


@dataclass(frozen=True, slots=True)
class Documents:
    """N documents as an index holds them.

    `captions` are people's, in one language; `generated` and `tags` are what models wrote.
    """

    images: Vectors  # (N, D)
    captions: CaptionRows | None = None
    caption_language: str = ""
    generated: Mapping[str, CaptionRows] = field(default_factory=dict)  # by language
    tags: Sequence[Sequence[Tag]] = ()  # N, or none at all


@dataclass(frozen=True, slots=True)
class EvidenceMatrix:
    """What Q queries score on N documents, by source; NaN where a document has no caption.

    `named` is what classifiers say of the things that a query names, for a weight of 1. A
    background is what a query scores on unrelated documents.
    """

    queries: Queries
    image: Floats  # (Q, N)
    caption: Floats  # (Q, N)
    caption_language: str
    image_background: Floats  # (Q,)
    caption_background: Floats  # (Q,)
    generated: Mapping[str, Vectors] = field(default_factory=dict)  # (Q, N) by caption language
    tag: Vectors | None = None  # (Q, N) engine.evidence.tag_score
    named: Floats | None = None  # (Q, N)
    named_background: Floats | None = None  # (Q,)

    def with_named(self: Matrix, weight: float) -> Matrix:
        """What queries name as part of the images' scores (engine.evidence), with this weight."""
        if self.named is None or self.named_background is None:
            return self
        return replace(
            self,
            image=self.image + weight * self.named,
            image_background=self.image_background + weight * self.named_background,
            named=None,
            named_background=None,
        )

    def best_generated(self, offsets: Mapping[str, float]) -> Floats:
        """(Q, N) by the best caption that a model wrote; NaN where it wrote none."""
        best = np.full(self.image.shape, np.nan)
        for language, scores in self.generated.items():
            best = np.fmax(best, scores + offsets.get(language, 0.0))
        return best

    def log_odds(self, row: int, fitted: EvidenceModel) -> Floats:
        """(N,) the score of every document for one query, by what calibration fitted for it."""
        known: dict[str, Floats] = {
            "image": self.image[row],
            "caption": self.caption[row] + fitted.caption_offsets.get(self.caption_language, 0.0),
        }
        background: dict[Source, float] = {
            "image": float(self.image_background[row]),
            "caption": float(self.caption_background[row]),
        }
        if self.named is not None and self.named_background is not None:
            known["image"] = known["image"] + fitted.concept_weight * self.named[row]
            background["image"] += float(fitted.concept_weight * self.named_background[row])
        if self.generated:
            offsets = fitted.caption_offsets
            scores = [
                of_language[row] + offsets.get(lang, 0.0)
                for lang, of_language in self.generated.items()
            ]
            known["generated"] = np.asarray(np.fmax.reduce(scores), np.float64)
        if self.tag is not None:
            known["tag"] = self.tag[row].astype(np.float64)
        documents = self.image.shape[1]
        fusion = CalibratedEvidence(fitted, background, documents)
        return fusion.scores(Evidence.of(documents, **known))

    def probabilities(self, row: int, fitted: EvidenceModel) -> Floats:
        """(N,) the same as users see it."""
        return CalibratedEvidence(fitted, {}, 1).shown(self.log_odds(row, fitted))


def encode_queries(encoder: TextEncoder, texts: Sequence[str], language: str) -> Queries:
    """Texts as they are; `text.requests.subject` has what a search leaves of one."""
    encoded = encode_texts(encoder, texts, language)
    return Queries(language, tuple(texts), encoded.visual, encoded.caption)


def encode_texts(encoder: TextEncoder, texts: Sequence[str], language: str) -> EncodedText:
    """Many texts, a batch at a time."""
    starts = range(0, max(len(texts), 1), _TEXTS_A_BATCH)
    parts = [encoder.encode(texts[at : at + _TEXTS_A_BATCH], language) for at in starts]
    return EncodedText(
        visual=np.concatenate([part.visual for part in parts]),
        caption=np.concatenate([part.caption for part in parts]),
        known=tuple(known for part in parts for known in part.known),
    )


def evidence_matrix(
    queries: Queries,
    documents: Documents,
    bank: DocumentBank | None = None,
    classifiers: ConceptClassifiers | None = None,
) -> EvidenceMatrix:
    """What every source says; without a `bank`, backgrounds are 0."""
    count = len(documents.images)
    image = (queries.visual @ documents.images.T).astype(np.float64)  # (Q, D) x (D, N)
    caption = np.full(image.shape, np.nan)
    if documents.captions is not None:
        caption = documents.captions.best(queries.caption, count).astype(np.float64)
    named, named_background = _named_scores(queries, documents.images, bank, classifiers)
    return EvidenceMatrix(
        queries,
        image,
        caption,
        documents.caption_language,
        *_backgrounds(queries, bank),
        generated={
            language: captions.best(queries.caption, count)
            for language, captions in documents.generated.items()
        },
        tag=tag_scores(documents.tags, queries.texts, queries.language) if documents.tags else None,
        named=named,
        named_background=named_background,
    )


def score_matrix(
    model: Model,
    queries: Queries,
    documents: Documents,
    mode: Mode = "clm",
    weight: float | None = None,
) -> NDArray[np.floating]:
    """(Q, N) the score of every document for every query, as a search in this mode ranks them.

    cm: the cosine and what the query names, in float32 as an index has them. cl: the best caption;
    NaN for a document without any. clm: log-odds of calibrated evidence. A `weight`, as in
    `query --weight`, makes these cosines alone, and clm the convex combination of COCO-CN, as does
    a model that is not calibrated.
    """
    stored = calibration_of(model, queries.language)
    bank, classifiers = (stored.bank, stored.classifiers) if stored else (None, None)
    if mode == "cl" or weight is not None:
        classifiers = None
    matrix = evidence_matrix(queries, documents, bank, classifiers)
    models = _evidence_models(model.text, queries) if weight is None and mode != "cl" else None
    image, caption = matrix.image.astype(np.float32), matrix.caption.astype(np.float32)
    if mode == "cl":
        return caption
    if mode == "cm":
        if models is not None and matrix.named is not None:
            weights = np.array([[fitted.concept_weight] for fitted in models])
            image = image + (weights * matrix.named).astype(np.float32)
        return image
    if models is not None:
        log_odds = [matrix.log_odds(row, fitted) for row, fitted in enumerate(models)]
        return np.reshape(log_odds, matrix.image.shape)
    convex = model.text.convex(queries.language)
    share = convex.weight if weight is None else weight
    floor = np.float32(convex.floor)
    return share * np.where(np.isnan(caption), floor, caption) + (1.0 - share) * image


def calibration_of(model: Model, language: str) -> StoredEvidence | None:
    """What calibration made for a model, if it did for queries in this language."""
    text = model.text
    if not isinstance(text, CalibratedTextEncoder) or text.evidence.model(language) is None:
        return None
    return text.evidence


def _evidence_models(encoder: TextEncoder, queries: Queries) -> list[EvidenceModel] | None:
    """What calibration fitted for each query; None if it never ran."""
    models = [encoder.evidence_model(text, queries.language) for text in queries.texts]
    fitted = [model for model in models if model is not None]
    return fitted if len(fitted) == len(models) else None


def best_of_captions(scores: Vectors, owners: Rows, images: int) -> Vectors:
    """(Q, M) caption scores -> (Q, N) the best of each image; NaN for images without any.

    `owners` are the rows of the captions' images, in any order. A score of -inf is none.
    """
    best = np.full((len(scores), images), np.nan, scores.dtype)
    if len(owners):
        order = np.argsort(owners, kind="stable")
        described, starts = np.unique(owners[order], return_index=True)
        best[:, described] = np.maximum.reduceat(scores[:, order], starts, axis=1)
    return np.where(np.isneginf(best), np.nan, best)


def tag_scores(tags: Sequence[Sequence[Tag]], texts: Sequence[str], language: str) -> Vectors:
    """(Q, N) how sure the tags of each image are of what each query names."""
    known = sorted({tag.concept for some in tags for tag in some})
    columns = {concept: at for at, concept in enumerate(known)}
    table = np.zeros((len(tags), len(columns)), np.float32)  # (N, K)
    for row, some in enumerate(tags):
        for tag in some:
            table[row, columns[tag.concept]] = max(table[row, columns[tag.concept]], tag.confidence)
    scores = np.zeros((len(texts), len(tags)), np.float32)
    for at, text in enumerate(texts):
        mentions = _mentioned(text, language)
        named = [[columns[concept] for concept in ids if concept in columns] for ids in mentions]
        for chosen in named:
            if chosen:
                scores[at] += table[:, chosen].max(axis=1) / len(named)
    return scores


@lru_cache(maxsize=100_000)
def _mentioned(text: str, language: str) -> tuple[frozenset[str], ...]:
    return mentioned(text, language)


def _named_scores(
    queries: Queries,
    images: Vectors,
    bank: DocumentBank | None,
    classifiers: ConceptClassifiers | None,
) -> tuple[Floats | None, Floats | None]:
    """(Q, N) what classifiers say of what each query names, and (Q,) of unrelated images."""
    if classifiers is None or bank is None:
        return None, None
    scores = classifiers.scores(queries.texts, queries.language, images)
    unrelated = classifiers.scores(queries.texts, queries.language, bank.images)
    return scores, best_scores(unrelated)


def _backgrounds(queries: Queries, bank: DocumentBank | None) -> tuple[Floats, Floats]:
    """(Q,) what queries score on unrelated images, and on unrelated captions."""
    count = len(queries.texts)
    if bank is None:
        return np.zeros(count), np.zeros(count)
    encoded = EncodedText(queries.visual, queries.caption, (True,) * count)
    scores = [bank.background(encoded, row) for row in range(count)]
    return np.array([of["image"] for of in scores]), np.array([of["caption"] for of in scores])
