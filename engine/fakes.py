"""Toy encoders and a toy backend for tests: no weights, no disk, yet real searches.

An image is the share of its pixels nearest to each of eight colours; a sentence is the
colours and things it names in English, Chinese or Japanese. So "a red car" finds the red
image, "红色的车" and "赤い車" find it too, and a test can do the arithmetic by hand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import PurePath
from typing import Any

import numpy as np

from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.fusion import Evidence, EvidenceModel, contributions
from capsearch.engine.protocols import Found
from capsearch.engine.query import EncodedQuery
from capsearch.engine.records import (
    LANGUAGES,
    Caption,
    Document,
    EncodedText,
    Facets,
    Filters,
    Pixels,
    Source,
    Vectors,
)
from capsearch.engine.vectors import as_document, as_query, strip_bias, unit

COLOURS: Mapping[str, tuple[int, int, int]] = {
    "red": (255, 0, 0),
    "green": (0, 160, 0),
    "blue": (0, 0, 255),
    "yellow": (255, 255, 0),
    "black": (0, 0, 0),
    "white": (255, 255, 255),
    "purple": (128, 0, 160),
    "orange": (255, 140, 0),
}
_BILINEAR = 2  # PIL.Image.Resampling.BILINEAR; this folder does without Pillow
_RED = 0  # the first colour, and the first concept
# The word for each concept in (en, zh, ja). The first eight are the colours, in order.
CONCEPTS: tuple[tuple[str, str, str], ...] = (
    ("red", "红", "赤"),
    ("green", "绿", "緑"),
    ("blue", "蓝", "青"),
    ("yellow", "黄", "黄"),
    ("black", "黑", "黒"),
    ("white", "白", "白"),
    ("purple", "紫", "紫"),
    ("orange", "橙", "オレンジ"),
    ("cat", "猫", "猫"),
    ("dog", "狗", "犬"),
    ("car", "车", "車"),
    ("tree", "树", "木"),
    ("sea", "海", "海"),
    ("house", "房子", "家"),
    ("bread", "面包", "パン"),
    ("flower", "花", "花"),
)


@dataclass(slots=True)
class FakeImageEncoder:
    """Colour shares as features; the projection keeps the colours and turns them by `turn`.

    Two encoders of one `backbone` but different `turn` stand for one backbone with two
    projections. `embedded` counts the images encoded, `batches` the sizes of their batches.
    """

    backbone: str = "toy"
    turn: int = 0
    penalty: float = 0.0  # of an image that is all red
    embedded: int = 0
    batches: list[int] = field(default_factory=list)
    feature_dimension: int = len(COLOURS) + 1
    dimension: int = len(COLOURS) + 1

    @property
    def name(self) -> str:
        """The backbone's name."""
        return self.backbone

    @property
    def digest(self) -> str:
        """Stands for the weights: equal names, equal features."""
        return f"digest-of-{self.backbone}"

    def preprocess(self, image: Any) -> Pixels:
        """16 x 16 pixels of an opened image (PIL)."""
        return np.asarray(image.convert("RGB").resize((16, 16), _BILINEAR))

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, 9): shares of the eight colours, then the mean brightness."""
        self.embedded += len(pixels)
        self.batches.append(len(pixels))
        return np.stack([_colour_shares(one) for one in pixels])

    def project(self, features: Vectors) -> Vectors:
        """(N, 9) -> (N, 8) and a penalty."""
        colours = unit(np.roll(features[:, : len(COLOURS)], self.turn, axis=1))
        return as_document(colours, self.penalty * colours[:, _RED])


@dataclass(frozen=True, slots=True)
class FakeTextEncoder:
    """Counts the concepts a sentence names: eight colours visually, all sixteen for captions."""

    name: str = "toy-words"
    digest: str = "digest-of-toy-words"
    languages: tuple[str, ...] = LANGUAGES
    turn: int = 0
    weight: float = 0.4
    floor: float = 0.1
    penalty: float = 0.0  # of a caption that says nothing but red
    dimension: int = len(COLOURS) + 1
    caption_dimension: int = len(CONCEPTS) + 1
    evidence: EvidenceModel | None = None

    def detect(self, text: str) -> str:
        """Kana is Japanese, other Han Chinese, the rest English."""
        if re.search("[\u3040-\u30ff]", text):
            return "ja"
        return "zh" if re.search("[\u4e00-\u9fff]", text) else "en"

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Unit vectors of the concepts named; zero and not known where there is none."""
        if language not in self.languages:
            raise UnknownLanguage(f"no model reads '{language}'")
        counts = np.zeros((len(texts), len(CONCEPTS)), np.float32)
        for row, text in enumerate(texts):
            counts[row] = _concept_counts(text, language)
        colours = np.roll(counts[:, : len(COLOURS)], self.turn, axis=1)
        known = tuple(bool(row.any()) for row in counts)
        return EncodedText(as_query(unit(colours)), as_query(unit(counts)), known)

    def as_documents(self, captions: Vectors) -> Vectors:
        """Captions have a hubness penalty for the red in them."""
        concepts = strip_bias(captions)
        return as_document(concepts, self.penalty * concepts[:, _RED])

    def unknown_words(self, text: str, language: str) -> tuple[str, ...]:
        """All words of a sentence that names no concept."""
        return () if np.any(_concept_counts(text, language)) else tuple(text.split())

    def clm_weight(self, language: str) -> float:
        """The same for all languages."""
        return self.weight

    def cl_floor(self, language: str) -> float:
        """The same for all languages."""
        return self.floor

    def evidence_model(self, language: str) -> EvidenceModel | None:
        """The one given, for all languages."""
        return self.evidence

    def background(self, encoded: EncodedText) -> Mapping[Source, float]:
        """Nothing scores on an empty bank."""
        return {"image": 0.0, "caption": 0.0}

    def words(self, text: str) -> tuple[str, ...]:
        """Lower-case words, each once."""
        return tuple(dict.fromkeys(re.findall(r"\w+", text.lower())))


@dataclass(frozen=True, slots=True)
class FakeBackend:
    """The contract of a backend in its plainest form: every document is scored.

    `vectors` holds image vectors by id, `captions` one (image id, caption, vector) each.
    """

    documents: Mapping[str, Document] = field(default_factory=dict)
    vectors: Mapping[str, Vectors] = field(default_factory=dict)
    captions: Sequence[tuple[str, Caption, Vectors]] = ()

    def __len__(self) -> int:
        return len(self.documents)

    def captioned(self) -> bool:
        """Whether any caption has a vector."""
        return bool(self.captions)

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """Scores all documents that pass, sorts them, and takes the page."""
        ids = sorted(one for one in self.documents if self._passes(one, filters, query))
        matched = {one: self._matched(one, query.caption) for one in ids}
        evidence = self._evidence(ids, query, matched)
        scores = query.fusion.scores(evidence)
        parts = query.fusion.log_odds(evidence)
        found = [
            Found(
                self.documents[one],
                float(scores[row]),
                contributions(evidence, parts, row, query.fusion.sources, matched[one][0]),
            )
            for row, one in enumerate(ids)
            if scores[row] > -np.inf and scores[row] >= query.min_score
        ]
        found.sort(key=lambda one: (-one.score, one.document.record.id))
        return tuple(found[offset : offset + limit])

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; unknown ids are left out."""
        return {one: self.documents[one] for one in ids if one in self.documents}

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector, or None."""
        return self.vectors.get(image_id)

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """Latest first, undated last; ties by id."""
        ids = [one for one in sorted(self.documents) if self._passes(one, filters, None)]
        dated = sorted(
            (one for one in ids if self.documents[one].record.taken_at is not None),
            key=lambda one: self.documents[one].record.taken_at or datetime.min,
            reverse=True,
        )
        undated = [one for one in ids if self.documents[one].record.taken_at is None]
        return tuple(self.documents[one] for one in [*dated, *undated][offset : offset + limit])

    def facets(self) -> Facets:
        """None: nothing to filter by."""
        return Facets()

    def _evidence(
        self,
        ids: Sequence[str],
        query: EncodedQuery,
        matched: Mapping[str, tuple[Caption | None, float, float]],
    ) -> Evidence:
        image = [
            np.dot(self.vectors[one], query.image)
            if query.image is not None and one in self.vectors
            else np.nan
            for one in ids
        ]
        words = [self._coverage(one, query.words) for one in ids]
        return Evidence(
            np.array(image, float),
            np.array([matched[one][1] for one in ids], float),
            np.array([matched[one][2] for one in ids], float),
            np.array(words, float),
        )

    def _matched(self, image_id: str, query: Vectors | None) -> tuple[Caption | None, float, float]:
        """The best caption, and the best score of people's and of models' captions."""
        best: dict[bool, float] = {False: np.nan, True: np.nan}
        chosen: tuple[float, Caption | None] = (-np.inf, None)
        for owner, caption, vector in self.captions:
            if owner != image_id or query is None:
                continue
            score = float(np.float32(np.dot(vector, query)))
            best[caption.generated] = float(np.fmax(best[caption.generated], score))
            if score > chosen[0]:
                chosen = (score, caption)
        return chosen[1], best[False], best[True]

    def _text(self, image_id: str) -> list[str]:
        document = self.documents[image_id]
        texts = [caption.text for caption in document.captions]
        texts += [tag.label for tag in document.tags] + list(document.record.paths)
        return re.findall(r"\w+", " ".join(texts).lower())

    def _coverage(self, image_id: str, words: Sequence[str]) -> float:
        text = set(self._text(image_id))
        return sum(word in text for word in words) / len(words) if words else 0.0

    def _passes(self, image_id: str, filters: Filters, query: EncodedQuery | None) -> bool:
        document = self.documents[image_id]
        text = f" {' '.join(self._text(image_id))} "
        return (
            _lies_under(document.record.paths, filters.folders)
            and set(filters.tags) <= {tag.label for tag in document.tags}
            and _taken_within(document.record.taken_at, filters)
            and _has_caption(document.captions, filters)
            and (query is None or all(f" {' '.join(one)} " in text for one in query.phrases))
        )


def colour_image(*colours: str, size: int = 16) -> Pixels:
    """An image of equal vertical stripes, one for each colour named."""
    stripes = np.array([COLOURS[colour] for colour in colours], np.uint8)  # (K, 3)
    columns = stripes[np.arange(size) * len(colours) // size]  # (W, 3)
    return np.tile(columns, (size, 1, 1))


def _colour_shares(pixels: Pixels) -> Vectors:
    flat = pixels.reshape(-1, 3).astype(np.float32)  # (P, 3)
    palette = np.array(list(COLOURS.values()), np.float32)  # (8, 3)
    distances = ((flat[:, None] - palette[None]) ** 2).sum(axis=2)  # (P, 8)
    counts = np.bincount(distances.argmin(axis=1), minlength=len(palette))
    return np.append(counts / len(flat), flat.mean() / 255).astype(np.float32)


def _concept_counts(text: str, language: str) -> Vectors:
    column = LANGUAGES.index(language)
    words = re.findall("[a-z]+", text.lower())
    return np.array(
        [words.count(names[0]) if column == 0 else text.count(names[column]) for names in CONCEPTS],
        np.float32,
    )


def _lies_under(paths: Sequence[str], folders: Sequence[str]) -> bool:
    return not folders or any(
        PurePath(path).is_relative_to(folder) for path in paths for folder in folders
    )


def _taken_within(taken_at: datetime | None, filters: Filters) -> bool:
    if filters.taken_from is None and filters.taken_until is None:
        return True
    if taken_at is None:
        return False
    earliest = datetime.combine(filters.taken_from or datetime.min.date(), time.min)
    latest = datetime.combine(filters.taken_until or datetime.max.date(), time.max)
    return earliest <= taken_at <= latest


def _has_caption(captions: Sequence[Caption], filters: Filters) -> bool:
    """A language and an author must be met by one and the same caption."""
    if filters.caption_language is None and filters.written_by is None:
        return True
    return any(
        filters.caption_language in (None, caption.language)
        and filters.written_by in (None, "models" if caption.generated else "people")
        for caption in captions
    )
