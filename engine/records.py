"""The nouns that travel between the folders: frozen, slotted, comparable."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vectors: TypeAlias = NDArray[np.float32]  # (N, D) or (D,)
Pixels: TypeAlias = NDArray[np.uint8]  # (H, W, 3) RGB, already turned upright
Mode = Literal["clm", "cm", "cl"]

LANGUAGES = ("en", "zh", "ja")
MODES: tuple[Mode, ...] = ("clm", "cm", "cl")
GENERATED = "model:"  # sources that start so were written by a model, all others by people


@dataclass(frozen=True, slots=True)
class Caption:
    """A sentence about an image, and where it came from ("sidecar", "iptc", "model:NAME", ...)."""

    text: str
    language: str
    source: str

    @property
    def generated(self) -> bool:
        """True when a model wrote it."""
        return self.source.startswith(GENERATED)


@dataclass(frozen=True, slots=True)
class Tag:
    """A label on an image; people's tags have confidence 1."""

    label: str
    language: str
    confidence: float
    source: str


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
class Filters:
    """What a hit must be, besides relevant. The empty filter lets everything through."""

    folders: tuple[str, ...] = ()  # absolute; an image lies under at least one of them
    tags: tuple[str, ...] = ()  # carries all of them
    taken_from: date | None = None  # inclusive
    taken_until: date | None = None  # inclusive
    caption_language: str | None = None  # has a caption in it
    written_by: Literal["people", "models"] | None = None  # has a caption by them

    def __bool__(self) -> bool:
        return self != Filters()


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for: words, an image, or both.

    `image` is a decoded image from outside the index, `like` the id of one inside it.
    `weight` is the share of CL in CLM; None takes the model's, tuned on validation for the
    query's language. `image_weight` is the image's share when there are words too.
    """

    text: str = ""
    image: Pixels | None = field(default=None, compare=False)
    like: str | None = None
    language: str | None = None  # None: by script
    mode: Mode = "clm"
    weight: float | None = None
    image_weight: float = 0.5
    filters: Filters = field(default_factory=Filters)
    min_score: float | None = None
    limit: int = 10
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Contributions:
    """Why a hit is there: the two scores and the caption that matched best."""

    cm: float | None = None
    cl: float | None = None
    caption: Caption | None = None


@dataclass(frozen=True, slots=True)
class Hit:
    """One result; ranks count from 1 over all pages."""

    image_id: str
    score: float
    rank: int
    contributions: Contributions


@dataclass(frozen=True, slots=True)
class SearchResult:
    """A page of hits, with what the engine understood and what it wants to say about it."""

    hits: tuple[Hit, ...]
    more: bool  # another page would not be empty
    language: str | None
    mode: Mode
    weight: float | None  # the CL share used, None outside CLM
    warnings: tuple[str, ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict, compare=False)


@dataclass(frozen=True, slots=True)
class EncodedText:
    """Sentences as vectors: `visual` compares with images, `caption` with captions.

    `known[i]` is False where sentence i holds nothing the model has a meaning for; its
    vectors are then zero. Both are questions: `engine.vectors` says how they differ from what
    an index holds.
    """

    visual: Vectors  # (N, D)
    caption: Vectors  # (N, C)
    known: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """An image found by a vector index: its best item's score, and which item that was."""

    image_id: str
    score: float
    item: int  # the row's key in the index: a caption's number, 0 for an image vector
