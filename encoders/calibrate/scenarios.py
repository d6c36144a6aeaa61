"""Collections like people's folders, drawn from validation: some images captioned, most not.

A scenario is a collection of images of which a share has one to five captions in some language,
a few of them wrong, and a set of queries with the images they are about. Whether an image has a
caption does not depend on whether it is relevant: both queries and captions come from images that
have captions in both languages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibrate.collection import (
    EncodedCaptions,
    EncodedImages,
    Floats,
    Rows,
    backgrounds,
    best_of_captions,
    generated_scores,
    named_scores,
    tag_scores,
)
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.engine.records import EncodedText, Vectors

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
    named: Floats | None = None  # (Q, N) what the model's classifiers add to `image`, unweighted
    named_background: Floats | None = None  # (Q,) and to `image_background`

    def of_query(self, row: int) -> Scenario:
        """The same with one of the queries alone."""

        def part(values: Floats | None) -> Floats | None:
            return None if values is None else values[row : row + 1]

        return replace(
            self,
            image=self.image[row : row + 1],
            caption=self.caption[row : row + 1],
            relevant=self.relevant[row : row + 1],
            image_background=self.image_background[row : row + 1],
            caption_background=self.caption_background[row : row + 1],
            texts=self.texts[row : row + 1],
            generated={one: scores[row : row + 1] for one, scores in self.generated.items()},
            tag=None if self.tag is None else self.tag[row : row + 1],
            named=part(self.named),
            named_background=part(self.named_background),
        )

    def with_named(self, weight: float) -> Scenario:
        """The same, with what queries name as part of the images' scores (engine.evidence)."""
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
    query_language: str,
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
            asked = tuple(texts[row] for row in present)
            yield Scenario(
                (visual @ data.images[chosen].T).astype(np.float64),
                best_of_captions(caption @ documents.documents[kept].T, owners[kept], len(chosen)),
                relevant[present],
                *backgrounds(bank, visual, caption),
                language,
                asked,
                generated_scores(data, caption, chosen),
                tag_scores(data, asked, query_language, chosen),
                *named_scores(data, asked, query_language, chosen, bank),
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
        best_of_captions(scores, owners, len(images)),
        queries.image_rows[:, None] == images[None, :],
        *backgrounds(bank, queries.visual, queries.caption),
        other,
        queries.texts,
        generated_scores(data, queries.caption, images),
        tag_scores(data, queries.texts, language, images),
        *named_scores(data, queries.texts, language, images, bank),
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
        tag_scores(data, texts, language, images),
        *named_scores(data, texts, language, images, bank),
    )


def relevance(data: EncodedImages, labels: Sequence[str], images: Rows) -> NDArray[np.bool_]:
    """(L, N) which of these images people gave each label."""
    found = [[label in data.objects[row] for row in images.tolist()] for label in labels]
    return np.array(found, bool).reshape(len(labels), len(images))


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
    best = best_of_captions(scores[:, kept], owners[kept], len(images))
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
        tag_scores(data, queries.texts, query_language, images),
        *named_scores(data, queries.texts, query_language, images, bank),
    )


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


def draw(rows: Rows, count: int, random: np.random.Generator) -> Rows:
    """At most `count` of the rows, ascending."""
    return np.sort(random.permutation(rows)[:count])


def _draw_queries(
    queries: EncodedCaptions, images: Rows, random: np.random.Generator
) -> EncodedCaptions:
    rows = np.flatnonzero(np.isin(queries.image_rows, images))
    return queries.at(draw(rows, MAX_QUERIES, random))
