"""Retrieval quality: CM, CL and CLM in both directions, scored by the product's own code.

t2i: a sentence looks for its photo. i2t: a photo looks for any of its sentences, with the
same scores read the other way: by its image (CM), by its description in another language
(CL), or by both (CLM).

CM searches all photos of the split. CL and CLM search the photos that have a description in
the caption language, with the queries of these photos.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from capsearch.benchmarks.query_selection import Protocol, protocol_of
from capsearch.encoders.datasets.dataset import CaptionDataset
from capsearch.encoders.datasets.features import FeatureCache, Report, load_features
from capsearch.encoders.models import Model
from capsearch.engine.errors import DataProblem
from capsearch.engine.metrics import (
    Figure,
    Labels,
    Scores,
    Trial,
    ranks,
    summarise,
)
from capsearch.engine.protocols import TextEncoder
from capsearch.engine.records import EncodedText, Mode, Vectors

Direction = Literal["t2i", "i2t"]
DIRECTIONS: tuple[Direction, ...] = ("t2i", "i2t")
TEXT_BATCH = 256


@dataclass(frozen=True, slots=True)
class RetrievalOptions:
    """How to measure. `weight` None takes the model's CLM weight of the query language."""

    weight: float | None = None
    all_descriptions: bool = False  # CL by the best of all captions, not the first alone


DEFAULTS = RetrievalOptions()


@dataclass(frozen=True, slots=True)
class ResultRow:
    """One row of the table: what was searched how, and the figures."""

    split: str
    query_lang: str
    mode: Mode
    caption_lang: str | None
    direction: Direction
    queries: int
    collection: int
    figures: Mapping[str, Figure]

    def records(self) -> Iterator[dict[str, object]]:
        """One flat record a figure."""
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
class EncodedCaptions:
    """Encoded sentences and the row of the photo each belongs to, in the photos' order."""

    visual: Vectors  # (M, D)
    caption: Vectors  # (M, C)
    as_documents: Vectors  # (M, C) as descriptions
    owner: Labels  # (M,)

    def at(self, rows: Labels) -> EncodedCaptions:
        """The sentences in these rows only."""
        return EncodedCaptions(
            self.visual[rows], self.caption[rows], self.as_documents[rows], self.owner[rows]
        )

    def of(self, photos: Labels) -> EncodedCaptions:
        """The sentences of these photos only."""
        return self.at(np.flatnonzero(np.isin(self.owner, photos)))

    def first_each(self) -> EncodedCaptions:
        """The first sentence of each photo."""
        return self.at(np.unique(self.owner, return_index=True)[1])


@dataclass(frozen=True, slots=True)
class EncodedSplit:
    """A split as vectors: photos, and by language the queries and the descriptions."""

    name: str
    images: Vectors  # (N, D)
    queries: Mapping[str, EncodedCaptions]
    descriptions: Mapping[str, EncodedCaptions]

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages there are queries in."""
        return tuple(self.queries)


def encode_split(
    model: Model,
    data: CaptionDataset,
    cache: FeatureCache | None = None,
    report: Report | None = None,
    unknown_words_only: bool = False,
) -> EncodedSplit:
    """One split's photos and sentences through the model.

    Photos without a readable image are left out, and so are languages the model does not
    read; DataProblem if nothing is left. `unknown_words_only` asks only with sentences that
    have a word outside the model's vocabulary.
    """
    kept, features = load_features(model.image, data, cache, report)
    (name,) = data.splits
    languages = tuple(one for one in kept.languages if one in model.text.languages)
    if not languages:
        raise DataProblem(
            f"{name} has captions in {', '.join(kept.languages) or 'no language'}, "
            f"the model reads {', '.join(model.text.languages)}"
        )
    told = {one: _sentences(model.text, kept, one) for one in languages}
    asking = {one: _query_rows(kept, one, protocol_of(name)) for one in languages}
    if unknown_words_only:
        asking = {one: _with_unknown(model.text, kept, one, rows) for one, rows in asking.items()}
    if not any(len(rows) for rows in asking.values()):
        raise DataProblem(f"{name} has no sentence to ask with")
    return EncodedSplit(
        name=name,
        images=model.image.project(features),
        queries={one: told[one].at(rows) for one, rows in asking.items() if len(rows)},
        descriptions=told,
    )


def evaluate(
    model: Model, split: EncodedSplit, options: RetrievalOptions = DEFAULTS
) -> tuple[ResultRow, ...]:
    """Every query language in every mode against every other language, both directions."""
    return tuple(
        run for language in split.languages for run in _runs(model, split, language, options)
    )


def _runs(
    model: Model, split: EncodedSplit, language: str, options: RetrievalOptions
) -> Iterator[ResultRow]:
    queries = split.queries[language]
    everything = np.arange(len(split.images))
    yield from _both_ways(
        ResultRow(split.name, language, "cm", None, "t2i", 0, 0, {}),
        queries.visual @ split.images.T,  # (Q, D) x (D, N) -> (Q, N)
        queries.owner,
        everything,
    )
    weight = model.text.clm_weight(language) if options.weight is None else options.weight
    for other in split.descriptions:
        trial = None if other == language else _trial(split, language, other, options)
        if trial is not None:
            run = ResultRow(split.name, language, "cl", other, "t2i", 0, 0, {})
            yield from _both_ways(run, trial.cl, trial.queries, trial.items)
            yield from _both_ways(
                replace(run, mode="clm"), trial.fused(weight), trial.queries, trial.items
            )


def _trial(
    split: EncodedSplit, language: str, other: str, options: RetrievalOptions
) -> Trial | None:
    """CL and CM scores over the photos described in `other`; None where no query has one."""
    descriptions = split.descriptions[other]
    if not options.all_descriptions:
        descriptions = descriptions.first_each()
    photos = np.unique(descriptions.owner)
    queries = split.queries[language].of(photos)
    if not len(queries.owner):
        return None
    return Trial(
        cl=_best_of_each(queries.caption @ descriptions.as_documents.T, descriptions.owner),
        cm=queries.visual @ split.images[photos].T,
        queries=queries.owner,
        items=photos,
    )


def _best_of_each(scores: Scores, owner: Labels) -> Scores:
    """(Q, M) caption scores -> (Q, N): a photo's CL score is its best caption's."""
    _, starts = np.unique(owner, return_index=True)  # owners are sorted
    return np.maximum.reduceat(scores, starts, axis=1)


def _both_ways(
    run: ResultRow, scores: Scores, queries: Labels, items: Labels
) -> Iterator[ResultRow]:
    """The run read as sentences looking for photos and as photos looking for sentences."""
    answered = np.isin(items, queries)  # only photos with a sentence can look for one
    ways: Sequence[tuple[Direction, Scores, Labels, Labels]] = (
        ("t2i", scores, queries, items),
        ("i2t", scores[:, answered].T, items[answered], queries),
    )
    for direction, table, asking, answers in ways:
        yield replace(
            run,
            direction=direction,
            queries=len(asking),
            collection=len(answers),
            figures=summarise(ranks(table, asking, answers)),
        )


def _sentences(encoder: TextEncoder, data: CaptionDataset, language: str) -> EncodedCaptions:
    """Every caption in a language."""
    found = _told(data, language)
    encoded = _encode(encoder, [text for _, text in found], language)
    owner = np.array([row for row, _ in found], np.int64)
    return EncodedCaptions(
        encoded.visual, encoded.caption, encoder.as_documents(encoded.caption), owner
    )


def _told(data: CaptionDataset, language: str) -> list[tuple[int, str]]:
    """(row of the photo, text) of every caption in a language."""
    return [
        (row, caption.text)
        for row, photo in enumerate(data.images)
        for caption in photo.captions.get(language, ())
    ]


def _with_unknown(
    encoder: TextEncoder, data: CaptionDataset, language: str, rows: Labels
) -> Labels:
    """Those of the rows of `_sentences` that have a word the vocabulary lacks."""
    told = _told(data, language)
    return np.array(
        [row for row in rows if encoder.unknown_words(told[row][1], language)], np.int64
    )


def _query_rows(data: CaptionDataset, language: str, protocol: Protocol) -> Labels:
    """Which of `_sentences` the protocol asks with."""
    asked = [
        caption in protocol(photo, language)
        for photo in data.images
        for caption in photo.captions.get(language, ())
    ]
    return np.flatnonzero(asked)


def _encode(encoder: TextEncoder, texts: Sequence[str], language: str) -> EncodedText:
    parts = [
        encoder.encode(texts[at : at + TEXT_BATCH], language)
        for at in range(0, len(texts), TEXT_BATCH)
    ]
    return EncodedText(
        visual=np.concatenate([part.visual for part in parts]),
        caption=np.concatenate([part.caption for part in parts]),
        known=tuple(known for part in parts for known in part.known),
    )
