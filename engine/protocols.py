"""The borders: what the search needs from encoders and stores, whoever provides it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from capsearch.engine.evidence import ConvexCombination, EvidenceModel
from capsearch.engine.query import EncodedQuery, Understood
from capsearch.engine.records import (
    Caption,
    Contributions,
    Document,
    EncodedText,
    Facets,
    Filters,
    ImageFeatures,
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

    def feature_maps(self, pixels: Sequence[Pixels]) -> ImageFeatures:
        """The same features and, in the same pass, the feature map if the backbone gives one."""
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
    def caption_dimension(self) -> int:
        """C, the width of a caption vector, penalty included."""
        ...

    def detect(self, text: str) -> str:
        """The language that a text is taken for when nobody said."""
        ...

    def understand(self, text: str, language: str | None = None) -> Understood:
        """The text of a query, in the language that it is detected to be in when None is given.

        UnknownLanguage for a language it does not read.
        """
        ...

    def encode(self, texts: Sequence[str], language: str) -> EncodedText:
        """Sentences of one language as questions; UnknownLanguage for one it does not read."""
        ...

    def as_documents(self, captions: Vectors) -> Vectors:
        """(N, C) `EncodedText.caption` of sentences that describe images, for an index."""
        ...

    def convex(self, language: str) -> ConvexCombination:
        """The convex combination of CL and CM that validated best for queries in a language."""
        ...

    def evidence_model(self, text: str, language: str) -> EvidenceModel | None:
        """What calibration fitted for such a query; None if it never ran."""
        ...

    def unknown_words(self, text: str, language: str) -> tuple[str, ...]:
        """Words of a sentence that are not in its vocabulary; it may guess them all the same."""
        ...

    def words(self, text: str) -> tuple[str, ...]:
        """Folded tokens of what is written about a document, in order."""
        ...


class Tagger(Protocol):
    """Names what images show, from the features of one backbone."""

    @property
    def name(self) -> str:
        """NAME@DIGEST: tags of another name were written by another model."""
        ...

    def tag(self, features: ImageFeatures) -> tuple[tuple[Tag, ...], ...]:
        """The tags of each image, best first, none twice; needs `features.pooled` alone.

        `confidence` is a calibrated probability, `source` GENERATED + `name`. A tag of a concept
        comes once, with its id: the concept table has its names in all languages. One that is no
        concept comes in the language of its label.
        """
        ...

    def concept_probabilities(self, features: ImageFeatures) -> tuple[tuple[str, ...], Vectors]:
        """The ids of the concepts that it knows, and (N, K) how likely each image shows them."""
        ...


class Captioner(Protocol):
    """Describes images in sentences, from the feature maps of one backbone."""

    @property
    def name(self) -> str:
        """NAME@DIGEST: captions of another name were written by another model."""
        ...

    @property
    def languages(self) -> tuple[str, ...]:
        """The languages it writes."""
        ...

    def caption(self, features: ImageFeatures) -> tuple[tuple[Caption, ...], ...]:
        """The captions of each image, one for each language, in the order of `languages`.

        `confidence` is a calibrated probability, `source` GENERATED + `name`. ValueError for
        features without a grid.
        """
        ...


Head: TypeAlias = Literal["tagger", "captioner"]


@dataclass(frozen=True, slots=True)
class Enricher:
    """What describes the images of one backbone; None where no such model is there."""

    tagger: Tagger | None = None
    captioner: Captioner | None = None

    def __bool__(self) -> bool:
        return self.tagger is not None or self.captioner is not None


@dataclass(frozen=True, slots=True)
class Found:
    """A document that a backend found: its score in the fusion's unit, and why."""

    document: Document
    score: float
    contributions: Contributions


@dataclass(frozen=True, slots=True)
class Stats:
    """What a search must know of a backend before it fuses evidence."""

    documents: int  # that `search` can find
    captioned: bool  # whether any of them has a caption that can be searched


class Backend(Protocol):
    """Where documents live and are searched: embedded on one machine, or a cluster.

    Filters are pushed down, ids are strings, results come with their documents. Equal states
    give equal answers, and the pages of one query neither repeat nor drop a document. A document
    without a file is not found at all; `search` finds it once its image is encoded.
    """

    def __len__(self) -> int:
        """How many documents `search` can find."""
        ...

    def stats(self) -> Stats:
        """Counts, as of now."""
        ...

    def search(
        self, query: EncodedQuery, filters: Filters, limit: int, offset: int = 0
    ) -> tuple[Found, ...]:
        """The documents ranked offset + 1 to offset + limit by `query.fusion`.

        Best first, ties by image id; none below `query.min_score`, none for an empty query.
        """
        ...

    def lookup(self, ids: Sequence[str]) -> Mapping[str, Document]:
        """Documents by id; unknown ids are left out."""
        ...

    def vector(self, image_id: str) -> Vectors | None:
        """The image vector (D,) of a document, or None."""
        ...

    def newest(self, filters: Filters, limit: int, offset: int = 0) -> tuple[Document, ...]:
        """By the date they were taken, latest first, undated last; ties by id."""
        ...

    def facets(self) -> Facets:
        """What the documents can be filtered by, with counts."""
        ...
