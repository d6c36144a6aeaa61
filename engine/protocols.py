"""The borders: what the search needs from encoders and stores, whoever provides it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from capsearch.engine.records import (
    Caption,
    EncodedText,
    Filters,
    ImageRecord,
    Match,
    Pixels,
    Tag,
    Vectors,
)


@runtime_checkable
class Tokenizer(Protocol):
    """Splits normalised text into words, the same way at training and at search."""

    @property
    def language(self) -> str:
        """The language it splits."""
        ...

    @property
    def version(self) -> str:
        """Changes whenever the same text could come out differently."""
        ...

    def tokens(self, text: str) -> tuple[str, ...]:
        """The words of a sentence in order; empty for text without any."""
        ...


class ImageEncoder(Protocol):
    """A backbone and its projection into the shared space.

    One pass gives the feature that vectors, tags, captions and regions share.
    """

    @property
    def name(self) -> str:
        """A human name."""
        ...

    @property
    def digest(self) -> str:
        """Equal digests give comparable arrays."""
        ...

    def preprocess(self, image: Any) -> Pixels:
        """An opened image (PIL) as the pixels this network wants, turned upright."""
        ...

    @property
    def feature_dimension(self) -> int:
        """F, the width of a feature."""
        ...

    @property
    def dimension(self) -> int:
        """D, the width of an image vector: the shared space and the penalty."""
        ...

    def features(self, pixels: Sequence[Pixels]) -> Vectors:
        """(N, F) backbone features, not normalised."""
        ...

    def project(self, features: Vectors) -> Vectors:
        """(N, F) -> (N, D) vectors for an index, see `engine.vectors`."""
        ...


class TextEncoder(Protocol):
    """Sentences of several languages into the shared space."""

    @property
    def name(self) -> str:
        """A human name."""
        ...

    @property
    def digest(self) -> str:
        """Equal digests give comparable arrays."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it reads."""
        ...

    @property
    def dimension(self) -> int:
        """D, the width of an image vector: the shared space and the penalty."""
        ...

    @property
    def caption_dimension(self) -> int:
        """C, the width of a caption vector, penalty included."""
        ...

    def detect(self, text: str) -> str:
        """The language a text is taken for when nobody said."""
        ...

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Sentences of one language as questions; UnknownLanguage for one it does not read."""
        ...

    def as_documents(self, captions: Vectors) -> Vectors:
        """(N, C) `EncodedText.caption` of sentences that describe images, for an index."""
        ...

    def unknown_words(self, text: str, language: str) -> tuple[str, ...]:
        """Words of a sentence that are not in its vocabulary; it may guess them all the same."""
        ...

    def clm_weight(self, language: str) -> float:
        """The share of CL in CLM that validated best for queries in this language."""
        ...

    def cl_floor(self, language: str) -> float:
        """What an unrelated caption scores: stands in for CL where an image has no caption."""
        ...


class VectorIndex(Protocol):
    """Vectors owned by images; an image may own none, one or many."""

    def __len__(self) -> int:
        """How many vectors it holds."""
        ...

    def search(
        self, query: Vectors, count: int, allowed: Collection[str] | None = None
    ) -> tuple[Match, ...]:
        """The `count` best images by inner product, each once with its best item.

        Best first, ties by image id. `allowed` restricts the images; None allows all.
        """
        ...

    def scores(self, query: Vectors, image_ids: Sequence[str]) -> Mapping[str, Match]:
        """Exact matches of given images; those that own no vector are left out."""
        ...

    def vector(self, image_id: str) -> Vectors | None:
        """The first vector an image owns, or None."""
        ...


class Catalog(Protocol):
    """The truth about images, captions and tags."""

    def images(self, ids: Sequence[str]) -> Mapping[str, ImageRecord]:
        """Records by id; unknown ids are left out."""
        ...

    def captions(self, ids: Sequence[str]) -> Mapping[str, tuple[Caption, ...]]:
        """All captions of each image, people's before models'."""
        ...

    def tags(self, ids: Sequence[str]) -> Mapping[str, tuple[Tag, ...]]:
        """All tags of each image, surest first."""
        ...

    def caption(self, item: int) -> Caption:
        """The caption behind a caption index's item number."""
        ...

    def select(self, filters: Filters) -> frozenset[str]:
        """The ids of all images that pass."""
        ...
