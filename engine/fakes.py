"""Toy encoders and stores for tests: no weights, no disk, yet searches that mean something.

An image is the share of its pixels nearest to each of eight colours; a sentence is the
colours and things it names in English, Chinese or Japanese. So "a red car" finds the red
image, "红色的车" and "赤い車" find it too, and a test can do the arithmetic by hand.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, time
from pathlib import PurePath
from typing import Any

import numpy as np

from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.records import (
    LANGUAGES,
    Caption,
    EncodedText,
    Filters,
    ImageRecord,
    Match,
    Pixels,
    Tag,
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

    Two encoders of one `backbone` but different `turn` stand for the same eyes with another
    projection. `embedded` counts the images that went through, `batches` their groups.
    """

    backbone: str = "toy"
    turn: int = 0
    penalty: float = 0.0  # what a wholly red image pays
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
        """Stands for the weights: equal names, equal eyes."""
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
    penalty: float = 0.0  # what a caption pays that says nothing but red
    dimension: int = len(COLOURS) + 1
    caption_dimension: int = len(CONCEPTS) + 1

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
        """Captions pay for the red in them."""
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


@dataclass(frozen=True, slots=True)
class FakeVectorIndex:
    """The contract of a vector index in its plainest form: rows (image id, item, vector)."""

    rows: Sequence[tuple[str, int, Vectors]] = ()

    def __len__(self) -> int:
        return len(self.rows)

    def search(
        self, query: Vectors, count: int, allowed: Collection[str] | None = None
    ) -> tuple[Match, ...]:
        """The `count` best images, by looking at all of them."""
        owners = {owner for owner, _, _ in self.rows if allowed is None or owner in allowed}
        matches = self.scores(query, sorted(owners)).values()
        return tuple(sorted(matches, key=lambda one: (-one.score, one.image_id))[:count])

    def scores(self, query: Vectors, image_ids: Sequence[str]) -> Mapping[str, Match]:
        """The best item of each image; the lowest item number among equals."""
        wanted = set(image_ids)
        best: dict[str, Match] = {}
        for owner, item, vector in sorted(self.rows, key=lambda row: row[:2]):
            score = float(np.float32(np.dot(vector, query)))
            if owner in wanted and (owner not in best or score > best[owner].score):
                best[owner] = Match(owner, score, item)
        return best

    def vector(self, image_id: str) -> Vectors | None:
        """The first vector an image owns, or None."""
        return next((vector for owner, _, vector in self.rows if owner == image_id), None)


@dataclass(frozen=True, slots=True)
class FakeCatalog:
    """The contract of a catalog in its plainest form. Captions are numbered from 1 in order."""

    records: Mapping[str, ImageRecord] = field(default_factory=dict)
    written: Sequence[tuple[str, Caption]] = ()
    labels: Mapping[str, tuple[Tag, ...]] = field(default_factory=dict)

    def images(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Records by id; unknown ids are left out."""
        return {one: self.records[one] for one in ids if one in self.records}

    def captions(self, ids: Sequence[str]) -> Mapping[str, tuple[Caption, ...]]:
        """All captions of each image, people's before models'."""
        return {one: self._captions_of(one) for one in ids if one in self.records}

    def tags(self, ids: Sequence[str]) -> Mapping[str, tuple[Tag, ...]]:
        """All tags of each image, surest first."""
        return {
            one: tuple(
                sorted(self.labels.get(one, ()), key=lambda tag: (-tag.confidence, tag.label))
            )
            for one in ids
            if one in self.records
        }

    def caption(self, item: int) -> Caption:
        """The caption numbered `item`."""
        return self.written[item - 1][1]

    def select(self, filters: Filters) -> frozenset[str]:
        """The ids of all images that pass."""
        return frozenset(one for one in self.records if self._passes(one, filters))

    def _captions_of(self, image_id: str) -> tuple[Caption, ...]:
        mine = [caption for owner, caption in self.written if owner == image_id]
        return tuple(sorted(mine, key=lambda caption: caption.generated))

    def _passes(self, image_id: str, filters: Filters) -> bool:
        record, captions = self.records[image_id], self._captions_of(image_id)
        labels = {tag.label for tag in self.labels.get(image_id, ())}
        return (
            _lies_under(record.paths, filters.folders)
            and set(filters.tags) <= labels
            and _taken_within(record.taken_at, filters)
            and _has_caption(captions, filters)
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
