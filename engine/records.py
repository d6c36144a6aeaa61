"""The nouns that travel between the folders: frozen, slotted, comparable."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date, datetime
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]  # (N, D) or (D,), (N, G, C) for feature maps
Pixels: TypeAlias = NDArray[np.uint8]  # (H, W, 3) RGB, already turned upright
Mode = Literal["clm", "cm", "cl"]
# Of evidence, see engine.evidence.
Source = Literal["image", "caption", "generated", "words", "generated_words", "tag"]

LANGUAGES = ("en", "zh", "ja")
MODES: tuple[Mode, ...] = ("clm", "cm", "cl")
TAKEN_FROM = "taken_from"  # Document.metadata: where the date comes from
GENERATED = "model:"  # sources that start so were written by a model, all others by people
HAND = "hand"  # the source of what people wrote or confirmed in capsearch itself
# (concept id, label, language) -> the name of a tag in that language
LabelOf: TypeAlias = Callable[[str, str, str], str]


@dataclass(frozen=True, slots=True)
class Caption:
    """A sentence about an image, and where it came from ("sidecar", "iptc", "model:NAME", ...)."""

    text: str
    language: str
    source: str
    confidence: float = 1.0  # a model's calibrated probability that it is right; people's have 1

    @property
    def generated(self) -> bool:
        """True when a model wrote it."""
        return self.source.startswith(GENERATED)

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Tag:
    """A label on an image; people's tags have confidence 1.

    `concept` is the id of the concept it names (encoders.text.concepts), with names in
    other languages; "" for a label that names none, or that the concept table does not know.
    """

    label: str
    language: str
    confidence: float
    source: str = field(repr=False)
    concept: str = field(default="", repr=False)

    @property
    def generated(self) -> bool:
        """True when a model wrote it."""
        return self.source.startswith(GENERATED)

    def __str__(self) -> str:
        return self.label


@dataclass(frozen=True, slots=True)
class ImageRecord:
    """One image: a content, wherever its files lie.

    `id` is the hash of the bytes, so a renamed file is the same image and copies are one
    record; `path` is the first of `paths` in sorted order.
    """

    id: str
    paths: tuple[str, ...]
    width: int
    height: int
    size_bytes: int
    format: str
    taken_at: datetime | None = None

    @property
    def path(self) -> str:
        """Where to open it."""
        return self.paths[0]


@dataclass(frozen=True, slots=True)
class Document:
    """An image with everything written about it: captions people's first, tags surest first."""

    record: ImageRecord
    captions: tuple[Caption, ...] = ()
    tags: tuple[Tag, ...] = ()
    metadata: Mapping[str, str] = field(default_factory=dict)  # other texts: headline, byline, ...

    def caption(self, language: str | None = None) -> Caption | None:
        """The first caption, or the first in a language; None where there is none."""
        captions = (one for one in self.captions if language in (None, one.language))
        return next(captions, None)


@dataclass(frozen=True, slots=True)
class Filters:
    """What a hit must be, besides relevant. The empty filter lets everything through."""

    folders: tuple[str, ...] = ()  # absolute; an image lies under at least one of them
    tags: tuple[str, ...] = ()  # carries all of them, under any name, or something narrower
    taken_from: date | None = None  # inclusive
    taken_until: date | None = None  # inclusive
    caption_language: str | None = None  # has a caption in it
    written_by: Literal["people", "models"] | None = None  # has a caption by them

    def __bool__(self) -> bool:
        return self != Filters()


@dataclass(frozen=True, slots=True)
class Contributions:
    """Why a hit is there: the scores of its evidence, and the caption that matched best.

    `log_odds` says how much each source adds to the log-odds of relevance, beside "prior";
    it is empty where the score is not a probability.
    """

    cm: float | None = None
    cl: float | None = None
    words: float | None = None  # share of the query's words found as words
    tag: float | None = None  # probability of what the query names, by tags
    caption: Caption | None = None
    log_odds: Mapping[str, float] = field(default_factory=dict)


def own_label(concept: str, label: str, language: str) -> str:
    """The label of a tag as it was written, whatever the language: a LabelOf without a table."""
    return label


@dataclass(frozen=True, slots=True)
class Hit:
    """One result with its document; ranks count from 1 over all pages.

    `score` is the probability of relevance where the model is calibrated, otherwise the score
    that the mode defines (SearchResult.unit says which).
    """

    document: Document
    score: float
    rank: int
    contributions: Contributions
    label_of: LabelOf = field(default=own_label, repr=False, compare=False)

    def caption(self, language: str | None = None) -> Caption | None:
        """The caption to show: the one that matched best if it is in this language, else the first.

        Without a language, any will do; None where there is none.
        """
        matched = self.contributions.caption
        if matched is not None and language in (None, matched.language):
            return matched
        return self.document.caption(language)

    def tags(self, language: str) -> tuple[Tag, ...]:
        """The tags, surest first, by the names of their concepts in a language.

        Of equal names the first counts; a tag that names no concept keeps its label.
        """
        named = (
            replace(tag, label=self.label_of(tag.concept, tag.label, language), language=language)
            if tag.concept
            else tag
            for tag in self.document.tags
        )
        return tuple({tag.label: tag for tag in reversed(tuple(named))}.values())[::-1]

    @property
    def path(self) -> str:
        """Where to open the image."""
        return self.document.record.path

    @property
    def image_id(self) -> str:
        """The id of the image found."""
        return self.document.record.id

    @property
    def record(self) -> ImageRecord:
        """The image found."""
        return self.document.record


Unit = Literal["probability", "score"]


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page of hits, with how the query was understood and warnings about it.

    It is a sequence of its hits, best first.
    """

    hits: tuple[Hit, ...]
    more: bool  # another page would not be empty
    language: str | None
    mode: Mode
    weight: float | None  # the CL weight used, None where CLM was not the convex combination
    unit: Unit = "score"
    min_score: float | None = None  # the cut-off used
    warnings: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict, compare=False)

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, at: int) -> Hit:
        return self.hits[at]


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Sentences as query vectors: `visual` compares with images, `caption` with captions.

    `known[i]` is False where the model knows nothing in sentence i; its vectors are then zero.
    `engine.vectors` tells how queries differ from the documents of an index.
    """

    visual: Vectors  # (N, D)
    caption: Vectors  # (N, C)
    known: tuple[bool, ...]

    def at(self, rows: NDArray[np.int64]) -> EncodedText:
        """Some of the sentences."""
        known = tuple(self.known[row] for row in rows.tolist())
        return EncodedText(self.visual[rows], self.caption[rows], known)


@dataclass(frozen=True, slots=True)
class ImageFeatures:
    """What one pass of a backbone gives for N images."""

    pooled: Vectors  # (N, F) features, the input of the projection into the shared space
    grid: Vectors | None = None  # (N, G, C) feature map, cells row by row; not all backbones do

    def __len__(self) -> int:
        return len(self.pooled)


@dataclass(frozen=True, slots=True)
class Facet:
    """One value to filter by, and how many images have it."""

    value: str
    images: int
    concept: str = ""  # the id of the concept that a tag names: shown in the reader's language


@dataclass(frozen=True, slots=True)
class Facets:
    """All values to filter by; most images first, then by name."""

    tags: tuple[Facet, ...] = ()  # by concept, counting what is narrower; or by label
    folders: tuple[Facet, ...] = ()  # absolute, counting what lies anywhere below
    caption_languages: tuple[Facet, ...] = ()
    written_by: tuple[Facet, ...] = ()  # "people", "models"
    earliest: date | None = None
    latest: date | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is: `done` of `total` (None: unknown) in a stage such as "scan" or "embed"."""

    stage: str
    done: int
    total: int | None
    current: str | None = None  # the path of the latest file

    def __str__(self) -> str:
        of = "" if self.total is None else f" of {self.total}"
        return f"{self.stage}: {self.done}{of}"
