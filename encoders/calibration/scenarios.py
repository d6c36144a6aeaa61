"""Collections like people's folders, drawn from validation: some images captioned, most not.

A scenario is a collection of images of which a share has one to five captions in some language,
a few of them wrong, and a set of queries with the images they are about. Whether an image has a
caption does not depend on whether it is relevant: both queries and captions come from images that
have captions in both languages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders import concepts
from capsearch.encoders.calibration.collection import EncodedCaptions, EncodedImages, Rows
from capsearch.encoders.evidence import DocumentBank
from capsearch.engine.records import EncodedText, Vectors

Floats = NDArray[np.float64]
SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
SIZES = (250, 1000, 3000)
MAX_CAPTIONS = 5
WRONG_CAPTIONS = 0.01  # of the captions belong to another image: metadata is not always right
MAX_QUERIES = 400


@dataclass(frozen=True, slots=True)
class Scenario:
    """Scores of Q queries on N documents; NaN where a document has no caption."""

    image: Floats  # (Q, N)
    caption: Floats  # (Q, N)
    relevant: NDArray[np.bool_]  # (Q, N)
    image_background: Floats  # (Q,)
    caption_background: Floats  # (Q,)
    caption_language: str
    texts: tuple[str, ...] = ()  # of the queries
    generated: Mapping[str, Vectors] = field(default_factory=dict)  # (Q, N) by caption language
    tag: Vectors | None = None  # (Q, N) engine.evidence.tag_score

    def best_generated(self, offsets: Mapping[str, float]) -> Floats:
        """(Q, N) by the best caption that a model wrote; NaN where it wrote none."""
        best = np.full(self.image.shape, np.nan)
        for language, scores in self.generated.items():
            best = np.fmax(best, scores + offsets.get(language, 0.0))
        return best


def scenarios(
    data: EncodedImages, language: str, bank: DocumentBank, random: np.random.Generator
) -> Iterator[Scenario]:
    """Sentences of one language against captions of every language, in all shares and sizes."""
    queries = data.captions[language]
    for other, captions in data.captions.items():
        both = np.intersect1d(queries.image_rows, captions.image_rows)
        for size in SIZES:
            for share in SHARES:
                chosen = draw(np.unique(captions.image_rows), size, random)
                asked = _draw_queries(queries, np.intersect1d(both, chosen), random)
                if len(asked.image_rows):
                    documents = captions.of_images(chosen)
                    yield _scenario(
                        data, asked, documents, chosen, bank, share, random, other, language
                    )


def names(
    data: EncodedImages,
    encoded: EncodedText,
    named: Mapping[str, str],
    bank: DocumentBank,
    random: np.random.Generator,
) -> Iterator[Scenario]:
    """Names of objects as queries: all images that people labelled so are relevant.

    `named` has the query of each label, `encoded` the queries in that order.
    """
    labels, texts = list(named), list(named.values())
    labelled = np.array([row for row, found in enumerate(data.objects) if found], np.int64)
    for language, captions in data.captions.items():
        for size, share in product(SIZES, SHARES):
            chosen = draw(labelled, size, random)
            relevant = relevance(data, labels, chosen)
            present = np.flatnonzero(relevant.any(axis=1))
            if not len(present):
                continue
            visual, caption = encoded.visual[present], encoded.caption[present]
            documents = captions.of_images(chosen)
            owners = np.searchsorted(chosen, documents.image_rows)
            kept = _kept(owners, len(chosen), share, random)
            yield Scenario(
                (visual @ data.images[chosen].T).astype(np.float64),
                _best(caption @ documents.documents[kept].T, owners[kept], len(chosen)),
                relevant[present],
                *backgrounds(bank, visual, caption),
                language,
                asked := tuple(texts[row] for row in present),
                generated_scores(data, caption, chosen),
                tag_scores(data, asked, chosen),
            )


def share_of(
    data: EncodedImages,
    language: str,
    other: str,
    bank: DocumentBank,
    share: float,
    captions: int,
    random: np.random.Generator,
) -> Scenario | None:
    """One collection for a benchmark: all images described in a language, a share captioned.

    Every image has at most its first `captions` captions, none of them wrong. None where no
    query has an image there.
    """
    documents = data.captions[other]
    images = np.unique(documents.image_rows)
    queries = data.captions[language].of_images(images)
    if not len(queries.image_rows):
        return None
    captioned = images[random.random(len(images)) < share]
    kept = documents.of_images(captioned).first_of_each(captions)
    scores = queries.caption @ kept.documents.T
    owners = np.searchsorted(images, kept.image_rows)
    return Scenario(
        (queries.visual @ data.images[images].T).astype(np.float64),
        _best(scores, owners, len(images)),
        queries.image_rows[:, None] == images[None, :],
        *backgrounds(bank, queries.visual, queries.caption),
        other,
        queries.texts,
        generated_scores(data, queries.caption, images),
        tag_scores(data, queries.texts, images),
    )


def without_captions(
    data: EncodedImages,
    images: Rows,
    queries: EncodedText,
    relevant: NDArray[np.bool_],
    bank: DocumentBank,
    language: str,
    texts: Sequence[str],
) -> Scenario:
    """Queries against images that nobody wrote a caption for; models may have."""
    scores = (queries.visual @ data.images[images].T).astype(np.float64)
    return Scenario(
        scores,
        np.full_like(scores, np.nan),
        relevant,
        *backgrounds(bank, queries.visual, queries.caption),
        language,
        tuple(texts),
        generated_scores(data, queries.caption, images),
        tag_scores(data, texts, images),
    )


def relevance(data: EncodedImages, labels: Sequence[str], images: Rows) -> NDArray[np.bool_]:
    """(L, N) which of these images people gave each label."""
    found = [[label in data.objects[row] for row in images.tolist()] for label in labels]
    return np.array(found, bool).reshape(len(labels), len(images))


def generated_scores(data: EncodedImages, queries: Vectors, images: Rows) -> dict[str, Vectors]:
    """(Q, N) scores of what the model wrote about each image, by language."""
    found = {}
    for language, captions in data.generated.items():
        kept = captions.of_images(images)
        owners = np.searchsorted(images, kept.image_rows)
        scores = _best(queries @ kept.documents.T, owners, len(images))
        found[language] = scores.astype(np.float32)
    return found


def tag_scores(data: EncodedImages, texts: Sequence[str], images: Rows) -> Vectors | None:
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
        named = [[columns[one] for one in ids if one in columns] for ids in _mentioned(text)]
        for chosen in named:
            if chosen:
                scores[at] += table[:, chosen].max(axis=1) / len(named)
    return scores


@lru_cache(maxsize=100_000)
def _mentioned(text: str) -> tuple[frozenset[str], ...]:
    return concepts.mentioned(text)


def _scenario(
    data: EncodedImages,
    queries: EncodedCaptions,
    captions: EncodedCaptions,
    images: Rows,
    bank: DocumentBank,
    share: float,
    random: np.random.Generator,
    caption_language: str,
    query_language: str,
) -> Scenario:
    column = {row: at for at, row in enumerate(images.tolist())}
    right = np.array([column[row] for row in queries.image_rows.tolist()])
    relevant = np.zeros((len(right), len(images)), bool)
    relevant[np.arange(len(right)), right] = True
    owners = np.array([column[row] for row in captions.image_rows.tolist()])
    wrong = random.random(len(owners)) < WRONG_CAPTIONS
    owners[wrong] = random.integers(0, len(images), int(wrong.sum()))
    scores = queries.caption @ captions.documents.T  # (Q, C) x (C, M) -> (Q, M)
    if caption_language == query_language:  # a query must not find itself
        repeated = np.array(queries.texts)[:, None] == np.array(captions.texts)[None, :]
        scores = np.where(repeated, -np.inf, scores)
    kept = _kept(owners, len(images), share, random)
    best = _best(scores[:, kept], owners[kept], len(images))
    # A query that is its image's only caption there would count as one of an uncaptioned image.
    captioned = np.isin(right, owners[kept])
    asked = np.flatnonzero(~captioned | ~np.isnan(best[np.arange(len(right)), right]))
    queries = queries.at(asked)
    return Scenario(
        (queries.visual @ data.images[images].T).astype(np.float64),
        best[asked],
        relevant[asked],
        *backgrounds(bank, queries.visual, queries.caption),
        caption_language,
        queries.texts,
        generated_scores(data, queries.caption, images),
        tag_scores(data, queries.texts, images),
    )


def _best(scores: Vectors, owners: Rows, images: int) -> Floats:
    """(Q, M) caption scores -> (Q, N) the best of each image; NaN for images without any."""
    best = np.full((len(scores), images), -np.inf)
    for at, owner in enumerate(owners):
        best[:, owner] = np.maximum(best[:, owner], scores[:, at])
    return np.where(np.isneginf(best), np.nan, best)


def _kept(
    owners: Rows, images: int, share: float, random: np.random.Generator
) -> NDArray[np.bool_]:
    """Which captions stay: of a share of the images, one to five each."""
    captioned = random.random(images) < share
    most = random.integers(1, MAX_CAPTIONS + 1, images)
    keep = np.zeros(len(owners), bool)
    counts = np.zeros(images, int)
    for at in random.permutation(len(owners)):
        owner = owners[at]
        if captioned[owner] and counts[owner] < most[owner]:
            keep[at] = True
            counts[owner] += 1
    return keep


def backgrounds(bank: DocumentBank, visual: Vectors, caption: Vectors) -> tuple[Floats, Floats]:
    """(Q,) what queries score on unrelated images, and on unrelated captions."""
    encoded = EncodedText(visual, caption, (True,) * len(visual))
    found = [bank.background(encoded, row) for row in range(len(visual))]
    return (
        np.array([one["image"] for one in found]),
        np.array([one["caption"] for one in found]),
    )


def draw(rows: Rows, count: int, random: np.random.Generator) -> Rows:
    """At most `count` of the rows, ascending."""
    return np.sort(random.permutation(rows)[:count])


def _draw_queries(
    queries: EncodedCaptions, images: Rows, random: np.random.Generator
) -> EncodedCaptions:
    rows = np.flatnonzero(np.isin(queries.image_rows, images))
    return queries.at(draw(rows, MAX_QUERIES, random))
