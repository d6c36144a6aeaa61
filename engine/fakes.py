"""Toy encoders for tests: no weights, no disk, yet real searches (with engine.fake_backend).

An image is the share of its pixels nearest to each of eight colours; a sentence is the
colours and things it names in English, Chinese or Japanese. So "a red car" finds the red
image, "红色的车" and "赤い車" find it too, and a test can do the arithmetic by hand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from capsearch.engine.errors import UnknownLanguage
from capsearch.engine.evidence_model import EvidenceModel
from capsearch.engine.fake_backend import FakeBackend
from capsearch.engine.named import NamedConcepts
from capsearch.engine.records import (
    GENERATED,
    LANGUAGES,
    Caption,
    EncodedText,
    ImageFeatures,
    Pixels,
    Source,
    Tag,
    Vectors,
)
from capsearch.engine.vectors import as_document, as_query, strip_bias, unit

__all__ = [
    "COLOURS",
    "CONCEPTS",
    "FakeBackend",
    "FakeCaptioner",
    "FakeImageEncoder",
    "FakeTagger",
    "FakeTextEncoder",
    "colour_image",
]
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
# In encoders.concepts, where the id is not the name.
_CONCEPT_IDS: Mapping[str, str] = {"orange": "orange-color"}
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
    maps: bool = True  # whether it gives a feature map
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

    def feature_maps(self, pixels: Sequence[Pixels]) -> ImageFeatures:
        """The features, and those of the image's quarters (N, 4, 9) if it `maps`."""
        pooled = self.features(pixels)
        if not self.maps:
            return ImageFeatures(pooled)
        cells = [_colour_shares(cell) for one in pixels for cell in _quarters(one)]
        return ImageFeatures(pooled, np.reshape(cells, (len(pixels), 4, -1)).astype(np.float32))

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

    def subject(self, text: str, language: str) -> str:
        """What is asked for with "show me"."""
        return text.removeprefix("show me ")

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

    def evidence_model(self, text: str, language: str) -> EvidenceModel | None:
        """The one given, for all queries."""
        return self.evidence

    def background(self, encoded: EncodedText) -> Mapping[Source, float]:
        """Nothing scores on an empty bank."""
        return {"image": 0.0, "caption": 0.0}

    def words(self, text: str) -> tuple[str, ...]:
        """Lower-case words."""
        return tuple(re.findall(r"\w+", text.lower()))

    def keywords(self, text: str) -> tuple[str, ...]:
        """Lower-case words, each once."""
        return tuple(dict.fromkeys(self.words(text)))

    def named(self, text: str, language: str) -> NamedConcepts | None:
        """Nothing: it has no classifiers."""
        return None

    def concepts(self, text: str, language: str) -> tuple[frozenset[str], ...]:
        """The colours and things that a text names."""
        counts = _concept_counts(text, self.detect(text))
        names = [names[0] for names, count in zip(CONCEPTS, counts, strict=True) if count]
        return tuple(frozenset({_CONCEPT_IDS.get(name, name)}) for name in names)


@dataclass(slots=True)
class FakeTagger:
    """Tags an image with its colours: their names, and their shares as probabilities.

    `tagged` counts the images; `unlinked` colours get no concept.
    """

    name: str = "toy-tags@1"
    unlinked: frozenset[str] = frozenset()
    tagged: int = 0

    def concept_probabilities(self, features: ImageFeatures) -> tuple[tuple[str, ...], Vectors]:
        """None: its colours are no concepts."""
        return (), np.zeros((len(features), 0), np.float32)

    def tag(self, features: ImageFeatures) -> tuple[tuple[Tag, ...], ...]:
        """The colours of more than a tenth of the image, largest share first."""
        self.tagged += len(features)
        return tuple(tuple(self._tags(row)) for row in features.pooled[:, : len(COLOURS)])

    def _tags(self, shares: Vectors) -> Iterator[Tag]:
        source = GENERATED + self.name
        for at in np.argsort(-shares, kind="stable"):
            if shares[at] > 0.1:
                colour = CONCEPTS[at][0]
                concept = "" if colour in self.unlinked else _CONCEPT_IDS.get(colour, colour)
                yield Tag(colour, "en", round(float(shares[at]), 4), source, concept)


@dataclass(slots=True)
class FakeCaptioner:
    """Says of which colour most of an image is, in three languages; `captioned` counts images."""

    name: str = "toy-captions@1"
    languages: tuple[str, ...] = LANGUAGES
    captioned: int = 0

    def caption(self, features: ImageFeatures) -> tuple[tuple[Caption, ...], ...]:
        """One sentence for each language; its probability is the colour's share."""
        if features.grid is None:
            raise ValueError("captions need the feature map of the backbone")
        self.captioned += len(features)
        shares = features.grid[:, :, : len(COLOURS)].mean(axis=1)  # (N, 8), over the cells
        return tuple(tuple(self._captions(row)) for row in shares)

    def _captions(self, shares: Vectors) -> Iterator[Caption]:
        at = int(shares.argmax())
        texts = zip(LANGUAGES, ("a {} image", "{}色的图像", "{}の画像"), CONCEPTS[at], strict=True)
        for language, text, name in texts:
            if language in self.languages:
                confidence = round(float(shares[at]), 4)
                yield Caption(text.format(name), language, GENERATED + self.name, confidence)


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


def _quarters(pixels: Pixels) -> Iterator[Pixels]:
    middle = len(pixels) // 2
    for rows in (pixels[:middle], pixels[middle:]):
        yield from (rows[:, :middle], rows[:, middle:])


def _concept_counts(text: str, language: str) -> Vectors:
    column = LANGUAGES.index(language)
    words = re.findall("[a-z]+", text.lower())
    return np.array(
        [words.count(names[0]) if column == 0 else text.count(names[column]) for names in CONCEPTS],
        np.float32,
    )
