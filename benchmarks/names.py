"""Names of concepts against labelled photographs: what a person finds who types one word.

The collection is the test (or validation) photographs of labelled sets. A photograph is relevant
to the concepts of its label and to all above them: a sitar is a string instrument. Queries are the
concepts with enough photographs, in groups:

    trained on        concepts with other photographs in training; these were held out
    never trained on  concepts held out with all their photographs and names
    broader           concepts that no label names, only a narrower one
    SET               those of one labelled set

Photographs show more than their label says (a street has cars), so precision is a lower bound.

Queries that ask for a concept: by its name, by other names, in a phrase, in other spellings.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.encoders.calibrate.collection import Rows, encode_texts
from capsearch.encoders.data.dataset import CaptionDataset, CaptionedImage
from capsearch.encoders.data.features import FeatureCache, Report, load_features
from capsearch.encoders.data.labels import split_of
from capsearch.encoders.models.registry import Model
from capsearch.encoders.text.concepts import Concept, broader, by_id
from capsearch.encoders.text.concepts.mentions import plural, with_article
from capsearch.engine.errors import DataProblem
from capsearch.engine.metrics import (
    Figure,
    Floats,
    first_ranks,
    mean,
    mean_reciprocal_rank,
    precisions,
    summarise,
)
from capsearch.engine.records import LANGUAGES, Vectors

# How people ask. But for the first of each language they were written before the patterns of
# `encoders.text.requests` were last changed and never used to change them, and captions for
# training (`encoders.data.templates`) have none of them. They measure what is not in any table:
# when one fails, do not add a pattern for it.
PHRASES: Mapping[str, tuple[str, ...]] = {
    "en": (
        "where is the {}?",
        "I'm trying to find {a}",
        "give me everything with {a}",
        "didn't we take a photo of {a} once?",
        "anything with {s} in it",
        "I remember a picture where you can see {a}",
        "would love to see {s}",
        "the one with the {}",
    ),
    "zh": (
        "有{}的照片",
        "我记得拍过{}",
        "找一下{}",
        "给我看看有{}的那张",
        "跟{}有关的图片",
        "想要一张{}",
        "{}的照片在哪",
        "里面有{}的",
    ),
    "ja": (
        "{}の写真を見せて",
        "{}を撮ったことがあるはず",
        "{}が出てくる写真",
        "{}っぽい画像を出して",
        "{}に関する写真",
        "{}の写真どこだっけ",
        "{}のやつ",
        "{}が写ってるのが見たい",
    ),
}
_FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)} | {0x20: 0x3000}
_HALF_WIDTH = {
    unicodedata.normalize("NFKC", chr(code)): chr(code) for code in range(0xFF61, 0xFFA0)
}
_MARKS = "\u3099\u309a"  # voiced and half-voiced, combining
_SPACING = str.maketrans(_MARKS, "\u309b\u309c")
_V_ROW = {"ヴァ": "バ", "ヴィ": "ビ", "ヴェ": "ベ", "ヴォ": "ボ", "ヴ": "ブ"}


def names(concept: Concept, language: str) -> tuple[str, ...]:
    """The commonest name."""
    return (concept.name(language),)


def synonyms(concept: Concept, language: str) -> tuple[str, ...]:
    """The other names."""
    return concept.names[language][1:]


def phrased(concept: Concept, language: str) -> tuple[str, ...]:
    """The commonest name in questions and requests."""
    name = concept.name(language)
    forms = {"a": with_article(name), "s": plural(name)} if language == "en" else {}
    return tuple(phrase.format(name, **forms) for phrase in PHRASES[language])


def spellings(concept: Concept, language: str) -> tuple[str, ...]:
    """The commonest name written differently: case, number, width, Traditional, ヴァ as バ."""
    name = concept.name(language)
    variants = dict.fromkeys(spell(name) for spell in SPELLINGS[language])
    return tuple(variant for variant in variants if variant != name)


def full_width(text: str) -> str:
    """ｖｉｏｌｉｎ for violin."""
    return text.translate(_FULL_WIDTH)


def half_width(text: str) -> str:
    """ﾊﾞｲｵﾘﾝ for バイオリン."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(_HALF_WIDTH.get(character, character) for character in decomposed)


def spacing_marks(text: str) -> str:
    """ハ゛イオリン for バイオリン, as some programs write voiced kana."""
    return "".join(_apart(character) for character in text)


def _apart(character: str) -> str:
    decomposed = unicodedata.normalize("NFD", character)
    return decomposed.translate(_SPACING) if decomposed[-1:] in _MARKS else character


def without_v(text: str) -> str:
    """バイオリン for ヴァイオリン."""
    for kana, plain in _V_ROW.items():
        text = text.replace(kana, plain)
    return text


def traditional(text: str) -> str:
    """Traditional for Simplified Chinese."""
    return str(_to_traditional().convert(text))


@cache
def _to_traditional() -> Any:
    import opencc

    return opencc.OpenCC("s2t")


SPELLINGS: Mapping[str, tuple[Callable[[str], str], ...]] = {
    "en": (plural, str.upper, full_width),
    "zh": (traditional, full_width),
    "ja": (half_width, spacing_marks, without_v, full_width),
}
QUERIES: Mapping[str, Callable[[Concept, str], tuple[str, ...]]] = {
    "names": names,
    "synonyms": synonyms,
    "templates": phrased,
    "spellings": spellings,
}


def asked(concepts: Mapping[str, Concept], language: str, kind: str) -> Iterator[tuple[str, str]]:
    """(concept id, query) of all queries of a kind."""
    for concept_id, concept in concepts.items():
        for text in QUERIES[kind](concept, language):
            yield concept_id, text


MIN_PHOTOS = 5  # of a concept that is asked for: P@5 can be 1
TRAINED, HELD_OUT, BROADER = "trained on", "never trained on", "broader"
_QUERIES_A_BATCH = 256


@dataclass(frozen=True, slots=True)
class LabelledPool:
    """Photographs as vectors, and what they show."""

    images: Vectors  # (N, D)
    rows: Mapping[str, Rows]  # by concept, broader ones included
    sets: Mapping[str, tuple[str, ...]]  # by concept that a label names: the labelled sets


@dataclass(frozen=True, slots=True)
class NamesRow:
    """One row of the table: a group of concepts in one language.

    `p10` counts the concepts with ten photographs, `same10` the hits among the first ten that the
    commonest name finds too; nan where there is nothing to measure.
    """

    queries: str  # the kind: names, synonyms, templates, spellings
    query_lang: str
    group: str
    concepts: int
    collection: int
    figures: Mapping[str, Figure]

    def records(self) -> Iterator[dict[str, object]]:
        """One flat record a metric."""
        for metric, figure in self.figures.items():
            yield {
                "queries": self.queries,
                "query_lang": self.query_lang,
                "group": self.group,
                "concepts": self.concepts,
                "collection": self.collection,
                "metric": metric,
                "value": figure.value,
                "low": figure.low,
                "high": figure.high,
            }


@dataclass(frozen=True, slots=True)
class _Measured:
    """The queries of one language, each with its concept and figures."""

    concepts: tuple[str, ...]
    p5: Floats
    p10: Floats  # nan where fewer than ten photographs are relevant
    ranks: Floats
    same10: Floats

    def of(self, wanted: frozenset[str]) -> _Measured:
        at = np.array([one in wanted for one in self.concepts], bool)
        chosen = tuple(one for one in self.concepts if one in wanted)
        return _Measured(chosen, self.p5[at], self.p10[at], self.ranks[at], self.same10[at])


def at_most(data: CaptionDataset, per_label: int) -> CaptionDataset:
    """The first photographs of each label of each set."""
    seen: dict[tuple[str, tuple[str, ...]], int] = defaultdict(int)
    kept = []
    for image in data.images:
        label = (image.labelled_set, image.concepts)
        seen[label] += 1
        if seen[label] <= per_label:
            kept.append(image)
    return replace(data, images=tuple(kept))


def encode_pool(
    model: Model,
    data: CaptionDataset,
    cache: FeatureCache | None = None,
    report: Report | None = None,
) -> LabelledPool:
    """Labelled photographs through the model; those that cannot be read are left out."""
    readable, features = load_features(model.image, data, cache, report)
    return pool_of(readable.images, model.image.project(features))


def pool_of(photos: Sequence[CaptionedImage], vectors: Vectors) -> LabelledPool:
    """Labelled photographs with their (N, D) vectors."""
    rows: dict[str, list[int]] = defaultdict(list)
    sets: dict[str, dict[str, None]] = defaultdict(dict)
    for row, photo in enumerate(photos):
        for concept in photo.concepts:
            sets[concept][photo.labelled_set] = None
        for concept in {above for one in photo.concepts for above in broader(one)}:
            rows[concept].append(row)
    return LabelledPool(
        vectors,
        {concept: np.array(found, np.int64) for concept, found in sorted(rows.items())},
        {concept: tuple(found) for concept, found in sets.items()},
    )


def evaluate(
    model: Model,
    pool: LabelledPool,
    kind: str = "names",
    min_photos: int = MIN_PHOTOS,
    all_concepts: bool = False,
) -> tuple[NamesRow, ...]:
    """Every language and group, for one kind of queries; DataProblem if nothing can be asked.

    `all_concepts`: the model was trained on all of them.
    """
    concepts = {one: by_id(one) for one, rows in pool.rows.items() if len(rows) >= min_photos}
    if not concepts:
        raise DataProblem(f"no concept has {min_photos} photographs; try a smaller --min-photos")
    groups = _groups(pool, concepts, all_concepts)
    return tuple(
        row
        for language in LANGUAGES
        if language in model.text.languages
        for row in _rows(
            _measure(model, pool, concepts, language, kind), groups, pool, language, kind
        )
    )


def _groups(
    pool: LabelledPool, concepts: Mapping[str, Concept], all_concepts: bool
) -> Mapping[str, frozenset[str]]:
    groups: dict[str, set[str]] = {TRAINED: set(), HELD_OUT: set(), BROADER: set()}
    for labelled_set in sorted({one for sets in pool.sets.values() for one in sets}):
        groups[labelled_set] = set()
    for concept in concepts:
        known = all_concepts or split_of(concept) == "train"
        trained = TRAINED if known else HELD_OUT
        groups[trained if concept in pool.sets else BROADER].add(concept)
        for labelled_set in pool.sets.get(concept, ()):
            groups[labelled_set].add(concept)
    return {group: frozenset(members) for group, members in groups.items()}


def _rows(
    measured: _Measured,
    groups: Mapping[str, frozenset[str]],
    pool: LabelledPool,
    language: str,
    kind: str,
) -> Iterator[NamesRow]:
    for group, members in groups.items():
        found = measured.of(members)
        if found.concepts:
            count = len(set(found.concepts))
            yield NamesRow(kind, language, group, count, len(pool.images), _figures(found))


def _figures(measured: _Measured) -> Mapping[str, Figure]:
    figures = {
        **summarise(measured.p5, {"p5": mean}),
        **summarise(measured.ranks, {"mrr": mean_reciprocal_rank}),
    }
    for name, values in {"p10": measured.p10, "same10": measured.same10}.items():
        known = values[~np.isnan(values)]
        nothing = {name: Figure(np.nan, np.nan, np.nan)}
        figures |= summarise(known, {name: mean}) if len(known) else nothing
    return figures


def _measure(
    model: Model, pool: LabelledPool, concepts: Mapping[str, Concept], language: str, kind: str
) -> _Measured:
    pairs = tuple(asked(concepts, language, kind))
    owners, texts = tuple(one for one, _ in pairs), [text for _, text in pairs]
    scores = _scores(model, pool, texts, language)
    plain = [concepts[one].name(language) for one in concepts]
    usual = dict(zip(concepts, _first(_scores(model, pool, plain, language)), strict=True))
    parts = [
        _measure_batch(scores[at : at + _QUERIES_A_BATCH], owners[at : at + _QUERIES_A_BATCH], pool)
        for at in range(0, max(len(owners), 1), _QUERIES_A_BATCH)
    ]
    p5, p10, ranks = (np.concatenate(column) for column in zip(*parts, strict=True))
    same = [
        len(np.intersect1d(found, usual[one])) / len(found)
        for one, found in zip(owners, _first(scores), strict=True)
    ]
    same10 = np.full(len(owners), np.nan) if kind == "names" else np.array(same, float)
    return _Measured(owners, p5, p10, ranks, same10)


def _scores(model: Model, pool: LabelledPool, texts: list[str], language: str) -> Vectors:
    subjects = [model.text.subject(text, language) for text in texts]  # as the search engine does
    visual = encode_texts(model.text, subjects, language).visual
    return np.asarray(visual @ pool.images.T)  # (Q, D) x (D, N) -> (Q, N)


def _first(scores: Vectors) -> NDArray[np.int64]:
    """(Q, 10) the rows of the first ten hits."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :10]


def _measure_batch(
    scores: Vectors, owners: tuple[str, ...], pool: LabelledPool
) -> tuple[Floats, Floats, Floats]:
    relevant = np.zeros(scores.shape, bool)
    for row, concept in enumerate(owners):
        relevant[row, pool.rows[concept]] = True
    enough = relevant.sum(axis=1) >= 10
    p10 = np.where(enough, precisions(scores, relevant, 10), np.nan)
    return precisions(scores, relevant, 5), p10, first_ranks(scores, relevant)
