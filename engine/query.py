"""What a user searches for, and what it becomes for a backend.

Tags to filter by, whatever language they are written in: concepts, and labels that name none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from capsearch.engine.errors import InvalidQuery
from capsearch.engine.evidence import ConvexCombination, EvidenceModel, Fusion, NamedConcepts
from capsearch.engine.records import (
    MODES,
    EncodedText,
    Facet,
    Filters,
    Mode,
    Pixels,
    Source,
    Vectors,
)

MAX_CHARACTERS = 2000  # longer than any sentence; a pasted book must not stall a query
MAX_PHRASES = 32
_QUOTED = re.compile(r'["“”„]([^"“”„]+)["“”]|「([^「」]+)」|『([^『』]+)』')


@dataclass(frozen=True, slots=True)
class Query:
    """What to look for: text, an image, or both.

    `image` is a decoded image from outside the index, `like` the id of one inside it. Quoted
    parts of the text must occur as words. `weight` asks for the convex combination of COCO-CN
    with this weight of CL; None fuses calibrated evidence where the model has it, otherwise
    takes the model's tuned weight. `image_weight` is the image's weight beside text. Hits below
    `min_score` are left out; None takes the model's calibrated cut-off, and a probability of 0
    shows everything.
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

    @property
    def read_text(self) -> str:
        """What is read of the text: its first MAX_CHARACTERS, without space around them."""
        return self.text.strip()[:MAX_CHARACTERS].strip()

    def check(self) -> None:
        """InvalidQuery for nothing to search for, an impossible mode, or numbers out of range."""
        if self.image is not None and self.like is not None:
            raise InvalidQuery("give one image to compare with, not two")
        has_text = bool(self.read_text)
        if not has_text and self.image is None and self.like is None:
            raise InvalidQuery("nothing to search for: give some words or an image")
        if self.mode not in MODES:
            raise InvalidQuery(f"mode is one of {', '.join(MODES)}, not {self.mode!r}")
        if self.mode == "cl" and not has_text:
            raise InvalidQuery("captions are searched with words: add some, or use mode cm")
        if self.limit < 1 or self.offset < 0:
            raise InvalidQuery("limit must be at least 1 and offset at least 0")
        if self.weight is not None and not 0.0 <= self.weight <= 1.0:
            raise InvalidQuery(f"the CLM weight lies between 0 and 1, not {self.weight}")
        if not 0.0 <= self.image_weight <= 1.0:
            raise InvalidQuery(f"the image's weight lies between 0 and 1, not {self.image_weight}")
        if self.min_score is not None and math.isnan(self.min_score):
            raise InvalidQuery("the least score is a number, not nan")
        if (quoted := len(phrases(self.read_text))) > MAX_PHRASES:
            raise InvalidQuery(f"a query has at most {MAX_PHRASES} quoted parts, not {quoted}")


def phrases(text: str) -> tuple[str, ...]:
    """The quoted parts of a query, which must occur."""
    quoted = (next(part for part in match if part) for match in _QUOTED.findall(text))
    return tuple(part.strip() for part in quoted if part.strip())


@dataclass(frozen=True, slots=True)
class Understood:
    """What a text encoder makes of the text of a query, once; a search asks it nothing else."""

    language: str
    vectors: EncodedText  # (1, D) and (1, C) of what is asked for
    keywords: tuple[str, ...]  # folded tokens that it looks for, each once
    phrases: tuple[tuple[str, ...], ...]  # folded tokens of its quoted parts, in order
    concepts: tuple[frozenset[str], ...]  # for each thing named, the ids of it and what is narrower
    convex: ConvexCombination  # with the weight that validated best
    model: EvidenceModel | None = None  # what calibration fitted for such a query, if it ever ran
    background: Mapping[Source, float] = field(default_factory=dict)  # on unrelated documents
    named: NamedConcepts | None = None  # classifiers of the things named, with their background


@dataclass(frozen=True, slots=True)
class EncodedQuery:
    """A query as a backend gets it: vectors, words, and how evidence becomes a score.

    The backend finds candidates by whatever `fusion.sources` names and scores them with
    `fusion`; a vector is None, or words are empty, where the query has none.
    """

    fusion: Fusion
    image: Vectors | None = None  # (D,) against image vectors
    caption: Vectors | None = None  # (C,) against caption vectors
    words: tuple[str, ...] = ()  # folded tokens, each once
    concepts: tuple[frozenset[str], ...] = ()  # ids of what it names, narrower ones included
    phrases: tuple[tuple[str, ...], ...] = ()  # folded tokens that must occur, in this order
    caption_offsets: Mapping[str, float] = field(default_factory=dict)  # by caption language
    min_score: float = float("-inf")  # of a hit, in the fusion's own unit: log-odds or score
    named: NamedConcepts | None = None  # adds to the scores of image vectors

    def image_bound(self) -> tuple[Vectors, float]:
        """(D,) v and c: the score of an image is at most v . its vector + c. Needs `image`.

        The nearest to v are found first, so that no other can score more than the last of them.
        """
        assert self.image is not None
        if self.named is None:
            return self.image, 0.0
        vector, constant = self.named.bound()
        return self.image + vector, constant

    @property
    def empty(self) -> bool:
        """No word and no vector but zeros: it would score all documents the same, so finds none."""
        return not self.words and self.blind

    @property
    def blind(self) -> bool:
        """No phrase and no vector but zeros: a document without its words scores as any other."""
        vectors = [vector for vector in (self.image, self.caption) if vector is not None]
        return not (self.phrases or self.named or any(vector.any() for vector in vectors))


class ConceptTable(Protocol):
    """What tags mean (encoders.text.concepts): names of concepts, and which are broader."""

    def under(self, name: str) -> frozenset[str]:
        """The ids of all concepts with a name in any language, and of all below them."""
        ...

    def broader(self, concept_id: str) -> frozenset[str]:
        """The ids of all concepts above, itself included."""
        ...

    def label_of(self, concept_id: str, label: str, language: str) -> str:
        """The name of a concept in a language; `label` for an unknown one."""
        ...


def tag_facets(
    labels: Mapping[str, int], concepts: Mapping[str, int], table: ConceptTable
) -> tuple[Facet, ...]:
    """Most images first, then by name.

    `labels` counts images by labels without a concept, `concepts` by concept ids: a concept is
    counted where an image has it or something narrower. A broader concept is left out where it
    counts no more images than a narrower one, for it offers nothing.
    """
    repeated = {
        above
        for concept, count in concepts.items()
        for above in table.broader(concept)
        if above != concept and concepts.get(above) == count
    }
    facets = [Facet(label, count) for label, count in labels.items()]
    facets += [
        Facet(table.label_of(concept, concept, "en"), count, concept)
        for concept, count in concepts.items()
        if concept not in repeated
    ]
    return tuple(sorted(facets, key=lambda facet: (-facet.images, facet.value, facet.concept)))
