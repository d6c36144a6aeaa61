"""Names of concepts against labelled photographs: what a person finds who types one word.

The collection is the test (or validation) photographs of labelled sets. A photograph is relevant
to the concepts of its label and to all above them: a sitar is a string instrument. Queries are the
concepts with enough photographs, in groups:

    trained on        concepts with other photographs in training; these were held out
    never trained on  concepts held out with all their photographs and names
    broader           concepts that no label names, only a narrower one
    SET               those of one labelled set

Photographs show more than their label says (a street has cars), so precision is a lower bound. A
query asks for a concept by its name, by other names, in a phrase, or in other spellings. Scores are
what a search ranks by, of images that nobody captioned; models may have described them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from capsearch.benchmarks.settings import NamesOptions
from capsearch.encoders.calibrate.collection import LabelledImages
from capsearch.encoders.data.dataset import CaptionDataset
from capsearch.encoders.data.labels import split_of
from capsearch.encoders.data.templates import plural, with_article
from capsearch.encoders.models.registry import Model
from capsearch.encoders.models.scores import encode_queries, score_matrix
from capsearch.encoders.text.concepts import Concept, by_id
from capsearch.encoders.text.requests import subject
from capsearch.engine.errors import DataProblem
from capsearch.engine.metrics import (
    Figure,
    Floats,
    Scores,
    first_ranks,
    mean,
    mean_reciprocal_rank,
    precisions,
    summarise,
)
from capsearch.engine.records import LANGUAGES

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


TRAINED, HELD_OUT, BROADER = "trained on", "never trained on", "broader"


DEFAULTS = NamesOptions()


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
        rows = [row for row, concept in enumerate(self.concepts) if concept in wanted]
        concepts = tuple(self.concepts[row] for row in rows)
        return _Measured(
            concepts, self.p5[rows], self.p10[rows], self.ranks[rows], self.same10[rows]
        )


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


def evaluate(
    model: Model, photos: LabelledImages, options: NamesOptions = DEFAULTS
) -> tuple[NamesRow, ...]:
    """Every language and group, for one kind of queries; DataProblem if nothing can be asked."""
    shown = Counter(concept for objects in photos.data.objects for concept in objects)
    enough = (concept for concept in sorted(shown) if shown[concept] >= options.min_photos)
    concepts = {concept: by_id(concept) for concept in enough}
    if not concepts:
        least = options.min_photos
        raise DataProblem(f"no concept has {least} photographs; try a smaller --min-photos")
    groups = _groups(photos, concepts, options.all_concepts)
    return tuple(
        row
        for language in LANGUAGES
        if language in model.text.languages
        for row in _rows(
            _measure(model, photos, concepts, language, options), groups, photos, language, options
        )
    )


def _groups(
    photos: LabelledImages, concepts: Mapping[str, Concept], all_concepts: bool
) -> Mapping[str, frozenset[str]]:
    groups: dict[str, set[str]] = {TRAINED: set(), HELD_OUT: set(), BROADER: set()}
    for labelled_set in sorted({name for sets in photos.sets.values() for name in sets}):
        groups[labelled_set] = set()
    for concept in concepts:
        known = all_concepts or split_of(concept) == "train"
        trained = TRAINED if known else HELD_OUT
        groups[trained if concept in photos.sets else BROADER].add(concept)
        for labelled_set in photos.sets.get(concept, ()):
            groups[labelled_set].add(concept)
    return {group: frozenset(members) for group, members in groups.items()}


def _rows(
    measured: _Measured,
    groups: Mapping[str, frozenset[str]],
    photos: LabelledImages,
    language: str,
    options: NamesOptions,
) -> Iterator[NamesRow]:
    collection = len(photos.data.images)
    for group, members in groups.items():
        of_group = measured.of(members)
        if of_group.concepts:
            count = len(set(of_group.concepts))
            figures = _figures(of_group)
            yield NamesRow(options.queries, language, group, count, collection, figures)


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
    model: Model,
    photos: LabelledImages,
    concepts: Mapping[str, Concept],
    language: str,
    options: NamesOptions,
) -> _Measured:
    pairs = tuple(asked(concepts, language, options.queries))
    owners, texts = tuple(concept for concept, _ in pairs), [text for _, text in pairs]
    scores = _scores(model, photos, texts, language, options.cosine)
    relevant = photos.data.relevance(owners, np.arange(len(photos.data.images)))
    enough = relevant.sum(axis=1) >= 10
    same10 = np.full(len(owners), np.nan)
    if options.queries != "names":
        plain = [concepts[concept].name(language) for concept in concepts]
        first = _first(_scores(model, photos, plain, language, options.cosine))
        usual = dict(zip(concepts, first, strict=True))
        same10 = np.array(
            [
                len(np.intersect1d(hits, usual[concept])) / len(hits)
                for concept, hits in zip(owners, _first(scores), strict=True)
            ]
        )
    return _Measured(
        owners,
        p5=precisions(scores, relevant, 5),
        p10=np.where(enough, precisions(scores, relevant, 10), np.nan),
        ranks=first_ranks(scores, relevant),
        same10=same10,
    )


def _scores(
    model: Model, photos: LabelledImages, texts: Sequence[str], language: str, cosine: bool
) -> Scores | Floats:
    """(Q, N) what a search ranks by, or cosines alone."""
    subjects = [subject(text, language) for text in texts]
    queries = encode_queries(model.text, subjects, language)
    documents = photos.data.documents(np.arange(len(photos.data.images)))
    if cosine:
        return score_matrix(model, queries, documents, "cm", weight=0.0)
    return score_matrix(model, queries, documents)


def _first(scores: Scores | Floats) -> NDArray[np.int64]:
    """(Q, 10) the rows of the first ten hits."""
    return np.argsort(-scores, axis=1, kind="stable")[:, :10]
