"""Collections like people's folders, drawn from validation: some images captioned, most not.

A scenario is a collection of images of which a share has one to five captions in some language,
a few of them wrong, and a set of queries with the images they are about. Whether an image has a
caption does not depend on whether it is relevant: both queries and captions come from images that
have captions in both languages.

Queries are sentences (captions of other images' kind), names of the objects that people labelled,
and names of what labelled photographs show. The objects of captioned photographs are few and well
known to every model. Names of the world are not: among them are some that the model was never
trained on, whose best hits are mostly wrong.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import product
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibrate.collection import (
    EncodedCaptions,
    EncodedImages,
    LabelledImages,
)
from capsearch.encoders.models.calibration import DocumentBank
from capsearch.encoders.models.scores import (
    CaptionRows,
    EvidenceMatrix,
    Queries,
    Rows,
    best_of_captions,
    encode_queries,
    evidence_matrix,
)
from capsearch.encoders.text import concepts
from capsearch.encoders.text.concepts.mentions import names_one_of
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Vectors

SHARES = (0.0, 0.1, 0.5, 0.9, 1.0)
SIZES = (250, 1000, 3000)
MAX_CAPTIONS = 5
WRONG_CAPTIONS = 0.01  # of the captions belong to another image: metadata is not always right
MAX_QUERIES = 400
_LABELLED_DRAWS = 4  # of each size: as many queries as the captioned photographs give
_ENOUGH = 20  # names to fit on
_OF_A_SET = 40  # names of one labelled set: models of cars are not more of the world than places
NameSort = Literal["short", "unfamiliar", "rare"]  # as in engine.evidence.LengthDependent


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario(EvidenceMatrix):
    """What Q queries score on N documents, and which of them are right."""

    relevant: NDArray[np.bool_]  # (Q, N)


def sentences(
    data: EncodedImages, language: str, bank: DocumentBank, random: np.random.Generator
) -> Iterator[Scenario]:
    """Captions of one language against captions of every language, in all shares and sizes."""
    queries = data.captions[language]
    for other, captions in data.captions.items():
        both = np.intersect1d(queries.image_rows, captions.image_rows)
        for size, share in product(SIZES, SHARES):
            images = draw(np.unique(captions.image_rows), size, random)
            rows = np.flatnonzero(np.isin(queries.image_rows, np.intersect1d(both, images)))
            asked = queries.at(draw(rows, MAX_QUERIES, random))
            if len(asked.image_rows):
                documents = captions.of_images(images)
                best, kept = _captions(
                    asked, documents, images, share, random, same=other == language
                )
                asked = asked.at(kept)
                yield _scenario(
                    data,
                    images,
                    asked.queries(language),
                    asked.image_rows[:, None] == images[None, :],
                    bank,
                    other,
                    best[kept],
                )


def object_names(
    data: EncodedImages,
    queries: Queries,
    labels: Collection[str],
    bank: DocumentBank,
    random: np.random.Generator,
) -> Iterator[Scenario]:
    """Names of labels as queries: all images that people labelled so are relevant.

    `queries` are the names of `labels`, in that order.
    """
    labelled = labelled_rows(data)
    for language, captions in data.captions.items():
        for size, share in product(SIZES, SHARES):
            images = draw(labelled, size, random)
            relevant = data.relevance([*labels], images)
            present = np.flatnonzero(relevant.any(axis=1))
            if not len(present):
                continue
            asked, documents = queries.at(present), captions.among(images)
            kept = _kept(documents.images, len(images), share, random)
            documents = CaptionRows(documents.vectors[kept], documents.images[kept])
            best = documents.best(asked.caption, len(images))
            yield _scenario(data, images, asked, relevant[present], bank, language, best)


def drawn_names(
    data: EncodedImages,
    rows: Rows,
    queries: Queries,
    labels: Collection[str],
    bank: DocumentBank,
    random: np.random.Generator,
    sizes: Iterable[int],
) -> Iterator[Scenario]:
    """Names of labels against images that nobody described, drawn from `rows`, of each size.

    `queries` are the names of `labels`, in that order; those with a right image are asked.
    """
    everything = data.relevance([*labels], rows)
    for size in sizes:
        at = draw(np.arange(len(rows)), size, random)
        relevant = everything[:, at]
        asked = draw(np.flatnonzero(relevant.any(axis=1)), MAX_QUERIES, random)
        yield without_captions(data, rows[at], queries.at(asked), relevant[asked], bank)


def labelled_names(
    labelled: LabelledImages,
    encoder: TextEncoder,
    language: str,
    bank: DocumentBank,
    random: np.random.Generator,
    sort: NameSort = "short",
    objects: Collection[str] = (),
) -> Iterator[Scenario]:
    """Names of concepts as queries against images without captions, in several sizes.

    Names of one sort; none at all if these are too few. `objects` are the concepts that
    names were fitted on before.
    """
    names = {concept: concepts.by_id(concept).name(language) for concept in labelled.sets}
    by_set: dict[str, list[str]] = defaultdict(list)
    for concept, name in names.items():
        if sort_of(name, encoder, language, objects) == sort:
            by_set[labelled.sets[concept][-1]].append(concept)
    chosen = [
        members[at]
        for members in by_set.values()
        for at in draw(np.arange(len(members)), _OF_A_SET, random).tolist()
    ]
    if len(chosen) < _ENOUGH:
        return
    queries = encode_queries(encoder, [names[concept] for concept in chosen], language)
    sizes = [size for size in SIZES for _ in range(_LABELLED_DRAWS)]
    rows = np.arange(len(labelled.data.images))
    yield from drawn_names(labelled.data, rows, queries, chosen, bank, random, sizes)


def sort_of(name: str, encoder: TextEncoder, language: str, objects: Collection[str]) -> NameSort:
    """Which fit a name belongs to."""
    if encoder.unknown_words(name, language):
        return "unfamiliar"
    return "short" if not objects or names_one_of(name, language, objects) else "rare"


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
    kept = documents.of_images(captioned).first_of_each(captions).among(images)
    best = kept.best(queries.caption, len(images))
    relevant = queries.image_rows[:, None] == images[None, :]
    return _scenario(data, images, queries.queries(language), relevant, bank, other, best)


def without_captions(
    data: EncodedImages,
    images: Rows,
    queries: Queries,
    relevant: NDArray[np.bool_],
    bank: DocumentBank,
) -> Scenario:
    """Queries against images that nobody wrote a caption for; models may have."""
    none = np.full((len(queries.texts), len(images)), np.nan, np.float32)
    return _scenario(data, images, queries, relevant, bank, queries.language, none)


def labelled_rows(data: EncodedImages) -> Rows:
    """The images that people labelled any object in."""
    return np.array([row for row, shown in enumerate(data.objects) if shown], np.int64)


def _scenario(
    data: EncodedImages,
    images: Rows,
    queries: Queries,
    relevant: NDArray[np.bool_],
    bank: DocumentBank,
    caption_language: str,
    caption: Vectors,
) -> Scenario:
    """The evidence of these images, with these scores (Q, N) of their captions."""
    matrix = evidence_matrix(queries, data.documents(images), bank, data.classifiers)
    known = {field.name: getattr(matrix, field.name) for field in fields(matrix)}
    known |= {"caption": caption.astype(np.float64), "caption_language": caption_language}
    return Scenario(**known, relevant=relevant)


def _captions(
    queries: EncodedCaptions,
    captions: EncodedCaptions,
    images: Rows,
    share: float,
    random: np.random.Generator,
    same: bool,
) -> tuple[Vectors, Rows]:
    """(Q, N) scores of the captions of a share of the images, and which queries can be asked.

    A few captions belong to another image. `same`: queries and captions are of one language, and
    a query must not find itself.
    """
    column = {row: at for at, row in enumerate(images.tolist())}
    right = np.array([column[row] for row in queries.image_rows.tolist()])
    owners = np.array([column[row] for row in captions.image_rows.tolist()])
    wrong = random.random(len(owners)) < WRONG_CAPTIONS
    owners[wrong] = random.integers(0, len(images), int(wrong.sum()))
    scores = queries.caption @ captions.documents.T  # (Q, C) x (C, M) -> (Q, M)
    if same:
        repeated = np.array(queries.texts)[:, None] == np.array(captions.texts)[None, :]
        scores = np.where(repeated, -np.inf, scores)
    kept = _kept(owners, len(images), share, random)
    best = best_of_captions(scores[:, kept], owners[kept], len(images))
    # A query that is its image's only caption there would count as one of an uncaptioned image.
    captioned = np.isin(right, owners[kept])
    return best, np.flatnonzero(~captioned | ~np.isnan(best[np.arange(len(right)), right]))


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
