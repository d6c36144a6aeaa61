"""Retrieval quality of a model: CM, CL and CLM in both directions.

t2i: the query is a caption, and its image has to be found. i2t: the query is an image, and any
of its captions has to be found, with the transposed scores: of the image (CM), of its
description in another language (CL), or of both (CLM).

CM searches all images of the split. From captions to images it ranks as `query --mode cm` does: by
cosine and, where the model has classifiers of concepts, by what the query names. CL and CLM search
the images that have a description in the caption language, with the queries of these images.

CLM is the convex combination of COCO-CN with the model's tuned weight, so that figures compare
with the paper's: what `capsearch query --weight` ranks by, cosines alone, not the calibrated
evidence that `query` fuses by default.

The scores are those of `encoders.models.scores.score_matrix`: matrix products of all queries and
all images, not candidates of a backend. A test checks that the search engine ranks a small
collection in the same order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

import numpy as np

from capsearch.benchmarks.settings import RetrievalOptions
from capsearch.encoders.calibrate.collection import EncodedCaptions, encode_captions
from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.data.features import FeatureCache, Report, load_features
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.scores import Documents, score_matrix
from capsearch.engine.errors import DataProblem
from capsearch.engine.metrics import Figure, Labels, Scores, ranks, summarise
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import Caption, Mode, Vectors

Protocol: TypeAlias = Callable[[CaptionedImage, str], tuple[Caption, ...]]


def every_caption(image: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """Every caption is a query."""
    return image.captions.get(language, ())


def first_caption(image: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """One query an image: its first caption."""
    return every_caption(image, language)[:1]


def human_chinese(image: CaptionedImage, language: str) -> tuple[Caption, ...]:
    """COCO-CN: Chinese captions written for the image, not translations of its English ones.

    A few images have two or three of them; each is a query. Other languages: every caption.
    """
    captions = every_caption(image, language)
    if language != "zh":
        return captions
    return tuple(caption for caption in captions if caption.source == "coco-cn")


PROTOCOLS: Mapping[str, Protocol] = {
    "test-xtd10": first_caption,
    "test-cococn": human_chinese,
    "test-flickr8k": every_caption,
}


def protocol_of(split: str) -> Protocol:
    """The published protocol of a split; for splits without one, `every_caption`."""
    return PROTOCOLS.get(split, every_caption)


Direction = Literal["t2i", "i2t"]
DIRECTIONS: tuple[Direction, ...] = ("t2i", "i2t")


DEFAULTS = RetrievalOptions()


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One row of the table: the setting, the number of queries and results, the figures."""

    split: str
    query_lang: str
    mode: Mode
    caption_lang: str | None
    direction: Direction
    queries: int
    collection: int
    figures: Mapping[str, Figure]

    def records(self) -> Iterator[dict[str, object]]:
        """One flat record a metric."""
        for metric, figure in self.figures.items():
            yield {
                "split": self.split,
                "query_lang": self.query_lang,
                "mode": self.mode,
                "caption_lang": self.caption_lang,
                "direction": self.direction,
                "metric": metric,
                "value": figure.value,
                "low": figure.low,
                "high": figure.high,
            }


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """A split as vectors: images, and by language the queries and the descriptions."""

    name: str
    images: Vectors  # (N, D)
    queries: Mapping[str, EncodedCaptions]
    descriptions: Mapping[str, EncodedCaptions]

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages that have queries."""
        return tuple(self.queries)


def encode_split(
    model: Model,
    data: CaptionDataset,
    cache: FeatureCache | None = None,
    report: Report | None = None,
    unknown_words_only: bool = False,
) -> EncodedSplit:
    """Encode the images and captions of one split.

    Unreadable images are left out, and so are languages the model does not support;
    DataProblem if nothing is left. With `unknown_words_only`, the queries are only those that
    contain a word outside the model's vocabulary.
    """
    readable, features = load_features(model.image, data, cache, report)
    (name,) = data.splits
    languages = tuple(lang for lang in readable.languages if lang in model.text.languages)
    if not languages:
        raise DataProblem(
            f"{name} has captions in {', '.join(readable.languages) or 'no language'}, "
            f"the model reads {', '.join(model.text.languages)}"
        )
    captions = {lang: encode_captions(model.text, readable, lang) for lang in languages}
    rows = {lang: _query_rows(readable, lang, protocol_of(name)) for lang in languages}
    if unknown_words_only:
        rows = {
            lang: _with_unknown(model.text, captions[lang].texts, lang, rows[lang])
            for lang in languages
        }
    if not any(map(len, rows.values())):
        raise DataProblem(f"{name} has no captions to use as queries")
    return EncodedSplit(
        name=name,
        images=model.image.project(features),
        queries={lang: captions[lang].at(rows[lang]) for lang in languages if len(rows[lang])},
        descriptions=captions,
    )


def evaluate(
    model: Model, split: EncodedSplit, options: RetrievalOptions = DEFAULTS
) -> tuple[ResultRow, ...]:
    """Every query language in every mode against every other language, both directions."""
    return tuple(
        row for language in split.languages for row in _rows(model, split, language, options)
    )


def _rows(
    model: Model, split: EncodedSplit, language: str, options: RetrievalOptions
) -> Iterator[ResultRow]:
    queries = split.queries[language]
    asked, documents = queries.queries(language), Documents(split.images)
    every = np.arange(len(split.images))
    cosines = score_matrix(model, asked, documents, "cm", weight=0.0)
    row = ResultRow(split.name, language, "cm", None, "t2i", 0, 0, {})
    to_images, to_captions = _both_directions(row, cosines, queries.image_rows, every)
    # What queries name compares images for one query, not queries: they name more things or fewer.
    named = score_matrix(model, asked, documents, "cm")
    figures = summarise(ranks(named, queries.image_rows, every))
    yield from (replace(to_images, figures=figures), to_captions)
    for other in split.descriptions:
        if other != language:
            yield from _caption_rows(model, split, language, other, options)


def _caption_rows(
    model: Model, split: EncodedSplit, language: str, other: str, options: RetrievalOptions
) -> Iterator[ResultRow]:
    """CL and CLM on the images described in `other`; nothing if none of them has a query."""
    descriptions = split.descriptions[other]
    if options.descriptions == "first":
        descriptions = descriptions.first_of_each()
    images = np.unique(descriptions.image_rows)
    queries = split.queries[language].of_images(images)
    if not len(queries.image_rows):
        return
    documents = Documents(split.images[images], descriptions.among(images), other)
    weight = options.clm_weight
    if weight is None:
        weight = model.text.convex(language).weight
    for mode in ("cl", "clm"):
        scores = score_matrix(model, queries.queries(language), documents, mode, weight)
        row = ResultRow(split.name, language, mode, other, "t2i", 0, 0, {})
        yield from _both_directions(row, scores, queries.image_rows, images)


def _both_directions(
    row: ResultRow, scores: Scores, queries: Labels, items: Labels
) -> Iterator[ResultRow]:
    """The row evaluated from captions to images, and from images to captions."""
    has_query = np.isin(items, queries)  # i2t: images without a caption have nothing to find
    directions: Sequence[tuple[Direction, Scores, Labels, Labels]] = (
        ("t2i", scores, queries, items),
        ("i2t", scores[:, has_query].T, items[has_query], queries),
    )
    for direction, table, from_, to in directions:
        yield replace(
            row,
            direction=direction,
            queries=len(from_),
            collection=len(to),
            figures=summarise(ranks(table, from_, to)),
        )


def _with_unknown(
    encoder: TextEncoder, texts: Sequence[str], language: str, rows: Labels
) -> Labels:
    """The rows whose caption contains a word outside the vocabulary."""
    return np.array([row for row in rows if encoder.unknown_words(texts[row], language)], np.int64)


def _query_rows(data: CaptionDataset, language: str, protocol: Protocol) -> Labels:
    """The rows of the captions that are queries by the protocol."""
    is_query = [
        caption in protocol(image, language)
        for image in data.images
        for caption in image.captions.get(language, ())
    ]
    return np.flatnonzero(is_query)
